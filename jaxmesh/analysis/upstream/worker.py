"""The process that holds Tenstorrent's compiler; it starts once and serves programs until this process ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxmesh.analysis.environments import cache_folder, clean_environment
from jaxmesh.analysis.machines import Machine
from jaxmesh.analysis.upstream.descriptors import describe_system
from jaxmesh.analysis.upstream.environment import UPSTREAM, Plugin
from jaxmesh.errors import UpstreamError
from jaxmesh.runtime.progress import progress
from jaxmesh.validate import alone

RUNNER = Path(__file__).parent / "runner" / "__main__.py"
PROGRAM = "the program"
STARTS_WITHIN = 180.0
"""The time limit of a start, in seconds; the first one after an installation reads a library of 140 MB."""
_ASSETS = "libtt-tt-metal-runtime-assets-*"
"""The files for kernels, 420 MB, which the plugin unpacks into its temporary folder unless they are there."""
_MOST = 2
"""The most workers at a time; each holds the library in its memory."""

_lock = threading.Lock()
_workers: dict[tuple[Plugin, str], Worker] = {}


def compile_on_worker(
    plugin: Plugin, machine: Machine, job: Mapping[str, Any], timeout: float, meanwhile: Callable[[], object] | None
) -> tuple[Mapping[str, Any], str]:
    """Returns the worker's answer to a job, and what the compiler wrote meanwhile; starts a worker if necessary.

    `meanwhile` runs in this process between the job and its answer.

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
                worker.send(job)
                if meanwhile is not None:
                    meanwhile()
                answer = worker.answer(timeout)
        except BaseException:
            worker.close()
            raise
        _workers[key] = worker
        return answer


@atexit.register
def close_workers() -> None:
    """Ends the processes of the compiler."""
    with _lock:
        while _workers:
            _workers.popitem()[1].close()


class Worker:
    """A running process of the compiler for one machine, with a temporary folder that no other process uses."""

    def __init__(self, plugin: Plugin, machine: Machine) -> None:
        # Two plugins that share a temporary folder delete each other's description.
        self._scratch = tempfile.TemporaryDirectory(prefix="jaxmesh-upstream-")
        folder = Path(self._scratch.name)
        self._plugin, self._log = plugin, folder / "log"
        description = folder / f"{machine.name}.ttsys"
        description.write_bytes(describe_system(machine))
        _link_assets(folder)
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
        unpacked = cache_folder() / "upstream-assets"
        unpacked.mkdir(parents=True, exist_ok=True)
        # Each start unpacks the plugin's files anew: two at once fail.
        with contextlib.ExitStack() as unpacking:
            with progress(f"{plugin} starts"):
                unpacking.enter_context(alone(unpacked))
            self._process = self._start([str(c) for c in command], folder, variables, writer)
            self._unpacking = unpacking.pop_all()
        self._has_started, self._logged = False, 0

    def _start(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], writer: int
    ) -> subprocess.Popen[bytes]:
        try:
            with self._log.open("wb") as log:
                return subprocess.Popen(
                    command, cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=log, stderr=log,
                    pass_fds=[writer], start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            os.close(self._replies)
            raise UpstreamError(f"{command[0]!r} cannot be started: {error}; {UPSTREAM.get}.") from None
        finally:
            os.close(writer)

    def is_alive(self) -> bool:
        """Returns True if the process runs."""
        return self._process.poll() is None

    def send(self, job: Mapping[str, Any]) -> None:
        """Sends a job, also to a process that still starts."""
        stdin = self._process.stdin
        assert stdin is not None
        self._logged = self._log.stat().st_size
        try:
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # The process has died; the missing reply tells how.

    def answer(self, timeout: float) -> tuple[Mapping[str, Any], str]:
        """Returns the answer to the job that was sent, and what the compiler wrote meanwhile."""
        if not self._has_started:
            self._wait_for_start()
        answer = self._reply(timeout, PROGRAM)
        _keep_assets(self._log.parent)
        return answer, self._log.read_bytes()[self._logged :].decode("utf-8", "replace")

    def _wait_for_start(self) -> None:
        plugin = self._plugin
        with progress(f"{plugin} starts"), self._unpacking:
            answer = self._reply(STARTS_WITHIN, "its start")
        if "unusable" in answer:
            self.close()
            raise UpstreamError(
                f"{plugin} of {str(plugin.library)!r} cannot compile: {' '.join(answer['unusable'].split())}; jaxmesh "
                f"is tested with {UPSTREAM.requirement} {UPSTREAM.tested}: {UPSTREAM.get}."
            )
        self._has_started, self._logged = True, int(answer["logged"])

    def _reply(self, timeout: float, what: str) -> Mapping[str, Any]:
        end = time.monotonic() + timeout
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                raise UpstreamError(
                    f"{self._plugin} took more than {timeout:g} s for {what}; allow more with timeout=."
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
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            os.close(self._replies)
        self._unpacking.close()
        self._scratch.cleanup()


def _link_assets(folder: Path) -> None:
    for kept in (cache_folder() / "upstream-assets").glob(_ASSETS):
        (folder / kept.name).symlink_to(kept)


def _keep_assets(folder: Path) -> None:
    """Moves what the plugin unpacked into the cache, if that is on the same file system."""
    for found in folder.glob(_ASSETS):
        kept = cache_folder() / "upstream-assets" / found.name
        if found.is_symlink() or kept.exists():
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            found.rename(kept)
        except OSError:
            continue
        found.symlink_to(kept)
