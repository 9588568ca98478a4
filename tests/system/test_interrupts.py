"""An interrupt at any moment of a command, its start included, ends it with 130 and without a traceback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from jaxmesh.runtime.interrupts import INTERRUPTED

# A shell starts what runs in the background with interrupts ignored.
START = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
MODULES = ("numpy", "jax._src.core", "jaxmesh.errors", "jaxmesh.cli.demo.model")
STEPS = ("run the unsharded model", "trace the", "compile it")


@pytest.mark.parametrize("moment", [*MODULES, *STEPS])
def test_an_interrupt_leaves_no_traceback(moment: str) -> None:
    # Python prints a line for each module that it has imported.
    command = [sys.executable, "-c", START, sys.executable, "-X", "importtime", "-m", "jaxmesh", "demo"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        reached = next((s for s in process.stderr if re.search(rf"[] |]{re.escape(moment)}\b", s)), None)
        process.send_signal(signal.SIGINT)
        after = process.stderr.read()
    assert reached is not None
    assert "Traceback" not in after
    assert process.returncode == INTERRUPTED


CALLBACK = """
def callback(*_):
    gc.callbacks.remove(callback)
    signal.raise_signal(signal.SIGINT)

gc.callbacks.append(callback)
gc.collect()
"""
CAUGHT = """
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""
LOST = """
import gc, signal, time
from jaxmesh.runtime.interrupts import raise_interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)
raise_interrupts()
{lost}
start = time.monotonic()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted" if time.monotonic() - start < 30 else "late")
"""


@pytest.mark.parametrize("lost", [CALLBACK, CAUGHT], ids=["in a callback of the garbage collector", "by a library"])
def test_an_interrupt_that_is_lost_comes_again(lost: str) -> None:
    command = [sys.executable, "-c", LOST.format(lost=lost)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
