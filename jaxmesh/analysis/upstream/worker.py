"""The process that holds Tenstorrent's compiler; it starts once and serves programs until this process ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxmesh.analysis.environments import clean_environment
from jaxmesh.analysis.machines import Machine
from jaxmesh.analysis.upstream.descriptors import describe_system
from jaxmesh.analysis.upstream.environment import UPSTREAM, Plugin
from jaxmesh.errors import UpstreamError
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.scratch import end_with, kill_group, make_folder, remove_folder

R = TypeVar("R")
RUNNER = Path(__file__).parent / "runner" / "__main__.py"
PROGRAM = "the program"
_JOB = "program"
"""The folder of a program, in that of its compiler."""
STARTS_WITHIN = 180.0
"""The time limit of a start, in seconds; the first one after an installation reads a library of 140 MB."""
_ASSETS = "libtt-tt-metal-runtime-assets-*"
"""The files for kernels, which the plugin unpacks into its temporary folder."""
_MOST = 2
"""The most workers at a time; each holds the library in its memory."""

_lock = threading.Lock()
_workers: dict[tuple[Plugin, str], Worker] = {}


def compile_on_worker(
    plugin: Plugin,
    machine: Machine,
    text: str,
    job: Mapping[str, object],
    timeout: float,
    meanwhile: Callable[[], object] | None,
    read: Callable[[Path, Mapping[str, Any], str], R],
) -> R:
    """Returns what `read` makes of the folder of a job, the worker's answer, and what the compiler wrote meanwhile.

    Starts a worker if necessary. `meanwhile` runs in this process between the job and its answer.

    Raises:
      UpstreamError: the compiler does not start, takes no description, crashed, or took longer than `timeout` seconds.
    """
    key = plugin, machine.name
    with _lock:
        worker = _workers.pop(key, None)
        if worker is None or not worker.is_alive():
            while len(_workers) >= _MOST:
                _workers.pop(next(iter(_workers))).close()
            worker = Worker(plugin, machine)
        try:
            with progress(f"{plugin} compiles"):
                folder = worker.send(text, job)
                if meanwhile is not None:
                    meanwhile()
                answer = worker.answer(timeout)
        except BaseException:
            worker.close()
            raise
        _workers[key] = worker
        return read(folder, *answer)


def with_assets(plugin: Plugin, machine: Machine, use: Callable[[Path], object]) -> None:
    """Starts the compiler, and calls `use` with the folder that it unpacks, which goes afterwards.

    Raises:
      UpstreamError: the compiler does not start.
    """
    worker = Worker(plugin, machine, use)
    try:
        worker.wait_for_start()
    finally:
        worker.close()


def _forget_workers() -> None:
    """Leaves the processes of the compiler to the process that was forked."""
    global _lock
    _lock = threading.Lock()
    while _workers:
        _workers.popitem()[1].abandon()


os.register_at_fork(after_in_child=_forget_workers)


@atexit.register
def close_workers() -> None:
    """Ends the processes of the compiler."""
    with _lock:
        while _workers:
            _workers.popitem()[1].close()


class Worker:
    """A running process of the compiler for one machine, with a temporary folder that no other process uses."""

    def __init__(self, plugin: Plugin, machine: Machine, assets: Callable[[Path], object] = lambda _: None) -> None:
        self._with_assets = assets
        # Two plugins that share a temporary folder delete each other's description.
        folder = make_folder("jaxmesh-compiler-")
        self._plugin, self._folder, self._log = plugin, folder, folder / "log"
        description = folder / f"{machine.name}.ttsys"
        description.write_bytes(describe_system(machine))
        self._replies, writer = os.pipe()
        self._pending = b""
        variables = clean_environment() | {
            # The XLA of the plugin ends at a flag of another version.
            "XLA_FLAGS": "",
            "TMPDIR": str(folder),
            "TT_COMPILE_ONLY_SYSTEM_DESC": str(description),
            "TTXLA_LOGGER_LEVEL": "ERROR",
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }
        command = [plugin.python, RUNNER, plugin.library, description, writer]
        self._files = description, self._log
        with progress(f"{plugin} starts"):
            self._process = self._start([str(c) for c in command], folder, variables, writer)
        self._has_started, self._logged = False, 0

    def _start(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], writer: int
    ) -> subprocess.Popen[bytes]:
        try:
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    command, cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=log, stderr=log,
                    pass_fds=[writer], start_new_session=True,
                )  # fmt: skip
            end_with(folder, process.pid)
            return process
        except OSError as error:
            os.close(self._replies)
            remove_folder(folder)
            raise UpstreamError(f"{command[0]!r} cannot be started: {error}; {UPSTREAM.get}.") from None
        finally:
            os.close(writer)

    def is_alive(self) -> bool:
        """Returns True if the process runs, and nobody has removed its files."""
        if all(p.exists() for p in self._files) and self._process.poll() is None:
            return True
        self.close()
        return False

    def send(self, text: str, job: Mapping[str, object]) -> Path:
        """Sends a job, also to a process that still starts; returns the job's folder."""
        stdin, folder = self._process.stdin, self._folder / _JOB
        assert stdin is not None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "program.mlir").write_text(text, encoding="utf-8")
        self._logged = self._log.stat().st_size
        try:
            stdin.write(json.dumps({**job, "folder": str(folder)}).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # The process has died; the missing reply tells how.
        return folder

    def answer(self, timeout: float) -> tuple[Mapping[str, Any], str]:
        """Returns the answer to the job that was sent, and what the compiler wrote meanwhile."""
        if not self._has_started:
            self.wait_for_start()
        answer = self._reply(timeout, PROGRAM)
        return answer, self._log.read_bytes()[self._logged :].decode("utf-8", "replace")

    def wait_for_start(self) -> None:
        """Waits until the process takes jobs."""
        plugin = self._plugin
        with progress(f"{plugin} starts"):
            answer = self._reply(STARTS_WITHIN, "its start")
        if "unusable" in answer:
            self.close()
            raise UpstreamError(
                f"{plugin} of {str(plugin.library)!r} cannot compile: {' '.join(answer['unusable'].split())}; jaxmesh "
                f"is tested with {UPSTREAM.requirement} {UPSTREAM.tested}: {UPSTREAM.get}."
            )
        self._has_started, self._logged = True, int(answer["logged"])
        # Each start unpacks the files for kernels, 420 MB, which the compiler alone does not read.
        for unpacked in self._folder.glob(_ASSETS):
            self._with_assets(unpacked)
            shutil.rmtree(unpacked, ignore_errors=True)
        self._files = tuple(p for p in self._folder.iterdir() if p.name != _JOB)

    def _reply(self, timeout: float, what: str) -> Mapping[str, Any]:
        end = time.monotonic() + timeout
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                raise UpstreamError(
                    f"{self._plugin} took more than {timeout:g} s for {what}; in Python, timeout= allows more."
                )
            data = os.read(self._replies, 65536)
            if not data:
                raise self._death(what)
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _death(self, what: str) -> UpstreamError:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self._log.read_text(errors="replace").strip().splitlines()
        last = words[-1].strip() if words else "it printed nothing"
        self.close()
        remedy = "report it to Tenstorrent with the program" if what == PROGRAM else UPSTREAM.get
        return UpstreamError(f"{self._plugin} ended with {how} at {what}: {last}; {remedy}.")

    def close(self) -> None:
        """Ends the process, and removes its folder."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            kill_group(self._process.pid)
            self._process.wait()
            with contextlib.suppress(BrokenPipeError):
                # A job that the process has not read is still in the buffer.
                self._process.stdin.close()
            os.close(self._replies)
        remove_folder(self._folder)

    def abandon(self) -> None:
        """Closes this process's ends of the pipes; the process and its folder are another one's."""
        stdin: Any = self._process.stdin
        stdin.detach().close()
        os.close(self._replies)
        self._process.returncode = 0
