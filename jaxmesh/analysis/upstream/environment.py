"""The Python environment of Tenstorrent's compiler, which is a plugin of JAX."""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from jaxmesh.analysis.environments import Library
from jaxmesh.errors import MissingFileError, UpstreamError

_ASK = """
import json, platform
from importlib.metadata import PackageNotFoundError, distribution
answer = {"python": platform.python_version(), "version": None, "folder": None}
for package in ("pjrt-plugin-tt", "jax-tt-plugin"):
    try:
        found = distribution(package)
    except PackageNotFoundError:
        continue
    libraries = [f for f in found.files or () if f.name in ("libtt.so", "pjrt_plugin_tt.so")]
    if libraries:
        answer |= {"version": f"{package} {found.version}", "folder": str(found.locate_file(libraries[0]))}
print(json.dumps(answer))
"""

UPSTREAM = Library(
    name="Tenstorrent's compiler",
    requirement="jax-tt-plugin",
    tested="0.1.3",
    pythons=("3.13", "3.12", "3.11"),
    variable="JAXMESH_UPSTREAM_PYTHON",
    command="upstream-env",
    megabytes=700,
    error=UpstreamError,
    question=_ASK,
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A PJRT plugin of tt-xla.

    Attributes:
      python: the path of a Python with JAX that loads it.
      library: the path of its shared library.
      version: of its package; empty for a library that was named by its path.
    """

    python: Path
    library: Path
    version: str = ""

    def __str__(self) -> str:
        return self.version or self.library.name


def find_plugin(plugin: str | os.PathLike[str] | None = None) -> Plugin:
    """Returns the plugin at a path, of the Python in `JAXMESH_UPSTREAM_PYTHON`, or of `upstream-env`'s environment.

    Args:
      plugin: the path of the plugin's shared library, which this Python then loads in a process of its own, or of a
        Python that has the plugin.

    Raises:
      UpstreamError: this platform has no plugin, or none was found, or its Python cannot be started.
      MissingFileError: there is no such library.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UpstreamError(
            "Tenstorrent's compiler is published for x86-64 Linux alone, and this is "
            f"{platform.system()} on {platform.machine()}; run this on such a machine. Its result.save() writes a "
            "folder, whose texts jaxmesh.from_mlir reads here."
        )
    if plugin is None:
        plugin = os.environ.get(UPSTREAM.variable) or None
    if plugin is not None and Path(plugin).suffix == ".so":
        library = Path(plugin).absolute()
        if not library.is_file():
            raise MissingFileError(f"the plugin {str(library)!r} does not exist; name the shared library of one.")
        return Plugin(Path(sys.executable), library)
    return _plugin_of(*UPSTREAM.find(plugin))


@functools.lru_cache(16)
def _plugin_of(python: Path, why: str) -> Plugin:
    """Asks a Python once, since its start takes longer than the compilation of a small program."""
    answer = UPSTREAM.ask(python, why)
    return Plugin(python, Path(answer["folder"]), str(answer["version"]))


def make_environment(
    folder: Path, version: str = UPSTREAM.tested, python: str | os.PathLike[str] | None = None
) -> Plugin:
    """Creates a virtual environment with the plugin; an environment with this version is kept.

    Raises:
      UpstreamError: no supported Python was found, or pip cannot install the plugin; the message has pip's reason.
    """
    own = UPSTREAM.install(folder, version, python)
    _plugin_of.cache_clear()
    return find_plugin(own)
