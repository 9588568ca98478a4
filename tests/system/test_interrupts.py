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
import gc, signal, time
from jaxmesh.runtime.interrupts import raise_interrupts

def callback(*_):
    gc.callbacks.remove(callback)
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
raise_interrupts()
gc.callbacks.append(callback)
gc.collect()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_of_the_garbage_collector_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", CALLBACK], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


SWALLOWED = """
import signal, time
from jaxmesh.runtime.interrupts import raise_interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)
raise_interrupts()
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_a_library_catches_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
