"""jaxmesh: an executable model of Tenstorrent's mesh sharding in JAX.

`ttir.mesh_shard` is traced as a primitive, lowered to `distribute_tensor` and `aggregate_tensor` by one pass, and run,
jit-compiled, over a `jax.sharding.Mesh` of host devices that stand in for the hardware.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from typing import Any

if os.path.isdir(os.path.join(os.path.dirname(__file__), "isosurface")):
    raise ImportError(
        "the folder of jaxmesh also holds files of another package, `jaxmesh` on PyPI, which computes isosurfaces; "
        "this one is `tt-jaxmesh` there. Run `pip uninstall jaxmesh tt-jaxmesh`, and then `pip install tt-jaxmesh`."
    )

from jaxmesh.runtime.interrupts import (
    end_without_traceback as _end_without_traceback,
    starts_command as _starts_command,
)

if _starts_command():
    _end_without_traceback()

__version__ = "0.2.0"


@functools.cache
def _public() -> dict[str, str]:
    """Returns the modules of the public names, which the stub of this module lists.

    They are imported on first use: `import jaxmesh` costs little beside `import jax`.
    """
    stub = os.path.join(os.path.dirname(__file__), "__init__.pyi")
    with open(stub, encoding="utf-8") as file:
        lines = re.findall(r"^from (\S+) import (\([^)]*\)|[^(\n]*)", file.read(), re.MULTILINE)
    return {name: module for module, names in lines for name in re.findall(r"(\w+) as \1", names)}


def _read(data: bytes) -> Any:
    return importlib.import_module("jaxmesh.tensor.serialization").read(data)


def _build(auxiliary: Any, children: Any) -> Any:
    mesh, varying, place = auxiliary
    return __getattr__("MeshTensor")(children[0], mesh, varying, None, place)


@functools.cache
def _start() -> None:
    """Prepares this process; a command does when its work begins, because `import jax` takes half a second."""
    from jaxmesh.jaxprs import backend
    from jaxmesh.jaxprs.trees import register_reader

    backend.warn_if_untested()
    backend.watch_forks()
    register_reader("jaxmesh.MeshTensor", _read, _build)


if not _starts_command():
    _start()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_public())
    module = _public().get(name)
    if module == "jaxmesh":
        return importlib.import_module(f"jaxmesh.{name}")
    errors = importlib.import_module("jaxmesh.errors")
    if module is None and not isinstance(getattr(errors, name, None), type):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(errors if module is None else importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public()})
