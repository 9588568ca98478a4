"""Flat TTIR programs drafted op by op, and lowered to TTNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import jaxmesh as jm
from jaxmesh.dialects.program import Op, Port, Program, Type, Value
from jaxmesh.passes.pipeline import FUSE, MESH_PARTITION, run_passes, ttnn_pipeline
from jaxmesh.passes.verify_program import verify_program
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementShard
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, replicate_mapper
from tests.generators.flat_programs import run_flat


def lowered(program: Program) -> Program:
    """The flat TTNN program, proved to keep its promises."""
    made = to_ttnn(program)
    verify_program(made)
    return made


def to_ttnn(program: Program, strict: bool = False) -> Program:
    """The flat TTNN program of a flat program, by all passes but those over TTIR."""
    return run_passes(ttnn_pipeline(strict), program, without=(MESH_PARTITION, FUSE))


def replicated(program: Program) -> Program:
    """The same ops on all devices: full arguments are replicated, and results are read from the first device."""
    config = {"mapper_config": replicate_mapper(tuple(program.mesh.values()))}
    copies = {port.value: program.new(program.types[port.value]) for port in program.arguments}
    ops = [Op("ttnn.distribute_tensor", (full,), (copy,), config) for full, copy in copies.items()]
    for op in program.ops:
        operands = tuple([v if v is None else copies.get(v, v) for v in op.operands])
        ops.append(Op(op.name, operands, op.results, op.attributes, op.line))
    results: list[Port] = []
    for port in program.results:
        full = program.new(program.types[port.value])
        value = copies.get(port.value, port.value)
        ops.append(Op("ttnn.aggregate_tensor", (value,), (full,), {"composer_config": FIRST_DEVICE}))
        results.append(replace(port, value=full))
    return program.like(ops, results)


class Draft:
    """A program of ops on shards: every device has an own copy of each operand, stacked in a full array."""

    def __init__(self, mesh: Sequence[int]) -> None:
        self.mesh = tuple(mesh)
        self.count = math.prod(mesh)
        self.program = Program("f", dict(zip("wzyx"[-len(mesh) :], mesh, strict=True)))
        self.given: list[np.ndarray] = []

    def operand(self, stacked: np.ndarray) -> Value:
        """A local tensor of each device, from an array stacked over all devices."""
        program, local = self.program, stacked.shape[1:]
        whole = (*self.mesh, *local)
        self.given.append(stacked.reshape(whole))
        full = program.new(Type(whole, stacked.dtype))
        program.arguments.append(Port(full, False, f"[{len(self.given)}]"))
        config = MeshMapperConfig([PlacementShard(i) for i in range(len(self.mesh))], self.mesh)
        piece = self.add(
            "ttnn.distribute_tensor", [full], [1] * len(self.mesh) + list(local), stacked.dtype, mapper_config=config
        )
        return self.add("ttir.reshape", [piece], local, stacked.dtype, shape=local)

    def add(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: Any, /, **attrs: Any
    ) -> Value:
        return self.many(name, operands, [(tuple(shape), dtype)], attrs)[0]

    def many(
        self, name: str, operands: Sequence[Value | None], types: Sequence[tuple[Any, Any]], attrs: dict[str, Any]
    ) -> tuple[Value, ...]:
        made = tuple(self.program.new(Type(tuple(s), np.dtype(t))) for s, t in types)
        self.program.ops.append(Op(name, tuple(operands), made, attrs))
        return made

    def result(self, value: Value) -> None:
        """A local tensor of each device as a result, stacked over the mesh."""
        kind = self.program.types[value]
        wide = self.add(
            "ttir.reshape",
            [value],
            [1] * len(self.mesh) + list(kind.shape),
            kind.dtype,
            shape=(1,) * len(self.mesh) + kind.shape,
        )
        config = MeshComposerConfig(range(len(self.mesh)), self.mesh)
        whole = self.add("ttnn.aggregate_tensor", [wide], (*self.mesh, *kind.shape), kind.dtype, composer_config=config)
        self.program.results.append(Port(whole, False))

    def run(self, program: Program) -> list[np.ndarray]:
        mesh = jm.make_mesh(self.mesh, tuple(self.program.mesh))
        outs = [np.asarray(x) for x in run_flat(program, mesh, *self.given)]
        return [x.reshape(self.count, *x.shape[len(self.mesh) :]) for x in outs]


def freed(made: Program) -> list[tuple[str, bool]]:
    """The ops whose results are deallocated, and whether by force; walks the buffers one by one.

    A buffer is a list of the values in it. Each is given back once, behind its last reader, by force where it has more
    than one value; what is returned, and arguments that nothing reads, are not given back.
    """
    maker = {v: op.name.removeprefix("ttnn.") for op in made.ops for v in op.results}
    buffers = [[a.value] for a in made.arguments]
    gone: list[list[int]] = []
    seen: list[tuple[str, bool]] = []

    def buffer(value: int) -> list[int]:
        (found,) = [b for b in buffers if value in b]
        assert not any(found is g for g in gone), value
        return found

    for op in made.ops:
        held = [buffer(v) for v in op.operands if v is not None]
        if op.name == "ttnn.deallocate":
            gone.append(held[0])
            seen.append((maker.get(op.operands[0], "argument"), op.attributes["force"]))
            continue
        shared = None
        if op.name == "ttnn.reshape":
            before, after = ((1, 1, *made.types[v].shape) for v in (op.operands[0], op.results[0]))
            tiles = made.types[op.operands[0]].tile
            whole = before[-2] == after[-2] or before[-2] % 32 == after[-2] % 32 == 0
            shared = held[0] if before[-1] == after[-1] and (whole or not tiles) else None
        elif op.name in ("ttnn.fill_cache", "ttnn.update_cache"):
            shared = held[0]
        elif op.name == "ttnn.point_to_point" and len(held) > 1:
            shared = held[1]
        for value in op.results:
            shared.append(value) if shared is not None else buffers.append([value])
    returned = [buffer(r.value) for r in made.results]
    read = {v for op in made.ops for v in op.operands}
    for b in buffers:
        tensor = made.types[b[0]].kind == "tensor"
        kept = any(b is r for r in returned) or (maker.get(b[0]) is None and not read & {*b})
        assert any(b is g for g in gone) == (tensor and not kept), b
    sizes = {(maker.get(v, "argument"), len(b) > 1) for b in buffers for v in b}
    assert {*seen} <= sizes
    return seen
