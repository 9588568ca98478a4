"""Progress of work that takes over two seconds, on standard error.

A terminal shows it, as a bar if tqdm is installed. `JAXMESH_PROGRESS=1` shows it on any standard error, and
`JAXMESH_PROGRESS=0` nowhere. A thread draws it, since most of the time is spent in calls that report nothing, such
as XLA's compiler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, TextIO

from jaxmesh.jaxprs.tracing_state import set_within

VARIABLE = "JAXMESH_PROGRESS"
QUIET = 2.0
"""The number of seconds before progress is shown."""
_INTERVAL, _INTERVAL_IN_A_FILE = 0.5, 10.0
"""The number of seconds between two updates."""


class Progress:
    """The progress of some work.

    Attributes:
      what: the work.
      total: the number of its steps; None if it is not known.
      note: the current step.
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
        self._count, self._stream, self._clock = count, stream, clock
        self._done, self._begin, self._drawn = 0, clock(), 0.0
        self._bar: Any = None
        self._ended = threading.Event()

    def step(self, note: str = "") -> None:
        """Records that a step is done, and the next step."""
        self._done += 1
        self.note = note

    def draw(self) -> None:
        """Shows the progress, unless the work or the last update began just now."""
        seconds, stream = self._clock() - self._begin, self._stream
        if stream is None or seconds < QUIET:
            return
        on_terminal = stream.isatty()
        if self._drawn and seconds - self._drawn < (_INTERVAL if on_terminal else _INTERVAL_IN_A_FILE):
            return
        self._drawn = seconds
        done = self._done if self._count is None else self._count()
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
            self._bar.set_postfix_str(self.note)
            return
        steps = f"{done:,} of {self.total:,}" if self.total else f"{done:,}" if done else ""
        text = ", ".join(filter(None, [f"jaxmesh: {self.what}", steps, self.note, f"{seconds:.0f} s"]))
        # The cursor returns to the start of the line, so that later output overwrites it.
        stream.write(f"\r{text[:100]:<100}\r" if on_terminal else f"{text}\n")
        stream.flush()

    def draw_until_end(self) -> None:
        """Shows the progress repeatedly."""
        while not self._ended.wait(_INTERVAL):
            self.draw()

    def end(self) -> None:
        """Removes the progress from a terminal."""
        self._ended.set()
        if self._bar is not None:
            self._bar.close()
        elif self._drawn and self._stream is not None and self._stream.isatty():
            self._stream.write(f"\r{'':<100}\r")
            self._stream.flush()


def _tqdm() -> Any:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None


def _is_shown(stream: TextIO | None) -> bool:
    setting = os.environ.get(VARIABLE, "")
    return stream is not None and setting != "0" and (setting == "1" or stream.isatty())


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
    shown = Progress(what, total, count, stream)
    if outer is not None:
        outer.note = what
    if outer is not None or not _is_shown(stream):
        yield shown
        return
    thread = threading.Thread(target=shown.draw_until_end, name="jaxmesh progress", daemon=True)
    thread.start()
    try:
        with set_within(_outer, shown):
            yield shown
    finally:
        shown.end()
        thread.join()
