"""Interrupts of a command while it starts and ends: the import of JAX takes half a second.

`import jaxmesh` reads this module first, so it imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""The shell's exit code of a program that SIGINT ended."""
_SECONDS = 2.0
"""How long an interrupted command may take to end."""


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def end_without_traceback() -> None:
    """Lets SIGINT end the process at once, with the exit code of the shell, unless the process handles it otherwise."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interrupt):
        signal.signal(signal.SIGINT, _end)


def raise_interrupts() -> None:
    """Lets SIGINT raise `KeyboardInterrupt` again, also where Python or a library loses the exception."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _end):
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _interrupt_again


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises the exception, and again if the command has not ended some time later."""
    _repeat(_SECONDS)
    raise KeyboardInterrupt


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Repeats an interrupt of a callback that cannot raise, as JAX's of the garbage collector; Python would go on."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _repeat(0.01)
    else:
        sys.__unraisablehook__(lost)


def _repeat(seconds: float) -> None:
    # A signal to the thread ends its blocking calls, too.
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()


def starts_command() -> bool:
    """Returns whether the process was started as `jaxmesh` or as `python -m jaxmesh`, not by a program of the user."""
    if sys.argv[:1] == ["-m"]:
        return "jaxmesh" in sys.orig_argv
    return bool(sys.argv) and os.path.splitext(os.path.basename(sys.argv[0]))[0] == "jaxmesh"
