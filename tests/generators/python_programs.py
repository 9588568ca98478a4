"""Flat TTNN programs written by hand, for the tests of the Python emitter and of exported folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxmesh.dialects import ttnn as ttnn_ops  # noqa: F401
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementReplicate, PlacementShard

F32 = np.dtype("float32")


@dataclass
class Make:
    """Programs by hand, in the form that the pass to TTNN gives them."""

    program: Program
    device: int = -1
    arguments: list[np.ndarray[Any, Any]] = field(default_factory=list)

    @staticmethod
    def on(name: str = "forward", **mesh: int) -> Make:
        return Make(Program(name, mesh or {"y": 2, "x": 4}))

    def argument(self, *shape: int, dtype: Any = F32, presharded: bool = False) -> int:
        value = self.program.new(Type(shape, np.dtype(dtype), host=not presharded, tile=presharded))
        self.program.arguments.append(Port(value, presharded))
        return value

    def op(self, name: str, operands: Sequence[int | None], kind: Type | None, /, **attributes: Any) -> int:
        result = () if kind is None else (self.program.new(kind),)
        self.program.ops.append(Op(f"ttnn.{name}", tuple(operands), result, attributes))
        return result[0] if result else -1

    def open(self) -> int:
        if self.device < 0:
            shape = tuple(self.program.mesh.values())
            self.device = self.op("get_device", (), Type((), F32, kind="device"), mesh_shape=shape)
        return self.device

    def type(self, value: int) -> Type:
        return self.program.types[value]

    def distribute(self, value: int, dims: Sequence[int | None], *, onto: bool = True) -> int:
        sizes, shape = list(self.program.mesh.values()), list(self.type(value).shape)
        for size, dim in zip(sizes, dims, strict=True):
            if dim is not None:
                shape[dim] //= size
        placements = [PlacementReplicate() if d is None else PlacementShard(d) for d in dims]
        kind = replace(self.type(value), shape=tuple(shape), host=True, tile=False)
        made = self.op(
            "distribute_tensor",
            (value, self.open()),
            kind,
            mapper_config=MeshMapperConfig(placements, MeshShape(sizes)),
        )
        if not onto:
            return made
        there = self.op("to_device", (made, self.open()), replace(kind, host=False))
        return self.op("to_layout", (there,), replace(kind, host=False, tile=True), layout="tile")

    def aggregate(self, value: int, dims: Sequence[int], override: Sequence[int]) -> int:
        kind = replace(self.type(value), tile=False)
        rows = self.op("to_layout", (value,), kind, layout="row_major")
        back = self.op("from_device", (rows,), replace(kind, host=True))
        shape = list(kind.shape)
        for dim, size in zip(dims, override, strict=True):
            shape[dim] *= size
        return self.op(
            "aggregate_tensor",
            (back, self.open()),
            replace(kind, shape=tuple(shape), host=True),
            composer_config=MeshComposerConfig(dims, MeshShape(override)),
        )

    def compute(self, name: str, *operands: int, **attributes: Any) -> int:
        return self.op(name, operands, self.type(operands[0]), **attributes)

    def free(self, *values: int) -> None:
        for value in values:
            self.op("deallocate", (value,), None, force=False)

    def returns(self, *values: int, presharded: bool = False) -> Program:
        self.program.results = [Port(v, presharded) for v in values]
        return self.program


def shard_1x2() -> Program:
    """The program of upstream's mesh_shard lit test."""
    make = Make.on(y=1, x=2)
    x = make.argument(8192, 784)
    made = make.distribute(x, (0, 1), onto=False)
    make.free(x)
    return make.returns(made, presharded=True)


def mixed(sum_of: str = "add", product_of: str = "multiply") -> Program:
    """Full and presharded arguments, compute, a result on the host and one that stays on the devices."""
    make = Make.on("mixed", y=2, x=4)
    x, y = make.argument(8, 16), make.argument(4, 4, presharded=True)
    local = make.distribute(x, (0, 1))
    make.free(x)
    total = make.compute(sum_of, local, y)
    make.free(local, y)
    doubled = make.compute(product_of, total, total)
    whole = make.aggregate(doubled, (0, 1), (2, 4))
    program = make.returns(whole)
    program.results.append(Port(total, True))
    return program


def products() -> Program:
    """A product of two matrices, cut over both mesh axes, with its sum over one of them."""
    make = Make.on("products", y=2, x=4)
    x, w = make.argument(8, 16), make.argument(16, 8)
    a, b = make.distribute(x, (0, 1)), make.distribute(w, (None, 0))
    make.free(x, w)
    kind = make.type(a)
    part = make.op("matmul", (a, b), replace(kind, shape=(4, 8)), transpose_a=False, transpose_b=False)
    make.free(a, b)
    wide = make.op("reshape", (part,), replace(kind, shape=(1, 1, 4, 8)), shape=(1, 1, 4, 8))
    total = make.compute("all_reduce", wide, cluster_axis=1, reduce_type="sum")
    flat = make.op("reshape", (total,), replace(kind, shape=(4, 8)), shape=(4, 8))
    one = make.op("full", (make.open(),), replace(kind, shape=(4, 8)), shape=(4, 8), fill_value=1.0)
    out = make.aggregate(make.compute("maximum", flat, one), (0, 1), (2, 1))
    return make.returns(out)
