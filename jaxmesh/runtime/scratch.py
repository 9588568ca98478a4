"""Temporary folders and processes that are gone after their process, also if it was killed while they were in use.

A small process, the keeper, reads from a pipe which folders and process groups there are. When the pipe ends, it kills
the groups and removes the folders. The keeper is a child of the system's first process: what kills this process with
its children does not kill the keeper.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

_KEEPER = """
import json, os, shutil, signal, sys, time
if os.fork():
    os._exit(0)
kept = {}
for line in sys.stdin:
    folder, group, ends = json.loads(line)
    kept.pop(folder or group, None) if ends else kept.update({folder or group: (folder, group)})
for folder, group in kept.values():
    try:
        os.killpg(group, signal.SIGKILL) if group else None
    except ProcessLookupError:
        pass
    for _ in range(100 if folder else 0):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(0.05)
"""
_lock = threading.Lock()
_pipe: int | None = None


def make_folder(prefix: str, inside: Path | None = None) -> Path:
    """Makes a folder that goes with this process, by default among the temporary ones; no one can guess its name."""
    folder = Path(inside or tempfile.gettempdir(), f"{prefix}{secrets.token_hex(8)}").absolute()
    _tell(folder, None)
    folder.mkdir(mode=0o700)
    return folder


def end_with(folder: Path | None, group: int) -> None:
    """Notes that a process group, which may work in a folder, ends with this process."""
    _tell(folder, group)


def has_ended(group: int) -> None:
    """Notes that a process group without a folder has ended: its number may be another one's."""
    _tell(None, group, ends=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder that was made here."""
    shutil.rmtree(folder, ignore_errors=True)
    _tell(folder, None, ends=True)


@contextlib.contextmanager
def temporary_folder(prefix: str, inside: Path | None = None) -> Generator[Path]:
    """Makes a folder for its body."""
    folder = make_folder(prefix, inside)
    try:
        yield folder
    finally:
        remove_folder(folder)


def run_in(folder: Path, command: Sequence[object], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command that works in a folder, as `subprocess.run` does; it ends with this process, and its children do.

    Raises:
      subprocess.TimeoutExpired: it took longer than `timeout` seconds.
    """
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [str(c) for c in command]
    with subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **pipes, **options) as process:
        end_with(folder, process.pid)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            kill_group(process.pid)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def kill_group(group: int) -> None:
    """Ends the processes of a group at once; a group may be empty."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _tell(folder: Path | None, group: int | None, *, ends: bool = False) -> None:
    global _pipe
    with _lock:
        if _pipe is None:
            reader, _pipe = os.pipe()
            command = [sys.executable, "-I", "-S", "-c", _KEEPER]
            quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": os.sep}
            subprocess.run(command, stdin=reader, start_new_session=True, check=True, **quiet)
            os.close(reader)
        os.write(_pipe, json.dumps([folder and str(folder), group, ends]).encode() + b"\n")


def _leave_keeper() -> None:
    """Leaves the folders to the process that was forked."""
    global _lock, _pipe
    _lock = threading.Lock()
    if _pipe is not None:
        os.close(_pipe)
        _pipe = None


os.register_at_fork(after_in_child=_leave_keeper)
