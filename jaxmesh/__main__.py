"""`python -m jaxmesh`."""

import os
import signal
import sys


def _interrupted(number: int, frame: object) -> None:
    """Ends the process with the code of an interrupted command, without a traceback: imports take seconds."""
    os._exit(130)


_before = signal.getsignal(signal.SIGINT)
if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)

from jaxmesh.cli.main import main  # noqa: E402

if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, _before)

if __name__ == "__main__":
    sys.exit(main())
