"""The declarations of ttnn's C++ API, which Tenstorrent's compiler unpacks when it starts."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from jaxmesh.analysis.environments import cache_folder, private_folder
from jaxmesh.analysis.machines import DEFAULT, machine_named
from jaxmesh.analysis.upstream.environment import Plugin
from jaxmesh.analysis.upstream.worker import with_assets

INCLUDED = ("ttnn/api", "ttnn/cpp", "tt_metal/api", "tt_metal", "ttnn/core")
"""The folders to include, in order."""
_SUFFIXES = {".hpp", ".h", ".inl"}


def headers_of(plugin: Plugin) -> Path:
    """Returns the folder with the headers of a plugin; starts the plugin if the cache does not have them.

    Raises:
      UpstreamError: the plugin does not start.
    """
    found = os.stat(plugin.library)
    key = hashlib.sha256(repr((plugin.library, found.st_size, found.st_mtime_ns)).encode()).hexdigest()[:16]
    target = private_folder(cache_folder() / "ttnn-headers") / key
    if not target.is_dir():
        with_assets(plugin, machine_named(DEFAULT), lambda assets: _copy(assets, target))
    return target


def _copy(assets: Path, target: Path) -> None:
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for top in ("ttnn", "tt_metal"):
            shutil.copytree(assets / top, made / top, ignore=_others)
        if not target.is_dir():
            made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _others(folder: str, names: list[str]) -> set[str]:
    """Returns the names of files that are not headers."""
    return {n for n in names if Path(n).suffix not in _SUFFIXES and not Path(folder, n).is_dir()}
