"""Compiled programs of one device, kept in a folder between processes, beside the cache that a user has chosen.

JAX keeps its cache of programs in variables of a module, so this file uses JAX's internals.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from jax._src import compilation_cache, compilation_cache_interface, config

_cache: Any = compilation_cache
_config: Any = config
_interface: Any = compilation_cache_interface
_STATE = ("_cache", "_cache_initialized", "_cache_checked", "_cache_used")
MOST = 4096
"""The most programs that a folder keeps; the oldest half goes."""

_lock = threading.Lock()
_inside = 0
_outside: list[Any] = []


class _Folder(_interface.CacheInterface):
    """A cache whose programs appear whole: other processes read and write the same folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> bytes | None:
        try:
            return (self._path / key).read_bytes()
        except OSError:
            return None

    def put(self, key: str, value: bytes) -> None:
        # A full disk costs time alone.
        with contextlib.suppress(OSError):
            aside = self._path / f".{secrets.token_hex(8)}"
            try:
                aside.write_bytes(value)
                os.replace(aside, self._path / key)
            finally:
                aside.unlink(missing_ok=True)


def _is_private(folder: Path) -> bool:
    """Makes a folder; returns False if it is not this user's alone, since what it holds is executed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        # The times of thousands of files are asked for when some of them go, not at each entry.
        if len(os.listdir(folder)) > MOST:
            programs = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)
            for path in programs[: len(programs) // 2]:
                path.unlink(missing_ok=True)
    except OSError:
        return False
    return about.st_uid == os.getuid() and not about.st_mode & 0o022


@contextlib.contextmanager
def kept_programs(folder: Path) -> Generator[None]:
    """Runs its body with compiled programs read from a folder and written to it; a user's own cache goes first."""
    chosen = _config.compilation_cache_dir.value is not None or not _config.enable_compilation_cache.value
    if chosen or not _is_private(folder):
        yield
        return
    _enter(folder)
    try:
        with (
            _config.compilation_cache_dir(str(folder)),
            _config.persistent_cache_min_compile_time_secs(0.0),
            _config.persistent_cache_min_entry_size_bytes(0),
        ):
            yield
    finally:
        _leave()


def _enter(folder: Path) -> None:
    global _inside
    with _lock:
        if not _inside:
            _outside[:] = [getattr(_cache, name) for name in _STATE]
            for name, value in zip(_STATE, (_Folder(folder), True, False, False), strict=True):
                setattr(_cache, name, value)
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            for name, value in zip(_STATE, _outside, strict=True):
                setattr(_cache, name, value)
