"""The verifier of flat programs refuses every program that breaks a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.program import Op, Port, Program
from jaxmesh.errors import ResidencyError, VerifyError
from jaxmesh.passes.pipeline import FUSE, run_passes, ttnn_pipeline
from jaxmesh.passes.verify_program import verify_program
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementReplicate,
    PlacementShard,
)
from tests.generators.flat_programs import flat_of
from tests.generators.transfers import MESH, X


def lowered(stage: jm.Lowered) -> Program:
    """The flat TTNN program of a lowered stage."""
    return run_passes(ttnn_pipeline(strict=True), flat_of(stage, "ttnn"), without=(FUSE,))


def flat_program() -> Program:
    """get_device, distribute, to_device, to_layout, tanh, full, add, to_layout, from_device, aggregate; deallocates."""

    def body(x: Any) -> Any:
        return jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, P("y"))) + 1.0, P("y"))

    made = lowered(jm.jit(body, mesh=MESH).trace(X).lower())
    verify_program(made)
    return made


def op_of(made: Program, name: str) -> Op:
    return next(op for op in made.ops if op.name == f"ttnn.{name}")


def changed(name: str, /, **changes: Any) -> Callable[[Program], None]:
    """Another op in the place of the first of that name; `result` changes the type of its result."""
    kind = changes.pop("result", {})

    def change(made: Program) -> None:
        op = op_of(made, name)
        for value in op.results:
            made.types[value] = replace(made.types[value], **kind)
        made.ops[made.ops.index(op)] = replace(op, **changes)

    return change


def operands(name: str, pick: Callable[..., Sequence[Any]]) -> Callable[[Program], None]:
    """Other operands for the first op of that name, from those it has."""

    def change(made: Program) -> None:
        op = op_of(made, name)
        made.ops[made.ops.index(op)] = replace(op, operands=tuple(pick(*op.operands)))

    return change


def both(*changes: Callable[[Program], None]) -> Callable[[Program], None]:
    def change(made: Program) -> None:
        for one in changes:
            one(made)

    return change


def argument(**changes: Any) -> Callable[[Program], None]:
    def change(made: Program) -> None:
        value = made.arguments[0].value
        made.types[value] = replace(made.types[value], **changes)

    return change


def result(**changes: Any) -> Callable[[Program], None]:
    def change(made: Program) -> None:
        value = made.results[0].value
        made.types[value] = replace(made.types[value], **changes)

    return change


def given_again(made: Program) -> None:
    """A second op gives the value of the first."""
    op = op_of(made, "tanh")
    at = made.ops.index(op)
    made.ops.insert(at, op)


def given_after_the_end(made: Program) -> None:
    """A deallocated value is given again."""
    op = op_of(made, "tanh")
    made.ops.insert(made.ops.index(op_of(made, "full")), replace(op, operands=op.results, results=op.operands))


F16 = np.dtype(np.float16)
INT = np.dtype(np.int32)
HALF = MeshMapperConfig([PlacementShard(1), PlacementReplicate()], (2, 4))

REFUSED: dict[str, tuple[Callable[[Program], None], type[Exception], str]] = {
    "an argument that is in tiles": (argument(tile=True), ResidencyError, r"argument 0 \(float32\[16, 8\] \(host, til"),
    "an argument on the devices": (argument(host=False), ResidencyError, r"argument 0 \(.*devices, rows.*=False"),
    "a sharded argument on the host": (
        lambda made: made.arguments.append(Port(9, True)), ResidencyError, r"argument 1 \(.*host, rows.*=True"),
    "a result on the devices": (
        lambda made: made.results.append(Port(8, False)), VerifyError, r"results \[8\] are not there at the end"),
    "a value that nothing gives": (
        lambda made: made.results.append(Port(99, False)), VerifyError, r"results \[99\] are not there"),
    "a value given twice": (given_again, VerifyError, r"tanh gives value 5, which is defined already"),
    "a value given after it is gone": (given_after_the_end, VerifyError, r"tanh gives value 12, which is defined"),
    "a value that is never given": (operands("tanh", lambda x: (6,)), VerifyError, r"uses value 6, which no argument"),
    "no dialect": (changed("tanh", name="tanh"), VerifyError, "tanh is left in a flat TTNN program"),
    "another dialect's distribute": (
        changed("distribute_tensor", name="ttir.distribute_tensor"), VerifyError, "ttir.distribute_tensor is left"),
    "too few operands": (operands("add", lambda x, y: (x,)), VerifyError, r"add takes 2 to 2 operands, got 1"),
    "too many operands": (operands("add", lambda x, y: (x, y, x)), VerifyError, r"add takes 2 to 2 operands, got 3"),
    "too many of one": (operands("tanh", lambda x: (x, x)), VerifyError, r"tanh takes 1 to 1 operands, got 2"),
    "a device where none belongs": (operands("add", lambda x, y: (x, y, 1)), VerifyError, r"add: the device is not"),
    "a device that stands first": (
        operands("full", lambda d: (d, None)), VerifyError, r"full: the device is its last operand, got \(1, None\)"),
    "two devices": (operands("full", lambda d: (d, d)), VerifyError, r"full: the device is its last .*got \(1, 1"),
    "no device": (operands("full", lambda d: (None,)), VerifyError, r"full: the device is its last operand, got"),
    "a device for what is on the host": (
        changed("full", result={"host": True, "tile": False}), VerifyError, "full: the device is not its last operand"),
    "compute in rows": (changed("tanh", result={"tile": False}), ResidencyError, r"tanh gives .*tiles.*devices, rows"),
    "compute of rows": (operands("tanh", lambda x: (11,)), VerifyError, r"uses value 11 .*after it was deallocated"),
    "tiles on the host": (changed("tanh", result={"host": True}), ResidencyError, r"tanh gives .*tiles.*host, tiles"),
    "an unknown and a known attribute": (
        changed("full", attributes={"shape": (), "fill_value": 1.0, "odd": 1, "even": 2}), VerifyError,
        r"full has no attribute even, odd; its attributes are: shape"),
    "an attribute of an op that has none": (
        changed("tanh", attributes={"odd": 1}), VerifyError, r"tanh has no attribute odd; it has no attributes"),
    "no attributes at all": (changed("full", attributes={}), VerifyError, r"full needs the attribute"),
    "the device of another mesh": (
        changed("get_device", attributes={"mesh_shape": (8,)}), VerifyError, r"of the mesh \(2, 4\), got .*\(8,\)"),
    "a device that is a tensor": (
        changed("get_device", result={"kind": "tensor"}), VerifyError, r"get_device gives the device"),
    "to_device onto the host": (
        changed("to_device", result={"host": True}), ResidencyError, r"to_device .*makes .*host, rows.* of .*host"),
    "to_device of what is there": (
        changed("distribute_tensor", result={"host": False}), ResidencyError, r"distribute_tensor is between host"),
    "to_device into tiles": (
        changed("to_device", result={"tile": True}), ResidencyError, r"to_device .*makes .*devices, tiles"),
    "to_device without the device": (
        operands("to_device", lambda x, d: (x,)), VerifyError, r"to_device takes a tensor and the device, got \(2,\)"),
    "to_device with a tensor for it": (
        operands("to_device", lambda x, d: (x, x)), VerifyError, r"to_device takes a tensor and .*got \(2, 2"),
    "to_device with nothing for it": (
        operands("to_device", lambda x, d: (x, None)), VerifyError, r"to_device takes a tensor and the device"),
    "to_device with two": (
        operands("to_device", lambda x, d: (x, d, d)), VerifyError, r"to_device takes a tensor and the device"),
    "to_device of the device": (
        operands("to_device", lambda x, d: (d, d)), VerifyError, r"to_device takes a tensor first, got \(1, 1\)"),
    "to_device of nothing": (
        operands("to_device", lambda x, d: (None, d)), VerifyError, r"to_device takes a tensor first"),
    "to_device without operands": (
        operands("to_device", lambda x, d: ()), VerifyError, r"to_device takes a tensor first, got \(\)"),
    "to_device to another shape": (
        changed("to_device", result={"shape": (8, 4)}), ResidencyError, r"makes float32\[8, 4\].* of float32\[8, 8\]"),
    "to_device to another type": (
        changed("to_device", result={"dtype": F16}), ResidencyError, r"makes float16\[8, 8\].* of float32\[8, 8\]"),
    "from_device onto the devices": (
        changed("from_device", result={"host": False}), ResidencyError, r"from_device .*makes .*devices, rows.* of"),
    "from_device into tiles": (
        changed("from_device", result={"tile": True}), ResidencyError, r"from_device .*makes .*host, tiles"),
    "to_layout into rows": (
        changed("to_layout", attributes={"layout": "row_major"}), ResidencyError, r"to_layout .*row_major.*makes"),
    "to_layout on the other side": (
        changed("to_layout", result={"host": True}), ResidencyError, r"to_layout .*makes .*host, tiles"),
    "to_layout that changes nothing": (
        changed("to_layout", result={"tile": False}), ResidencyError, r"to_layout .*makes .*devices, rows.* of"),
    "a distribute into tiles": (
        changed("distribute_tensor", result={"tile": True}), ResidencyError, r"distribute_tensor is between host"),
    "an aggregate of tiles": (
        both(changed("from_device", name="ttnn.to_layout", result={"host": False, "tile": True},
                     attributes={"layout": "tile"})),
        ResidencyError, r"aggregate_tensor is between host tensors, got .*devices, tiles"),
    "an aggregate into tiles": (result(tile=True), ResidencyError, r"aggregate_tensor is between host tensors"),
    "an aggregate onto the devices": (result(host=False), ResidencyError, r"aggregate_tensor is between host tensors"),
    "a distribute of another dim": (
        changed("distribute_tensor", attributes={"mapper_config": HALF}), VerifyError,
        r"distribute_tensor gives \[16, 4\], but the result is float32\[8, 8\]"),
    "a distribute to another type": (
        changed("distribute_tensor", result={"dtype": INT}), VerifyError, r"gives \[8, 8\], but the result is int32"),
    "a distribute without its config": (
        changed("distribute_tensor", attributes={}), VerifyError, r"distribute_tensor needs .*mapper_config"),
    "a distribute without the device": (
        operands("distribute_tensor", lambda x, d: (x,)), VerifyError, r"distribute_tensor takes a tensor and"),
    "an aggregate of another dim": (
        changed("aggregate_tensor", attributes={"composer_config": MeshComposerConfig([1, 0], (2, 1))}), VerifyError,
        r"aggregate_tensor gives \[8, 16\], but the result is float32\[16, 8\]"),
    "an aggregate without its config": (
        changed("aggregate_tensor", attributes={}), VerifyError, r"aggregate_tensor needs .*composer_config"),
    "a deallocate of the device": (
        operands("deallocate", lambda x: (1,)), VerifyError, r"deallocate takes a tensor first, got \(1,\)"),
}  # fmt: skip


@pytest.mark.parametrize("rule", REFUSED)
def test_a_broken_flat_program_is_refused(rule: str) -> None:
    change, error, words = REFUSED[rule]
    made = flat_program()
    change(made)
    with pytest.raises(error, match=words):
        verify_program(made)


def up_to(name: str, *results: Port) -> Program:
    """The program cut off behind an op and the next deallocate, with other results."""
    made = flat_program()
    del made.ops[made.ops.index(op_of(made, name)) + 2 :]
    made.results[:] = results
    return made


def test_where_a_result_may_be() -> None:
    verify_program(up_to("from_device", Port(14, True)))
    rows = flat_program()
    last = rows.ops.index(op_of(rows, "from_device"))
    del rows.ops[last:]
    rows.results[:] = [Port(13, True)]
    verify_program(rows)
    rows.results[:] = [Port(13, False)]
    with pytest.raises(ResidencyError, match=r"result 0 \(float32\[8, 8\] \(devices, rows\)\) is to be a full host"):
        verify_program(rows)
    tiles = up_to("from_device")
    value = tiles.new(replace(tiles.types[14], tile=True))
    moved = replace(op_of(tiles, "to_layout"), operands=(14,), results=(value,))
    tiles.ops += [moved, replace(op_of(tiles, "deallocate"), operands=(14,))]
    tiles.results[:] = [Port(value, True)]
    verify_program(tiles)
    tiles.results[:] = [Port(value, False)]
    with pytest.raises(ResidencyError, match=r"result 0 \(float32\[8, 8\] \(host, tiles\)\) is to be a full host"):
        verify_program(tiles)


def test_a_program_may_return_all_that_there_is() -> None:
    """Nothing runs on the devices, so there is no handle either."""
    made = lowered(jm.jit(lambda x: x, mesh=MESH).trace(X).lower())
    assert [op.name for op in made.ops] == []
    verify_program(made)


def on_host_first(x: Any) -> Any:
    """An order of axes that only a reshape says: on the host beside the transfers."""
    return jm.shard_to_full(jnp.exp(jm.full_to_shard(x, P(("x", "y")))), P(("x", "y")))


def test_a_reshape_is_also_done_on_the_host() -> None:
    made = lowered(jm.jit(on_host_first, mesh=MESH).trace(X).lower())
    verify_program(made)
    first = op_of(made, "reshape").results[0]
    assert made.types[first].host
    assert not made.types[first].tile
    made.types[first] = replace(made.types[first], host=False)
    with pytest.raises(ResidencyError, match=r"reshape takes operand 0 on the devices, in rows, got .*host"):
        verify_program(made)
