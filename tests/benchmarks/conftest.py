"""The devices are those that `tests/conftest.py` emulates; the comparison of copies, which costs time, is off."""

from __future__ import annotations

from collections.abc import Generator

import pytest

import jaxmesh as jm


@pytest.fixture(autouse=True)
def compared_copies() -> Generator[None]:
    with jm.check_replication(False):
        yield
