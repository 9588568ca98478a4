"""The exit code of a run of several processes."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from jaxmesh.cli import processes


@pytest.mark.parametrize(
    ("ended", "wanted"),
    [
        ([(0, False), (0, False)], 0),
        ([(-15, True), (3, False)], 3),
        ([(0, False), (-9, False), (4, False)], 137),
        ([(0, False), (-15, True)], 143),
    ],
)
def test_the_code_is_of_the_first_that_failed_by_itself(
    ended: list[tuple[int, bool]], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [SimpleNamespace(code=code, stopped=stopped) for code, stopped in ended]
    monkeypatch.setattr(processes, "run_processes", lambda *_, **__: made)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments: Any = SimpleNamespace(script=__file__, arguments=[], count=len(ended), devices=None, timeout=None)
    assert processes.processes(arguments) == wanted
