"""`codegen_py` and `codegen_cpp`: a function straight to a folder with its Python or C++, named as in tt-xla."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import AnyMesh, as_mesh, with_devices
from jaxmesh.stages.jit import JitFunction, jit
from jaxmesh.stages.shard_map import ShardMapped
from jaxmesh.stages.stages import Lowered
from jaxmesh.validate import quote

_OPTIONS: Mapping[str, str] = {
    "static_argnums": "positions of arguments of `f` that are part of the program",
    "static_argnames": "their names",
    "groups": "whether groups of operations that TTNN has one op for are recognised (True)",
    "unroll_limit": "how many operations loops may become before the larger ones stay loops",
    "make_inputs": "how the program makes inputs that it does not load: zeros (of types the default) or random",
    "constant_limit": "how many elements of a constant texts spell; larger ones are files in tensors/ (1024)",
    "strict": "whether what Tenstorrent's own ttnn cannot run is an error (True)",
    "export_tensors": "whether inputs and expected results are written too (True is the only choice here)",
    "optimization_level": "0: the level at which tt-mlir prints what is printed here",
}


_FIXED: Mapping[str, Any] = {"export_tensors": True, "optimization_level": 0}


def codegen_py(
    f: Callable[..., object],
    *args: object,
    mesh: AnyMesh | None = None,
    export_path: str | os.PathLike[str] = "model",
    **options: object,
) -> list[Path]:
    """Writes a function, for arguments like these, as a Python program on `ttnn`.

    `python -m jaxmesh run model --check` runs the folder on emulated devices; on a machine with hardware
    `python main.py --check` in it does.

    Args:
      f: a function as for `jaxmesh.jit`, or one that `jaxmesh.jit` or `jaxmesh.shard_map` made.
      args: its arguments: arrays, trees of them, `MeshTensor`s. They become the inputs of the program. For types
        (`jax.ShapeDtypeStruct`) the program makes its inputs, and no results are expected of it.
      mesh: the mesh, as of `jaxmesh.jit`; of a function that has one already, none or the same.
      export_path: the folder: new, or one that an earlier export wrote.
      options: `static_argnums`, `static_argnames` as of `jaxmesh.jit`; `groups`, `unroll_limit`, `strict`,
        `constant_limit` as of `as_text`; `make_inputs` as of `export`;
        `export_tensors=True` and `optimization_level=0`, which are what tt-xla's users may pass.

    Returns:
      The files written: `main.py`, `utils.py`, `locations.json` (the source line of each line of `main.py`),
      `ttir.mlir`, `ttnn.mlir`, and inputs and expected results in `tensors/`.

    Raises:
      ArgumentTypeError: an unknown option, or an argument that is no array.
      MeshMismatchError: the function has another mesh already.
      MissingRuleError: a primitive that has no row; the function still runs.
      JaxmeshError: the folder holds something else.

    Source of the name and the calling convention: tt-xla.

    >>> import tempfile, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> def double(x):
    ...     return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = jm.codegen_py(double, jnp.ones((4, 8)), mesh=jm.make_mesh((2, 4)), export_path=folder + "/model")
    ...     sorted(f.name for f in files)
    ['arg0.npy', 'expected0.npy', 'locations.json', 'main.py', 'ttir.mlir', 'ttnn.mlir', 'utils.py']
    """
    return _codegen("codegen_py", "python", f, args, mesh, export_path, options)


def codegen_cpp(
    f: Callable[..., object],
    *args: object,
    mesh: AnyMesh | None = None,
    export_path: str | os.PathLike[str] = "model",
    **options: object,
) -> list[Path]:
    """Writes a function, for arguments like these, as a C++ program on `ttnn`.

    In the folder, `g++ -std=c++20 -I "$(jaxmesh include-dir)" main.cpp -o main && ./main --check` builds and runs it on
    an emulation on the host.

    Args and errors are those of `codegen_py`; the files are `main.cpp`, `ttir.mlir`, `ttnn.mlir`, and in `tensors/` the
    inputs and expected results.

    Source of the name and the calling convention: tt-xla.

    >>> import tempfile, jax.numpy as jnp, jaxmesh as jm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = jm.codegen_cpp(jnp.tanh, jnp.ones((4, 8)), mesh=jm.make_mesh((2, 4)), export_path=folder + "/model")
    ...     sorted(f.name for f in files)
    ['arg0.npy', 'expected0.npy', 'main.cpp', 'ttir.mlir', 'ttnn.mlir']
    """
    return _codegen("codegen_cpp", "cpp", f, args, mesh, export_path, options)


def _codegen(
    name: str,
    language: str,
    f: Callable[..., object],
    args: tuple[object, ...],
    mesh: AnyMesh | None,
    export_path: str | os.PathLike[str],
    options: dict[str, Any],
) -> list[Path]:
    _check(name, options)
    if not callable(f):
        raise ArgumentTypeError(f"{name} takes a function, got {quote(f)}.")
    static = {k: options[k] for k in ("static_argnums", "static_argnames") if k in options}
    how = {k: options[k] for k in ("groups", "unroll_limit", "strict", "constant_limit", "make_inputs") if k in options}
    with progress(name), _own_mesh(f, mesh):
        lowered, dynamic = _lower(name, f, args, mesh, static)
        return lowered.export(export_path, *dynamic, languages=(language,), **how)


def _check(name: str, options: Mapping[str, object]) -> None:
    for key, value in options.items():
        if key not in _OPTIONS:
            known = "; ".join(f"{k}: {v}" for k, v in _OPTIONS.items())
            raise ArgumentTypeError(f"{name} has no option {key!r}; its options are: {known}.")
        if key in _FIXED and (type(value) is not type(wanted := _FIXED[key]) or value != wanted):
            raise ArgumentTypeError(f"{name}: {key} is {_OPTIONS[key]}, got {quote(value)}; write {wanted!r}.")


def _lower(
    name: str, f: Callable[..., Any], args: tuple[Any, ...], mesh: AnyMesh | None, static: Mapping[str, Any]
) -> tuple[Lowered, tuple[object, ...]]:
    """Returns the lowered program and its dynamic arguments."""
    if not isinstance(f, (JitFunction, ShardMapped)):
        made = jit(f, mesh=mesh, **static)
        return made.lower(*args), made.dynamic(*args)
    if static:
        raise ArgumentTypeError(
            f"{name} was given a function that has its statics already ({f!r}), and {next(iter(static))}= beside it; "
            "leave that out, or give the plain function."
        )
    return f.lower(*args), f.dynamic(*args) if isinstance(f, JitFunction) else args


def _own_mesh(f: Callable[..., object], mesh: AnyMesh | None) -> contextlib.AbstractContextManager[object]:
    """Returns a context that sets the given mesh, if the function may have one too: tracing refuses an unset mesh."""
    if mesh is None or not isinstance(f, (JitFunction, ShardMapped)):
        return contextlib.nullcontext()
    own = as_mesh(mesh)
    if not isinstance(own, Mesh) and jax.sharding.get_abstract_mesh().empty:
        # Enough to export with types.
        return jax.sharding.use_abstract_mesh(own)
    own = with_devices(own)
    # An abstract one stands for the mesh that is set already.
    return jax.set_mesh(own) if isinstance(own, Mesh) else contextlib.nullcontext()
