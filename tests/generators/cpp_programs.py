"""Flat TTNN programs written by hand, for the tests of emitted C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects import ttnn as ttnn_ops  # noqa: F401
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementReplicate, PlacementShard
from tests.generators.drafts import to_ttnn

MESH = (2, 2)
AXES = {"y": 2, "x": 2}


# --- whole programs --------------------------------------------------------------------------------------------------


class Made:
    """A program by hand, at the level where transfers are TTNN's and the rest is TTIR's; `ttnn` lowers it."""

    def __init__(self, name: str = "forward", **mesh: int) -> None:
        self.program = Program(name, mesh or {"y": 2, "x": 4})
        self.sizes = tuple(self.program.mesh.values())

    def argument(self, *shape: int, dtype: Any = np.float32, presharded: bool = False, path: str = "") -> int:
        value = self.program.new(Type(shape, np.dtype(dtype)))
        self.program.arguments.append(Port(value, presharded, path))
        return value

    def op(self, name: str, operands: Sequence[int], *shape: int, dtype: Any = None, **attributes: Any) -> int:
        kind = self.program.types[operands[0]].dtype if dtype is None else np.dtype(dtype)
        result = self.program.new(Type(shape, kind))
        self.program.ops.append(Op(name, tuple(operands), (result,), attributes))
        return result

    def split(self, x: int, *dims: int | None) -> int:
        shape = list(self.program.types[x].shape)
        for size, dim in zip(self.sizes, dims, strict=True):
            if dim is not None:
                shape[dim] //= size
        placements = [PlacementReplicate() if d is None else PlacementShard(d) for d in dims]
        return self.op("ttnn.distribute_tensor", [x], *shape, mapper_config=MeshMapperConfig(placements, self.sizes))

    def join(self, x: int, dims: Sequence[int], override: Sequence[int]) -> int:
        shape = list(self.program.types[x].shape)
        for size, dim in zip(override, dims, strict=True):
            shape[dim] *= size
        return self.op("ttnn.aggregate_tensor", [x], *shape, composer_config=MeshComposerConfig(dims, override))

    def ttnn(self, *results: tuple[int, bool]) -> Program:
        self.program.results = [Port(v, presharded) for v, presharded in results]
        return to_ttnn(self.program)


def perceptron(name: str = "forward") -> Program:
    """tanh(x @ w + b), the contracted dim over the second mesh axis."""
    m = Made(name)
    x, w, b = m.argument(8, 16, path="['x']"), m.argument(16, 4, path="['w']"), m.argument(4, path="['b']")
    product = m.op("ttir.matmul", [m.split(x, 0, 1), m.split(w, None, 0)], 4, 4)
    whole = m.op("ttir.all_reduce", [product], 4, 4, reduce_type="sum", cluster_axis=1)
    moved = m.op("ttir.add", [whole, m.split(b, None, None)], 4, 4)
    out = m.join(m.op("ttir.tanh", [moved], 4, 4), [0, 1], [2, 1])
    return m.ttnn((out, False), (moved, True))


def constants(name: str = "constants") -> Program:
    """What EmitC loses: constants, the mesh, a transfer between two devices."""
    m = Made(name, x=4)
    x = m.split(m.argument(8, 5, dtype=np.int32), 0)
    table = np.arange(10, dtype=np.int32).reshape(2, 5) ** 3
    held = m.program.new(Type((2, 5), np.dtype(np.int32)))
    m.program.ops.append(Op("ttir.constant", (), (held,), {"value": table}))
    moved = m.op("ttir.collective_permute", [m.op("ttir.add", [x, held], 2, 5)], 2, 5,
                 source_target_pairs=((0, 1), (1, 2), (3, 0)))  # fmt: skip
    return m.ttnn((m.join(moved, [0], [4]), False))
