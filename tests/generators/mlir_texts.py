"""Texts of TTIR programs for the tests of the importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import jaxmesh as jm
from jaxmesh.tensor.assemble import assemble
from tests import FILECHECK

FILES = FILECHECK / "import"
UNSHARDED = "{ttcore.shard_status = #ttcore.shard_status<unsharded>}"
PRESHARDED = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
RNG = np.random.default_rng(0)


def shard(
    out: str, x: str, direction: str, dims: Sequence[int], pieces: Sequence[int], types: str, kind: str = "devices"
) -> str:
    """One `mesh_shard`; `types` is `A -> B`."""
    source, result = types.split(" -> ")
    rows = (
        f"shard_dims = array<i64: {', '.join(map(str, dims))}>, shard_shape = array<i64: {', '.join(map(str, pieces))}>"
    )
    kinds = f"shard_direction = #ttcore.shard_direction<{direction}>, shard_type = #ttcore.shard_type<{kind}>"
    return f'{out} = "ttir.mesh_shard"({x}) <{{{kinds}, {rows}}}> : ({source}) -> {result}'


def split(out: str, x: str, dims: Sequence[int], pieces: Sequence[int], types: str, kind: str = "devices") -> str:
    return shard(out, x, "full_to_shard", dims, pieces, types, kind)


def join(out: str, x: str, dims: Sequence[int], pieces: Sequence[int], types: str, kind: str = "devices") -> str:
    return shard(out, x, "shard_to_full", dims, pieces, types, kind)


def program(mesh: str | None, arguments: str, results: str, *lines: str) -> str:
    """A module of one function; line 1 is the module, line 2 the function, the body begins at line 3."""
    named = f' attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = {mesh}>]>}}' if mesh else ""
    return "\n".join([f"module{named} {{", f"func.func @main({arguments}) -> {results} {{", *lines, "}", "}", ""])


def run(text: Any, *args: Any, **options: Any) -> Any:
    """The compiled program of a text, run; checked against the reference executor."""
    lowered = jm.from_mlir(text, **options).lower()
    result = lowered.compile()(*args)
    reference = lowered.reference(*args)
    for got, want in zip(row(result), row(reference), strict=True):
        if isinstance(got, jm.MeshTensor):
            for coordinate, piece in got.shards():
                np.testing.assert_allclose(wide(piece), wide(want[tuple(coordinate)]), rtol=1e-2, atol=1e-2)
        else:
            np.testing.assert_allclose(wide(got), wide(want), rtol=1e-2, atol=1e-2)
    return result


def row(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def wide(x: Any) -> Any:
    array = np.asarray(x)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def on_devices(mesh: Any, shards: dict[tuple[int, ...], np.ndarray], varying: Sequence[str] | None = None) -> Any:
    """A MeshTensor of these shards."""
    axes = mesh.axis_names if varying is None else varying
    return assemble(shards, mesh, tuple(a for a in axes if mesh.shape[a] > 1), None)


def shards_of(tensor: Any) -> dict[tuple[int, ...], np.ndarray]:
    return {tuple(c): np.asarray(s) for c, s in tensor.shards()}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)
