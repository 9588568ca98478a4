"""Interrupts of a command while it starts and ends: the import of JAX takes half a second.

`import jaxmesh` reads this module first, so it imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""The shell's exit code of a program that SIGINT ended."""


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def end_without_traceback() -> None:
    """Lets SIGINT end the process at once, with the exit code of the shell, unless the process handles it otherwise."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_interrupts() -> None:
    """Lets SIGINT raise `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def starts_command() -> bool:
    """Returns whether the process was started as `jaxmesh` or as `python -m jaxmesh`, not by a program of the user."""
    if sys.argv[:1] == ["-m"]:
        return "jaxmesh" in sys.orig_argv
    return bool(sys.argv) and os.path.splitext(os.path.basename(sys.argv[0]))[0] == "jaxmesh"
