"""A JAX newer than those tested gives one warning that says so."""

from __future__ import annotations

import warnings

import jax
import pytest

import jaxmesh as jm
from jaxmesh.jaxprs import backend


def test_a_newer_jax_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 13, 1))
    monkeypatch.setattr(jax, "__version__", "0.13.1")
    with pytest.warns(jm.UntestedJaxWarning, match=r"tested with JAX up to 0\.12, and this is JAX 0\.13\.1") as caught:
        backend.warn_if_untested()
    assert len(caught) == 1


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 12, 0), (0, 12, 7)])
def test_a_tested_jax_is_not(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend.warn_if_untested()
