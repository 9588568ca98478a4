from __future__ import annotations

from pathlib import Path

import pytest

from tests.generators.simulated_chip import python_with


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the names of the functions that the chip called."""
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "calls"


@pytest.fixture
def python(calls: Path, tmp_path: Path) -> Path:
    return python_with(tmp_path / "chip")
