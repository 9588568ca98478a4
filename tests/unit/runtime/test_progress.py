"""Progress: nothing for two seconds, then a bar or a line on a terminal, and nothing elsewhere unless asked for."""

from __future__ import annotations

import importlib.util
import io
import sys
import threading
import time
from collections.abc import Callable

import pytest

from jaxmesh.runtime import progress as module
from jaxmesh.runtime.progress import Progress, note_step, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)


class Jupyter(io.StringIO):
    """Standard error of a cell of Jupyter."""


Jupyter.__module__ = "ipykernel.iostream"


def drawn(shown: Progress, stream: io.StringIO) -> str:
    before = stream.tell()
    shown.draw()
    return stream.getvalue()[before:]


@pytest.mark.usefixtures("without_tqdm")
def test_a_line_is_shown_after_two_seconds_and_taken_away(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress("export", 3, None, stream, clock)
    clock.seconds += 1.9
    assert drawn(shown, stream) == ""
    clock.seconds += 0.2
    assert drawn(shown, stream).split("\r")[1].strip() == "jaxmesh: export, 0 of 3, 2 s"
    shown.step("writing the files")
    assert drawn(shown, stream) == ""
    clock.seconds += 1
    assert drawn(shown, stream).split("\r")[1].strip() == "jaxmesh: export, 1 of 3, writing the files, 3 s"
    shown.end()
    assert stream.getvalue().endswith("\r" + " " * 100 + "\r")


def test_the_last_line_stays_in_jupyter(clock: Clock) -> None:
    stream = Jupyter()
    shown = Progress("explain", stream=stream, clock=clock)
    for _ in range(2):
        clock.seconds += 3
        shown.draw()
    shown.end()
    assert [line.strip() for line in stream.getvalue().split("\r")] == [
        "",
        "jaxmesh: explain, 3 s",
        "jaxmesh: explain, 6 s",
    ]
    assert stream.getvalue().endswith("\n")


@pytest.mark.usefixtures("without_tqdm")
def test_a_line_fits_into_a_narrow_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    shown = Progress("a long name of some work", stream=stream, clock=clock)
    clock.seconds += 3
    assert drawn(shown, stream) == "\rjaxmesh: a long nam\r"


def test_quick_work_leaves_no_trace(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress("export", 3, None, stream, clock)
    shown.draw()
    shown.end()
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("without_tqdm")
def test_steps_may_be_counted_elsewhere_and_their_number_be_unknown(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress("record", count=lambda: 12_345, stream=stream, clock=clock)
    clock.seconds += 5
    assert drawn(shown, stream).split("\r")[1].strip() == "jaxmesh: record, 12,345, 5 s"


def test_a_file_gets_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress("judge", 40, lambda: 7, stream, clock)
    lines = 0
    for _ in range(60):
        clock.seconds += 0.5
        lines += bool(drawn(shown, stream))
    assert lines == 3
    assert stream.getvalue().splitlines()[1] == "jaxmesh: judge, 7 of 40, 12 s"
    shown.end()
    assert "\r" not in stream.getvalue()


@pytest.mark.skipif(importlib.util.find_spec("tqdm") is None, reason="tqdm is not installed")
def test_tqdm_draws_where_it_is_installed(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress("lit, files", 40, None, stream, clock)
    clock.seconds += 3
    shown.step("one.mlir")
    assert "lit, files:   2%" in (text := drawn(shown, stream))
    assert "1/40 [00:03" in text
    clock.seconds += 1
    shown.step("two.mlir")
    assert "2/40 [00:0" in (text := drawn(shown, stream))
    assert "two.mlir" in text
    shown.end()
    shown = Progress("run", stream=stream, clock=clock)
    clock.seconds += 3
    assert drawn(shown, stream).strip() == "run [00:03]"
    shown.end()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "jaxmesh progress"]


@pytest.mark.usefixtures("without_tqdm")
@pytest.mark.parametrize(
    ("kind", "variable", "shows"),
    [
        (Terminal, None, True),
        (Terminal, "0", False),
        (Jupyter, None, True),
        (Jupyter, "0", False),
        (io.StringIO, None, False),
        (io.StringIO, "1", True),
    ],
)
def test_who_sees_it(
    kind: Callable[[], io.StringIO], variable: str | None, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(module.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(module.VARIABLE, variable)
    monkeypatch.setattr(module, "QUIET", 0)
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    stream = kind()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("export", 2) as shown:
        assert bool(threads()) is shows
        for _ in range(2000 if shows else 10):
            if "export" in stream.getvalue():
                break
            time.sleep(0.005)
    assert not threads()
    assert bool(stream.getvalue()) is shows
    assert shown.what == "export"


@pytest.mark.usefixtures("without_tqdm")
def test_a_block_in_a_block_is_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)

    def shown() -> str:
        outer._drawn, outer._begin = 0.0, time.monotonic() - 5
        return drawn(outer, stream).split("\r")[1].strip()

    with progress("export") as outer:
        with progress("judge"), progress("lines", 40, lambda: 7):
            assert len(threads()) == 1
            assert shown() == "jaxmesh: export, judge, lines, 7 of 40, 5 s"
        note_step("writing")
        assert shown() == "jaxmesh: export, writing, 5 s"
    assert not threads()
    note_step("nothing runs")


@pytest.mark.usefixtures("without_tqdm")
def test_a_print_clears_the_line_that_a_terminal_shows(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    shown = Progress("run", stream=stream, clock=clock)
    with shown.beside_output():
        clock.seconds += 5
        shown.draw()
        print("result")
        assert sys.stdout.isatty()
    assert stream.getvalue().endswith(f"\r{'':<100}\rresult\n")
    assert sys.stdout is sys.stderr is stream


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError), progress("export"):
        _ = 1 / 0
    assert not threads()
