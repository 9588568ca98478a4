"""Several processes: to start them, and to make one system of their devices.

`jax.distributed` does the work. What is added are settings under which nothing waits without bound when a process
dies, and a runner for local processes: `python -m jaxmesh.runtime.distributed.launcher 2 --devices 4 script.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any, cast

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, MeshError
from jaxmesh.jaxprs.backend import backend_started
from jaxmesh.sharding.mesh import emulate
from jaxmesh.validate import as_tuple, is_system_text, quote

COORDINATOR, COUNT, NUMBER, DEVICES = (
    f"JAXMESH_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS", "PROCESS_DEVICES")
)
"""The environment variables by which a runner tells its processes of each other."""

_MOST_SECONDS = 10**6
Say = Callable[[int, str], None]
_config: Any = jax.config


def initialize_processes(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_devices: int | None = None,
    connect_timeout: int = 60,
    death_timeout: int = 20,
    exit_timeout: int = 300,
) -> None:
    """Joins this process with others: afterwards `jax.devices()`, and so `make_mesh`, has the devices of all.

    This is `jax.distributed.initialize` with emulated devices and with bounds: a process that is killed ends the
    others within `death_timeout`, and an exception that nobody catches ends its process at once, where JAX would have
    it wait for the others at the exit, while they wait for it. Call it before anything runs on JAX. In a process that
    was started by `run_processes` or `python -m jaxmesh.runtime.distributed.launcher` no argument is needed.

    Args:
      coordinator_address: `"host:port"` of process 0; the same in every process.
      num_processes: how many there are.
      process_id: the number of this one, from 0.
      local_devices: how many CPU devices this process emulates; by default what XLA_FLAGS or `emulate` said.
      connect_timeout: seconds to wait for the others to come. Process 0 is ended by XLA (SIGABRT) when they do not.
      death_timeout: seconds (at least 10) after which a process that is not heard of is taken for dead.
      exit_timeout: seconds that a process that is done waits for the others to be.

    Raises:
      ArgumentTypeError: an argument is missing and no runner said it, or it is out of range.
      MeshError: JAX's backend has started, the processes are joined already, or process 0 cannot be reached.

    >>> import jaxmesh as jm
    >>> jm.initialize_processes("127.0.0.1:1234", 2, 2)
    Traceback (most recent call last):
    ...
    jaxmesh.errors.ArgumentTypeError: process_id is the number of a process, from 0 to 1, got 2.
    """
    around = os.environ
    address = around.get(COORDINATOR) if coordinator_address is None else coordinator_address
    count = _number("num_processes", num_processes, COUNT)
    number = _number("process_id", process_id, NUMBER)
    if not isinstance(address, str) or not _is_address(address):
        raise ArgumentTypeError(
            f'coordinator_address is the "host:port" of process 0, with a port from 1 to 65535, got {quote(address)}.'
        )
    if count < 1:
        raise ArgumentTypeError(f"num_processes is how many processes there are, at least 1, got {count}.")
    if not 0 <= number < count:
        raise ArgumentTypeError(f"process_id is the number of a process, from 0 to {count - 1}, got {number}.")
    for name, seconds, least in (
        ("connect_timeout", connect_timeout, 1),
        ("death_timeout", death_timeout, 10),
        ("exit_timeout", exit_timeout, 1),
    ):
        whole = _integer(seconds)
        if whole is None or not least <= whole <= _MOST_SECONDS:
            raise ArgumentTypeError(
                f"{name} is a number of seconds, at most {_MOST_SECONDS} and at least {least}, got {quote(seconds)}."
            )
    if local_devices is None and DEVICES in around:
        local_devices = _number("local_devices", None, DEVICES)
    if local_devices is not None and (_integer(local_devices) or 0) < 1:
        raise ArgumentTypeError(f"local_devices is a positive number of devices, got {quote(local_devices)}.")
    if jax.distributed.is_initialized():
        raise MeshError("this process is joined with others already; call initialize_processes once.")
    if backend_started():
        raise MeshError(
            f"JAX's backend has started with {jax.device_count()} devices, and cannot be joined with other processes "
            "any more; call initialize_processes before anything runs on JAX."
        )
    if local_devices is not None:
        emulate(local_devices)
    if _config.jax_cpu_collectives_implementation in (None, "", "none"):
        _config.update("jax_cpu_collectives_implementation", "gloo")
    if number:
        _await_coordinator(address, connect_timeout)
    jax.distributed.initialize(
        address,
        count,
        number,
        initialization_timeout=int(connect_timeout),
        heartbeat_timeout_seconds=int(death_timeout),
        shutdown_timeout_seconds=int(exit_timeout),
    )
    _leave_on_error(number)


def _integer(value: Any) -> int | None:
    whole: Any = value
    return int(whole) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return (
        re.fullmatch(r"[!-~]+", host) is not None
        and re.fullmatch(r"[0-9]{1,5}", port) is not None
        and (1 <= int(port) < 1 << 16)
    )


def _number(name: str, given: Any, variable: str) -> int:
    text = os.environ.get(variable, "")
    found = _integer(given) if given is not None else int(text) if text.isdecimal() else None
    if found is None:
        raise ArgumentTypeError(
            f"{name} is a number, got {quote(given)}; without it the process is one that jaxmesh.run_processes or "
            f"python -m jaxmesh.runtime.distributed.launcher has started, which sets {variable} (it is {text!r})."
        )
    return found


def _await_coordinator(address: str, seconds: float) -> None:
    """Waits until process 0 is there; JAX's own connection ends the interpreter where it never comes.

    Raises:
      MeshError: nobody answers at the address.
    """
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=max(end - time.monotonic(), 0.1)).close()
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                raise MeshError(
                    f"nobody answers at coordinator_address {address!r}, after {seconds} seconds (connect_timeout) of "
                    f"waiting for process 0 ({error}); start it, or name the address at which it can be reached."
                ) from None
        time.sleep(0.1)


def _leave_on_error(number: int) -> None:
    """An exception that nobody catches ends the process without waiting for those that wait for it."""
    before = sys.excepthook

    def leave(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        before(kind, error, trace)
        print(f"jaxmesh: process {number} ends after this error, and the others with it.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = leave


# --- the runner ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), what it printed, and whether the runner stopped it."""

    code: int
    output: str
    stopped: bool


class _Running:
    """A process with the thread that reads what it prints."""

    def __init__(self, number: int, command: Sequence[str], around: Mapping[str, str], say: Say | None):
        self.process = subprocess.Popen(
            [*command],
            env=dict(around),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.stopped = False
        pipe = self.process.stdout
        assert pipe is not None
        self.reader = threading.Thread(target=self._read, args=(number, pipe, say), daemon=True)
        self.reader.start()

    def _read(self, number: int, pipe: IO[str], say: Say | None) -> None:
        with pipe:
            for line in pipe:
                self.lines.append(line)
                if say is not None:
                    say(number, line)

    def stop(self) -> None:
        """Kills it and what it has started."""
        if self.process.poll() is None:
            self.stopped = True
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(5)


def run_processes(
    count: int,
    command: Sequence[str],
    *,
    devices: int = 1,
    timeout: float = 600,
    grace: float = 60,
    env: Mapping[str, str] | None = None,
    say: Say | None = None,
) -> list[Ended]:
    """Runs a Python program in so many processes of this machine, and waits for them.

    The program calls `jaxmesh.initialize_processes()`. None of the processes outlives this call: when one fails, the
    others have `grace` seconds to notice it.

    Args:
      count: how many.
      command: arguments of the Python interpreter: a script and its arguments, or `["-c", text]`.
      devices: how many devices each emulates.
      timeout: seconds for all of it; what still runs then is killed.
      grace: seconds between the first failure and the end of the others.
      env: variables of the environment, instead of this process's.
      say: called with the number of a process and a line that it has printed.

    Returns:
      How each ended, in order.

    Raises:
      ArgumentTypeError: no positive number of processes, devices or seconds, no command, or no environment.

    >>> import jaxmesh as jm
    >>> [e.code for e in jm.run_processes(2, ["-c", "print('hello')"])]
    [0, 0]
    """
    for name, value in (("count", count), ("devices", devices)):
        if (_integer(value) or 0) < 1:
            raise ArgumentTypeError(f"{name} is a positive number, got {quote(value)}.")
    for name, seconds in (("timeout", timeout), ("grace", grace)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.number)) or not seconds > 0:
            raise ArgumentTypeError(f"{name} is a positive number of seconds, got {quote(seconds)}.")
    if say is not None and not callable(say):
        raise ArgumentTypeError(f"say is a function of a number and a line, got {quote(say)}.")
    around, words = _environment(env), _arguments(command)
    running: list[_Running] = []
    # Bound and never listened on: nobody else is given the port, and the coordinator, which reuses ports, can take it.
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR), 1)
        kept.bind(("127.0.0.1", 0))
        around |= {COORDINATOR: f"127.0.0.1:{kept.getsockname()[1]}", COUNT: str(count), DEVICES: str(devices)}
        try:
            with _LEAVE.later():
                for k in range(count):
                    said = {**around, NUMBER: str(k)}
                    running.append(_Running(k, [sys.executable, "-u", *words], said, say))
            _wait(running, time.monotonic() + timeout, grace)
        finally:
            for r in running:
                r.stop()
    return [Ended(r.process.returncode, "".join(r.lines), r.stopped) for r in running]


def _environment(env: Any) -> dict[str, str]:
    """A process's variables; the system takes no others than these."""
    given: Any = os.environ if env is None else env
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"env is a dict of the environment's variables, all of them text, got {quote(given)}.")
    items = dict(cast("Mapping[Any, Any]", given))
    for name, value in items.items():
        if not _is_word(name) or not name or "=" in name or not _is_word(value):
            raise ArgumentTypeError(
                f"env is a dict of the environment's variables, all of them text, got {quote({name: value})} in it."
            )
    return items


def _arguments(command: Any) -> list[str]:
    """The interpreter's arguments; paths are text too."""
    given: tuple[Any, ...] = ()
    if not isinstance(command, (str, bytes)):
        given = as_tuple("run_processes", command, "a list of the interpreter's arguments as command")
    words = [os.fspath(x) if isinstance(x, PurePath) else x for x in given]
    if not words or not all(map(_is_word, words)):
        raise ArgumentTypeError(f"command is a list of the interpreter's arguments, got {quote(command)}.")
    return words


def _is_word(text: Any) -> bool:
    return isinstance(text, str) and is_system_text(text)


def _wait(running: Sequence[_Running], end: float, grace: float) -> None:
    failed = False
    while any(r.process.poll() is None for r in running) and time.monotonic() < end:
        if not failed and any(r.process.poll() for r in running):
            failed, end = True, min(end, time.monotonic() + grace)
        time.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the exit code of the first process that failed, or 0."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxmesh.runtime.distributed.launcher",
        description="Runs a script in several processes of this machine.",
    )
    parser.add_argument("count", type=int, help="how many processes")
    parser.add_argument("--devices", type=int, default=1, help="how many devices each emulates (default: 1)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for all of it (default: 600)")
    parser.add_argument("script", help="the script, which calls jaxmesh.initialize_processes()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    said = parser.parse_args(arguments)
    lock = threading.Lock()

    def say(number: int, line: str) -> None:
        with lock:
            print(f"[{number}] {line.rstrip()}", flush=True)

    # Ended from outside, it ends what it has started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _LEAVE)
    try:
        command = [said.script, *said.arguments]
        ended = run_processes(said.count, command, devices=said.devices, timeout=said.timeout, say=say)
    except ArgumentTypeError as error:
        parser.error(str(error))
    for number, e in enumerate(ended):
        if e.stopped:
            print(f"[{number}] stopped: it did not end by itself.", file=sys.stderr)
    # A process that was stopped is not what went wrong first.
    codes = [e.code for e in sorted(ended, key=lambda e: e.stopped) if e.code]
    return 0 if not codes else codes[0] if codes[0] > 0 else 128 - codes[0]


class _Leave:
    """What the command does when a signal ends it: not while it starts a process, which nobody would know of then."""

    held = False
    asked: int | None = None

    def __call__(self, number: int, _: Any) -> None:
        self.asked = 128 + number
        if not self.held:
            sys.exit(self.asked)

    @contextlib.contextmanager
    def later(self) -> Generator[None]:
        """Puts off what is asked until the end of the block."""
        self.held = True
        try:
            yield
        finally:
            self.held = False
        if self.asked is not None:
            sys.exit(self.asked)


_LEAVE = _Leave()


if __name__ == "__main__":
    sys.exit(main())
