"""Progress of work that takes over two seconds, on standard error.

A terminal shows it, as a bar if tqdm is installed, and Jupyter does. `JAXMESH_PROGRESS=1` shows it on any standard
error, and `JAXMESH_PROGRESS=0` nowhere. A thread draws it, since most of the time is spent in calls that report
nothing, such as XLA's compiler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, TextIO

VARIABLE = "JAXMESH_PROGRESS"
QUIET = 2.0
"""The number of seconds before progress is shown."""
_INTERVAL, _INTERVAL_IN_A_FILE = 0.5, 10.0
"""The number of seconds between two updates."""
_WIDTH = 100
"""The most columns of a line."""


class Progress:
    """The progress of some work.

    Attributes:
      what: the work.
      total: the number of its steps; None if it is not known.
      note: the current step.
      inner: the block inside of this one that runs, which is a step of it.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        count: Callable[[], int] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.note = what, total, ""
        self.inner: Progress | None = None
        self._count, self._stream, self._clock = count, stream, clock
        self._done, self._begin, self._drawn = 0, clock(), 0.0
        self._bar: Any = None
        self._is_visible = False
        self._ended = threading.Event()

    def step(self, note: str = "") -> None:
        """Records that a step is done, and the next step."""
        self._done += 1
        self.note = note

    @contextlib.contextmanager
    def beside_output(self) -> Generator[None]:
        """Clears the line of the progress before a print of the block."""
        if self._stream is None or not self._stream.isatty():
            yield
            return
        out, err = _ClearingStream(sys.stdout, self), _ClearingStream(sys.stderr, self)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield

    def draw(self) -> None:
        """Shows the progress, unless the work or the last update began just now."""
        seconds, stream = self._clock() - self._begin, self._stream
        if stream is None or seconds < QUIET:
            return
        on_terminal, in_jupyter = stream.isatty(), _is_of_jupyter(stream)
        interval = _INTERVAL if on_terminal or in_jupyter else _INTERVAL_IN_A_FILE
        if self._drawn and seconds - self._drawn < interval:
            return
        self._drawn, self._is_visible = seconds, True
        done = self._steps()
        if on_terminal and (tqdm := _tqdm()) is not None:
            if self._bar is None:
                number = "" if self._count is None else ", {n_fmt}"
                form = None if self.total else f"{{desc}}{number} [{{elapsed}}{{postfix}}]"
                # With a delay, the bar is first drawn below, with the right time.
                self._bar = tqdm(
                    desc=self.what, total=self.total, file=stream, leave=False, bar_format=form, delay=QUIET
                )
                self._bar.start_t -= seconds
            self._bar.n = done
            self._bar.set_postfix_str(self._step())
            return
        text = f"jaxmesh: {self._show()}, {seconds:.0f} s"
        if on_terminal:
            # The cursor returns to the start of the line, so that later output overwrites it.
            text = f"{_line(text)}\r"
        elif in_jupyter:
            text = _line(text)
        else:
            text = f"{text}\n"
        stream.write(text)
        stream.flush()

    def _steps(self) -> int:
        return self._done if self._count is None else self._count()

    def _step(self) -> str:
        inner = self.inner
        return ", ".join(filter(None, [self.note, "" if inner is None else inner._show()]))

    def _show(self) -> str:
        """Returns the work, the number of its steps, and its current step."""
        done = self._steps()
        steps = f"{done:,} of {self.total:,}" if self.total else f"{done:,}" if done else ""
        return ", ".join(filter(None, [self.what, steps, self._step()]))

    def clear(self) -> None:
        """Removes what a terminal shows, until the next update."""
        if not self._is_visible or self._stream is None or not self._stream.isatty():
            return
        self._is_visible = False
        if self._bar is not None:
            self._bar.clear()
        else:
            self._stream.write(f"{_line('')}\r")
            self._stream.flush()

    def draw_until_end(self) -> None:
        """Shows the progress repeatedly."""
        while not self._ended.wait(_INTERVAL):
            self.draw()

    def end(self) -> None:
        """Removes the progress from a terminal; in Jupyter, the last update stays."""
        self._ended.set()
        self.clear()
        if self._is_visible and self._stream is not None and _is_of_jupyter(self._stream):
            self._stream.write("\n")
        if self._bar is not None:
            self._bar.close()


class _ClearingStream:
    """A stream that clears a progress before it writes."""

    def __init__(self, stream: Any, shown: Progress) -> None:
        self._to, self._shown = stream, shown

    def write(self, text: str) -> int:
        """Writes a text."""
        self._shown.clear()
        return self._to.write(text)

    def flush(self) -> None:
        """Writes out what the stream holds."""
        self._to.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)


def _tqdm() -> Any:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None


def _line(text: str) -> str:
    """Returns a text that overwrites the line of a terminal, and fits into it."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH + 1, 1)).columns - 1)
    return f"\r{text[:width]:<{width}}"


def _is_of_jupyter(stream: TextIO) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


def _is_shown(stream: TextIO | None) -> bool:
    setting = os.environ.get(VARIABLE, "")
    if stream is None or setting == "0":
        return False
    return setting == "1" or stream.isatty() or _is_of_jupyter(stream)


def note_step(text: str) -> None:
    """Records the current step of the innermost block, if there is one."""
    shown = _outer.get()
    if shown is not None:
        shown.note = text


_outer: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextlib.contextmanager
def progress(what: str, total: int | None = None, count: Callable[[], int] | None = None) -> Generator[Progress]:
    """Shows the progress of a block; inside another such block, as the current step of the outer block.

    Args:
      what: the work.
      total: the number of its steps, if known.
      count: returns the number of steps done; by default, the steps that `step` recorded.
    """
    stream, outer = sys.stderr, _outer.get()
    is_shown = outer is not None or _is_shown(stream)
    shown = Progress(what, total, count, stream if is_shown else None)
    if outer is not None:
        before, outer.inner = outer.inner, shown
        token = _outer.set(shown)
        try:
            yield shown
        finally:
            _outer.reset(token)
            outer.inner = before
        return
    if not is_shown:
        yield shown
        return
    thread = threading.Thread(target=shown.draw_until_end, name="jaxmesh progress", daemon=True)
    thread.start()
    token = _outer.set(shown)
    try:
        yield shown
    finally:
        _outer.reset(token)
        shown.end()
        thread.join()
