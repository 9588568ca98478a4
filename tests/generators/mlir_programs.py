"""Flat programs made by hand, for the tests of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir

from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.frontends.mlir.decode import decode
from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.mlir.text import Text
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementReplicate, PlacementShard

F32, I32, BOOL = np.dtype("float32"), np.dtype("int32"), np.dtype("bool")
MESH = {"y": 2, "x": 4}


def tensor(*shape: int, dtype: Any = F32) -> Type:
    return Type(shape, np.dtype(dtype))


def program(*arguments: Type, name: str = "main", mesh: dict[str, int] | None = None) -> Program:
    """A program of arguments alone; they are its results until it is given others."""
    made = Program(name, dict(mesh or MESH))
    made.arguments = [Port(made.new(t), False, f"x[{i}]") for i, t in enumerate(arguments)]
    made.results = list(made.arguments)
    return made


def add(to: Program, name: str, operands: Any, *types: Type, line: str = "", **attributes: Any) -> Any:
    """Appends an op: its result, or results."""
    results = tuple(to.new(t) for t in types)
    to.ops.append(Op(name, tuple(operands), results, attributes, line))
    return results[0] if len(results) == 1 else results


HANDLE = Type((), F32, kind="device")


def shard(to: Program, x: int, out: Type, direction: str, kind: str, shape: Any, dims: Any, **more: Any) -> Any:
    return add(to, "ttir.mesh_shard", [x], out, shard_type=kind, shard_direction=direction, shard_shape=shape,
               shard_dims=dims, **more)  # fmt: skip


def ttnn_program(shape: tuple[int, ...], mesh: dict[str, int], dims: Sequence[int]) -> Program:
    """`-(x + x)` of shards over `dims`, as the pass writes it."""
    sizes = tuple(mesh.values())
    local = tuple(n // math.prod(s for s, d in zip(sizes, dims, strict=True) if d == i) for i, n in enumerate(shape))
    made = program(tensor(*shape), mesh=mesh)
    device = add(made, "ttnn.get_device", [], HANDLE, mesh_shape=sizes)
    placements = [PlacementReplicate() if d < 0 else PlacementShard(d) for d in dims]
    x = add(
        made, "ttnn.distribute_tensor", [0, device], tensor(*local), mapper_config=MeshMapperConfig(placements, sizes)
    )
    add(made, "ttnn.deallocate", [0], force=False)
    x = add(made, "ttnn.to_device", [x, device], tensor(*local))
    x = add(made, "ttnn.to_layout", [x], tensor(*local), layout="tile")
    y = add(made, "ttnn.add", [x, x], tensor(*local))
    z = add(made, "ttnn.neg", [y], tensor(*local))
    z = add(made, "ttnn.to_layout", [z], tensor(*local), layout="row_major")
    z = add(made, "ttnn.from_device", [z], tensor(*local))
    free = iter(i for i in reversed(range(len(shape))) if i not in dims)
    joined = MeshComposerConfig(
        [d if d >= 0 else next(free) for d in dims], [s if d >= 0 else 1 for s, d in zip(sizes, dims, strict=True)]
    )
    out = add(made, "ttnn.aggregate_tensor", [z, device], tensor(*shape), composer_config=joined)
    made.results = [Port(out, False), Port(y, True)]
    return made


def long_program(count: int) -> Program:
    made = program(tensor(8, 8))
    x = 0
    for i in range(count // 2):
        c = add(made, "ttir.full", [], tensor(8, 8), shape=(8, 8), fill_value=i / 8, line=f"long.py:{i % 500 + 1} (f)")
        x = add(made, "ttir.add", [x, c], tensor(8, 8), line=f"long.py:{i % 500 + 1} (f)")
    made.results = [Port(x, False)]
    return made


def golden_ttir() -> Program:
    """Most of what a text can hold: transfers, a constant, an optional operand, a string, locations."""
    made = program(tensor(8, 8), tensor(8), tensor(2, 2), name="golden <0>")
    made.arguments = [Port(0, False, "x['a']"), Port(1, False, "x['b']"), Port(2, True, "shards")]
    x = shard(made, 0, tensor(4, 2), "full_to_shard", "devices", (2, 4), (0, 1), line="golden.py:3 (f)")
    n = add(
        made, "ttir.rms_norm", [x, None, None], tensor(4, 2), normalized_shape=(2,), epsilon=1e-5, line="golden.py:4"
    )
    c = add(made, "ttir.constant", [], tensor(4, 2), value=np.arange(8, dtype=np.float32).reshape(4, 2))
    half = add(made, "ttir.full", [], tensor(4, 2), shape=(4, 2), fill_value=0.5)
    x = add(made, "ttir.multiply", [n, half], tensor(4, 2), line="golden.py:5:9 (f)")
    x = add(made, "ttir.add", [x, c], tensor(4, 2), line="golden.py:5:9 (f)")
    values, _ = add(made, "ttir.sort", [x], tensor(4, 2), tensor(4, 2, dtype=I32), dim=1, descending=True, stable=False)
    r = add(made, "ttir.all_reduce", [values], tensor(4, 2), reduce_type="sum", cluster_axis=1)
    y = shard(made, r, tensor(8, 2), "shard_to_full", "devices", (2, 1), (0, -1), line="golden.py:6 (g)")
    s = add(made, "ttir.sum", [1], tensor(), dim_arg=(0,), keep_dim=False)
    made.results = [Port(y, False), Port(s, False), Port(2, True)]
    return made


GOLDENS = {
    "ttir.mlir": lambda: mlir_text(golden_ttir()),
    "ttir_locations.mlir": lambda: mlir_text(golden_ttir(), locations=True),
    "ttnn.mlir": lambda: mlir_text(ttnn_program((8, 8), {"y": 2, "x": 4}, (-1, 0))),
}


def printed(text: str, *, locations: bool = False) -> str:
    """The text as jaxlib prints it after parsing."""
    with ThreadPoolExecutor(1) as fresh:
        # JAX may share one context among its lowerings on a thread.
        context = fresh.submit(mlir.make_ir_context).result()
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(text, context)
    return module.operation.get_asm(enable_debug_info=True) if locations else str(module)


def is_stable(program: Program) -> str:
    """The text without locations, after both forms were seen to print back unchanged."""
    for locations in (True, False):
        text = mlir_text(program, locations=locations)
        assert printed(text, locations=locations) == text
    return text


def read(text: str, name: str | None = None) -> Text:
    file = load_text(text)
    return decode(choose(file, name), file.named)
