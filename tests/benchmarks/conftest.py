"""The devices are those that `tests/conftest.py` emulates; programs compile and run as users' do, uncompared."""

from __future__ import annotations

from collections.abc import Generator

import pytest

import jaxmesh as jm


@pytest.fixture(autouse=True)
def compared_copies() -> Generator[None]:
    with jm.check_replication(False):
        yield


@pytest.fixture(autouse=True)
def cheaply() -> None:
    """Saves nothing: what is measured is what users run."""
