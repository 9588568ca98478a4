"""Several processes: starts them on this machine, and joins their devices into one system.

`jax.distributed` does the work. This module adds settings that end every wait when a process dies, and a runner of
local processes, which `jaxmesh processes 2 --devices 4 script.py` calls.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, MeshError
from jaxmesh.jaxprs.backend import backend_started, bind_collectives
from jaxmesh.jaxprs.typed import typed
from jaxmesh.runtime.scratch import end_with, has_ended, kill_group
from jaxmesh.sharding.mesh import emulate
from jaxmesh.validate import as_tuple, quote

COORDINATOR, COUNT, NUMBER, DEVICES = (
    f"JAXMESH_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS", "PROCESS_DEVICES")
)
"""The environment variables with which a runner passes the arguments of `initialize_processes` to its processes."""

Say = Callable[[int, str], None]


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
    """Joins this process with others: afterwards `jax.devices()` and `make_mesh` include the devices of all
    processes.

    This is `jax.distributed.initialize` with emulated devices and with time limits: a killed process ends the
    others within `death_timeout`, and an uncaught exception ends its process at once, where JAX would deadlock at the
    exit. JAX's service asks for no password: a program that reaches the port of process 0 can join and end the job. It
    listens on loopback alone if `coordinator_address` is there; otherwise use a trusted network. Call this before
    anything runs on JAX. A process that `run_processes` or `jaxmesh processes` started needs no argument.

    Args:
      coordinator_address: `"host:port"` of process 0; the same in every process.
      num_processes: the number of processes.
      process_id: the number of this process, from 0.
      local_devices: the number of CPU devices that this process emulates; by default set by XLA_FLAGS or `emulate`.
      connect_timeout: seconds to wait for the others; XLA ends process 0 (SIGABRT) if they do not connect.
      death_timeout: seconds (at least 10) after which a process without a heartbeat counts as dead.
      exit_timeout: seconds that a process waits at its end for the others to end.

    Raises:
      ArgumentTypeError: an argument is missing and not set by a runner, or is out of range.
      MeshError: JAX's backend has started, the process has joined already, or process 0 cannot be reached.

    >>> import jaxmesh as jm
    >>> jm.initialize_processes("127.0.0.1:1234", 2, 2)
    Traceback (most recent call last):
    ...
    jaxmesh.errors.ArgumentTypeError: process_id is the number of a process, from 0 to 1, got 2.
    """
    address = os.environ.get(COORDINATOR) if coordinator_address is None else coordinator_address
    count = _number("num_processes", num_processes, COUNT)
    number = _number("process_id", process_id, NUMBER)
    if not isinstance(address, str) or not _is_address(address):
        raise ArgumentTypeError(
            f'coordinator_address is the "host:port" of process 0, with a port from 1 to 65535, got {quote(address)}.'
        )
    if count < 1:
        raise ArgumentTypeError(f"num_processes is the number of processes, at least 1, got {count}.")
    if not 0 <= number < count:
        raise ArgumentTypeError(f"process_id is the number of a process, from 0 to {count - 1}, got {number}.")
    _check_least("connect_timeout", connect_timeout, 1)
    _check_least("death_timeout", death_timeout, 10)
    _check_least("exit_timeout", exit_timeout, 1)
    if local_devices is None and DEVICES in os.environ:
        local_devices = _number("local_devices", None, DEVICES)
    if local_devices is not None and (_integer(local_devices) or 0) < 1:
        raise ArgumentTypeError(f"local_devices is a positive number of devices, got {quote(local_devices)}.")
    if jax.distributed.is_initialized():
        raise MeshError("this process has joined others already; call initialize_processes once.")
    if backend_started():
        raise MeshError(
            f"JAX's backend has started with {typed.device_count()} devices, and cannot be joined with other processes "
            "any more; call initialize_processes before anything runs on JAX."
        )
    if local_devices is not None:
        emulate(local_devices)
    if typed.config.jax_cpu_collectives_implementation in (None, "", "none"):
        typed.config.update("jax_cpu_collectives_implementation", "gloo")
    if number:
        _await_coordinator(address, connect_timeout)
    jax.distributed.initialize(
        address,
        count,
        number,
        # JAX listens on all interfaces, without a password.
        coordinator_bind_address=address if _is_loopback(address) else None,
        initialization_timeout=int(connect_timeout),
        heartbeat_timeout_seconds=int(death_timeout),
        shutdown_timeout_seconds=int(exit_timeout),
    )
    if _is_loopback(address) and typed.config.jax_cpu_collectives_implementation == "gloo":
        bind_collectives(address.rpartition(":")[0].strip("[]"))
    _leave_on_error(number)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def _integer(value: Any) -> int | None:
    whole: Any = value
    return int(whole) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _check_least(name: str, seconds: object, least: int) -> None:
    if (_integer(seconds) or 0) < least:
        raise ArgumentTypeError(f"{name} is a number of seconds, at least {least}, got {quote(seconds)}.")


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"[!-~]+:([0-9]{1,5})", text)
    return match is not None and 1 <= int(match[1]) < 1 << 16


def _number(name: str, argument: object, variable: str) -> int:
    text = os.environ.get(variable, "")
    number = _integer(argument) if argument is not None else int(text) if text.isdecimal() else None
    if number is None:
        raise ArgumentTypeError(
            f"{name} is a number, got {quote(argument)}; it may be left out in a process that jaxmesh.run_processes or "
            f"`jaxmesh processes` has started, which sets {variable} (it is {text!r})."
        )
    return number


def _await_coordinator(address: str, seconds: float) -> None:
    """Waits until process 0 listens; if it never does, JAX's connection would end the interpreter."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=max(end - time.monotonic(), 0.1)).close()
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                raise MeshError(
                    f"no process answers at coordinator_address {address!r}, after {seconds} seconds (connect_timeout) "
                    f"of waiting for process 0 ({error}); start it, or name the address at which it can be reached."
                ) from None
        time.sleep(0.1)


def _leave_on_error(number: int) -> None:
    """Makes an uncaught exception end the process without waiting for the other processes, which wait for it."""
    before = sys.excepthook

    def leave(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        before(kind, error, trace)
        print(f"jaxmesh: process {number} ends after this error, and the others with it.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = leave


# --- the runner ------------------------------------------------------------------------------------------------------


interrupted = threading.Event()
"""A flag for signal handlers: once set, `run_processes` ends and stops all processes it started."""


_LAST_LINES = 1000
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: its exit code (negative: the signal), its output (its last lines if `say` received each
    line), and True if the runner stopped it."""

    code: int
    output: str
    stopped: bool


class _Running:
    """A process with the thread that reads its output."""

    def __init__(self, number: int, command: Sequence[str], env: Mapping[str, str], say: Say | None):
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        end_with(None, self.process.pid)
        self.lines: list[str] = []
        self.stopped = False
        pipe = self.process.stdout
        assert pipe is not None
        self.reader = threading.Thread(target=self._read, args=(number, pipe, say), daemon=True)
        self.reader.start()

    def _read(self, number: int, pipe: IO[str], say: Say | None) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST_LINE):
                self.lines.append(line)
                if say is not None:
                    # The caller has read the earlier lines.
                    del self.lines[:-_LAST_LINES]
                    say(number, line)

    def stop(self) -> None:
        """Stops the process and its child processes by SIGKILL."""
        self.stopped = self.process.poll() is None
        if self.stopped:
            kill_group(self.process.pid)
        self.process.wait()
        has_ended(self.process.pid)
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
    """Runs a Python program in several processes of this machine, and waits for them.

    The program calls `jaxmesh.initialize_processes()`. No process outlives this call, also if this process is killed.
    If a process fails, `say` gets its exit code or signal at once, and the others have `grace` seconds to notice it.

    Args:
      count: the number of processes.
      command: arguments of the Python interpreter: a script and its arguments, or `["-c", text]`.
      devices: the number of devices that each process emulates.
      timeout: seconds, their start included, until all remaining processes are killed.
      grace: seconds between the first failure and the end of the others.
      env: environment variables; by default those of this process.
      say: called with the number of a process and a line of its output.

    Returns:
      The end of each process, in order.

    Raises:
      ArgumentTypeError: a number of processes, devices or seconds is not positive, or the command is not a list.

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
    arguments = _arguments(command)
    running: list[_Running] = []
    # Bind without listening: no other program gets the port, and the coordinator, which reuses ports, can take it.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR), 1)
        reserved.bind(("127.0.0.1", 0))
        shared = {COORDINATOR: f"127.0.0.1:{reserved.getsockname()[1]}", COUNT: str(count), DEVICES: str(devices)}
        shared = {**(os.environ if env is None else env), **shared}
        end = time.monotonic() + timeout
        try:
            for k in range(count):
                running.append(_Running(k, [sys.executable, "-u", *arguments], {**shared, NUMBER: str(k)}, say))
            _wait(running, end, grace, say)
        finally:
            for r in running:
                r.stop()
    return [Ended(r.process.returncode, "".join(r.lines), r.stopped) for r in running]


def _arguments(command: object) -> list[str]:
    """Returns the interpreter's arguments, paths as text."""
    items = ()
    if not isinstance(command, (str, bytes)):
        items = as_tuple("run_processes", command, "a list of the interpreter's arguments as command")
    arguments = [os.fspath(x) if isinstance(x, PurePath) else x for x in items]
    if not arguments or not all(isinstance(x, str) for x in arguments):
        raise ArgumentTypeError(f"command is a list of the interpreter's arguments, got {quote(command)}.")
    return arguments


def _wait(running: Sequence[_Running], end: float, grace: float, say: Say | None) -> None:
    failed = False
    while any(r.process.poll() is None for r in running) and time.monotonic() < end and not interrupted.is_set():
        number = next((k for k, r in enumerate(running) if r.process.poll()), None)
        if number is not None and not failed:
            failed, end = True, min(end, time.monotonic() + grace)
            code = running[number].process.returncode
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            if say is not None:
                say(number, f"jaxmesh: process {number} ended with {how}; the others have {grace:g} s to end.\n")
        time.sleep(0.02)
