"""`jaxmesh.from_mlir`: imports a TTIR, TTNN or StableHLO file as a traced program."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator

from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.mlir.source import read
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.stages.stages import Traced
from jaxmesh.validate import as_bool, as_instance


def from_mlir(
    source: str | os.PathLike[str], mesh: AnyMesh | None = None, *, func: str | None = None, strict: bool = False
) -> Traced:
    """Reads TTIR or TTNN text as a traced program, which lowers, compiles and runs like any other.

    Arguments are positional: full arrays, or `MeshTensor`s where the file declares `presharded`, whose declared type is
    the local shape. The result is one value, or a tuple; a presharded result is a `MeshTensor`.

    Every mistake is an error that names the line. TTIR does not record the mesh axes along which presharded arguments
    differ. Where a program is right only if they are equal along some, it takes coordinate 0, and `.assumptions` of the
    result lists the place.

    Args:
      source: the text, or the path of a file; both may hold several modules between lines `// -----`.
      mesh: the mesh; by default the one the module names (`ttcore.meshes`), or a RUN line (`mesh-shape=2,4`), or the
        context's, or the one that the function's mesh_shards and collectives fix. For a mesh of the file devices are
        taken, or emulated (up to 64); where that is too late the mesh is abstract, and the program can be traced and
        lowered only.
      func: the name of the function; by default the only public one, or `main`, or `forward`.
      strict: makes errors of warnings: a `shard_shape` that disagrees with `shard_dims`, an op that is not as
        upstream defines it, block floats.

    Raises:
      ParseError: the text is no MLIR, or holds no such function.
      MissingFileError: there is no such file.
      VerifyError: an op breaks a rule.
      MissingRuleError: an op is not known here; the message names the module it belongs to.
      UnsupportedError: types that JAX does not hold; 64-bit types need `jax.config.update("jax_enable_x64", True)`.
      ReplicationError: a shard is used as a full value although its copies may differ.
      MeshMismatchError: the given mesh and the file's have different shapes.
      MeshError: no mesh is given or named, and the program needs one.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> traced = jm.from_mlir('''
    ... module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
    ...   func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    ...     %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_shape = array<i64: 2, 4>,
    ...          shard_direction = #ttcore.shard_direction<full_to_shard>, shard_type = #ttcore.shard_type<devices>}>
    ...          : (tensor<16x8xf32>) -> tensor<8x2xf32>
    ...     return %0 : tensor<8x2xf32>
    ...   }
    ... }''')
    >>> traced.out_avals[0].shape
    (8, 2)
    """
    strict = as_bool("from_mlir", "strict", strict)
    if func is not None:
        as_instance(str, "from_mlir", "func", func)
    with progress("from_mlir"), _collector_off():
        file = load_text(read(source))
        return import_program(file, decode_function(file, choose(file, func)), mesh, Traced, strict=strict)


@contextlib.contextmanager
def _collector_off() -> Generator[None]:
    """Runs its body without Python's collector of cycles, which would search all equations for every few new ones."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
