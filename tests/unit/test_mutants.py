"""Rules that only a program which breaks them shows: the verifiers of lowered programs, and edges of the arithmetic.

Programs that keep the rules pass with or without a check, so here every check is given what it is there for.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects.program import Op, Port, Program
from jaxmesh.dialects.residency import DEVICE, HOST
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType, verify
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import MissingRuleError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs import compat, walk
from jaxmesh.passes.lowering import lower
from jaxmesh.passes.mesh_shard.cancel_transfers import cancel_transfers
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from jaxmesh.passes.mesh_shard.verify import verify_no_ttir, verify_ttnn
from jaxmesh.passes.ttir_to_ttnn.driver import to_ttnn
from jaxmesh.passes.verify_program import verify_program
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshCoordinate,
    MeshMapperConfig,
    MeshShape,
    PlacementReplicate,
    PlacementShard,
)
from jaxmesh.sharding.distribution import claimed_equal, land, mesh_axis_dims, resolve_composer, resolve_mapper, rows_of
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, attributes_from_spec, plan_aggregate
from tests.generators.flat_programs import flat_of

SIZES = {"y": 2, "x": 4}
MESH = AbstractMesh((2, 4), ("y", "x"))
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)
ROWS = MeshMapperConfig([PlacementShard(0), PlacementReplicate()], (2, 4))
COLUMNS = MeshMapperConfig([PlacementShard(1), PlacementReplicate()], (2, 4))
JOIN = MeshComposerConfig([0, 1], (2, 1))


def there_and_back(x: Any) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))


def traced(body: Callable[..., Any], *args: Any) -> Any:
    """The jaxpr of a body, before the pass; it may bind the operations of TTNN itself."""
    return jm.jit(body, mesh=MESH).trace(*(args or (X,))).jaxpr


def lowered(body: Callable[..., Any]) -> Any:
    return jm.jit(body, mesh=MESH).trace(X).lower().jaxpr


def distribute(x: Any, config: MeshMapperConfig = ROWS) -> Any:
    return distribute_tensor_p.bind(x, mapper_config=config)


def aggregate(x: Any, config: MeshComposerConfig = JOIN) -> Any:
    return aggregate_tensor_p.bind(x, composer_config=config)


# --- no TTIR operation is left ---------------------------------------------------------------------------------------


def in_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (there_and_back(c), None), x, None, length=2)[0]


def in_cond(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, there_and_back, lambda y: y, x)


@pytest.mark.parametrize("body", [there_and_back, in_scan, in_cond, jax.jit(there_and_back)])
def test_a_mesh_shard_that_is_left_is_found_at_any_depth(body: Any) -> None:
    with pytest.raises(VerifyError, match=r"still holds a mesh_shard \(.*test_mutants\.py:\d+.*there_and_back"):
        verify_no_ttir(traced(body))
    with pytest.raises(VerifyError, match="still holds a mesh_shard"):
        verify_ttnn(traced(body), [HOST], SIZES)
    verify_no_ttir(lowered(body))
    verify_ttnn(lowered(body), [HOST], SIZES)


# --- configs and result types agree ----------------------------------------------------------------------------------


def with_params(program: Any, primitive: Any, **params: Any) -> Any:
    eqns = [e.replace(params={**e.params, **params}) if e.primitive is primitive else e for e in program.eqns]
    return walk.with_eqns(program, eqns, walk.open_jaxpr(program).outvars)


TWICE = MeshMapperConfig([PlacementShard(0), PlacementShard(0)], (2, 4))


@pytest.mark.parametrize(
    ("primitive", "params", "words"),
    [
        (distribute_tensor_p, {"mapper_config": COLUMNS}, r"distribute_tensor: .*shape \[16, 4\], .*says \[8, 8\]"),
        (distribute_tensor_p, {"mapper_config": TWICE}, r"axes 0 and 1 both name tensor dim 0"),
        (aggregate_tensor_p, {"composer_config": MeshComposerConfig([1, 0], (2, 1))},
         r"aggregate_tensor: .*shape \[8, 16\], .*says \[16, 8\]"),
        (aggregate_tensor_p, {"composer_config": MeshComposerConfig([0, 0], (2, 1))},
         r"axes 0 and 1 both name tensor dim 0"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_give_the_result_type_is_refused(primitive: Any, params: Any, words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify_ttnn(with_params(lowered(there_and_back), primitive, **params), [HOST], SIZES)


def test_a_distribute_in_a_program_fills_the_mesh() -> None:
    """A part of the mesh is legal eagerly only; the message has both counts."""
    part = MeshMapperConfig([PlacementShard(0), PlacementReplicate()], (2, 3))
    with pytest.raises(UnsupportedError, match="places 6 shards on 8 devices"):
        verify_ttnn(with_params(lowered(there_and_back), distribute_tensor_p, mapper_config=part), [HOST], SIZES)


# --- all devices take part in a transfer -----------------------------------------------------------------------------


def moves(x: Any) -> Any:
    return aggregate(distribute(x))


def branches(decides: Any, body: Any) -> Callable[[Any], Any]:
    return lambda x: lax.cond(decides(x), body, lambda y: y, x)


def loop(decides: Any, body: Any) -> Callable[[Any], Any]:
    return lambda x: lax.while_loop(decides, body, x)


def loop_deciding(decides: Any, body: Any) -> Callable[[Any], Any]:
    """The transfer stands in what decides."""
    return lambda x: lax.while_loop(lambda y: decides(y) & (body(y)[0, 0] > 0), lambda y: y, x)


@pytest.mark.parametrize(("name", "make"), [("cond", branches), ("while", loop), ("while", loop_deciding)])
def test_no_transfer_where_devices_go_different_ways(name: str, make: Any) -> None:
    def apart(_: Any) -> Any:
        return lax.axis_index("x") + lax.axis_index("y") > 0

    def together(x: Any) -> Any:
        return jnp.sum(x) > 0

    words = rf"{name} \(.*test_mutants.*decided by \w+\[\].*over mesh axis 'x', 'y'.*every device must take part"
    with pytest.raises(UnsupportedError, match=words):
        verify_ttnn(traced(make(apart, moves)), [HOST], SIZES)
    # The second: what decides may differ between devices, where nothing moves.
    for allowed in (make(together, moves), make(apart, jnp.tanh)):
        verify_ttnn(lower(traced(allowed), [HOST], SIZES).program, [HOST], SIZES)


def shares(x: Any) -> Any:
    return jm.full_to_shard(x, P("x"))


def chosen(x: Any, w: Any) -> Any:
    s = shares(x)
    return lax.cond(s[0] > 0, lambda: s * jnp.tanh(w).sum(), lambda: s)


def chosen_carry(x: Any, w: Any) -> Any:
    s = shares(x)
    return lax.cond(s[0] > 0, lambda: s * w.sum(), lambda: s - w.sum())


def repeated(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda c: (c.sum() < 100) & (jnp.tanh(w).sum() < 9), lambda c: c + w.sum(), shares(x))


@pytest.mark.parametrize("body", [chosen, chosen_carry, repeated])
def test_a_full_tensor_is_read_where_devices_go_different_ways(body: Any) -> None:
    """It is brought over before the loop or branch, so that nothing moves inside."""
    x, w = np.arange(8, dtype=np.float32) - 3, np.ones(3, np.float32)
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    got = jm.jit(lambda x, w: jm.shard_to_full(body(x, w), P("x")), mesh=mesh)(x, w)
    for at in range(4):
        s = x[2 * at : 2 * at + 2]
        if body is chosen:
            want = s * np.tanh(w).sum() if s[0] > 0 else s
        elif body is chosen_carry:
            want = s * 3 if s[0] > 0 else s - 3
        else:
            want = s
            while want.sum() < 100:
                want = want + 3
        np.testing.assert_allclose(np.asarray(got)[2 * at : 2 * at + 2], want, rtol=1e-6)


# --- operands are where they are needed ------------------------------------------------------------------------------


COPY = MeshMapperConfig([PlacementReplicate()] * 2, (2, 4))


@pytest.mark.parametrize(
    ("body", "inputs", "words"),
    [
        (moves, [DEVICE, HOST], r"distribute_tensor \(.*needs operand 0 on the host, but it is on the device;"),
        (lambda x, y: aggregate(x), [HOST, HOST], r"aggregate_tensor \(.*operand 0 on the device.*is on the host;"),
        (lambda x, y: y * distribute(x, COPY), [HOST, HOST], r"mul \(.*operand 0 on the device.*is on the host;"),
        (lambda x, y: distribute(x, COPY) * y, [HOST, HOST], r"mul \(.*operand 1 on the device.*is on the host;"),
        (lambda x, y: jax.jit(lambda a: distribute(a, COPY) * y)(x), [HOST, HOST], r"operand \d on the device"),
        (lambda x, y: lax.scan(lambda c, _: (c * y, c), distribute(x, COPY), None, length=2), [HOST, HOST],
         r"operand \d on the device, but it is on the host"),
    ],
)  # fmt: skip
def test_an_operand_on_the_wrong_side_is_refused(body: Any, inputs: Any, words: str) -> None:
    def two(x: Any, y: Any) -> Any:
        return body(x, y) if body is not moves else body(x)

    with pytest.raises(ResidencyError, match=words):
        verify_ttnn(traced(two, X, X), inputs, SIZES)
    # The pass writes the missing transfers out, and then nothing is refused.
    verify_ttnn(lower(traced(two, X, X), inputs, SIZES).program, inputs, SIZES)


# --- flat programs ---------------------------------------------------------------------------------------------------


def flat_program() -> Program:
    """get_device, distribute, to_device, to_layout, tanh, full, add, to_layout, from_device, aggregate; deallocates."""

    def body(x: Any) -> Any:
        return jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, P("y"))) + 1.0, P("y"))

    made = to_ttnn(flat_of(jm.jit(body, mesh=MESH).trace(X).lower(), "ttnn"))
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
    "a sharded argument in rows": (
        lambda made: made.arguments.append(Port(3, True)), ResidencyError, r"argument 1 \(.*devices, rows.*=True"),
    "a result on the devices": (
        lambda made: made.results.append(Port(8, False)), VerifyError, r"results \[8\] are not there at the end"),
    "a value that nothing gives": (
        lambda made: made.results.append(Port(99, False)), VerifyError, r"results \[99\] are not there"),
    "a value given twice": (given_again, VerifyError, r"tanh gives value 5, which is given already"),
    "a value given after it is gone": (given_after_the_end, VerifyError, r"tanh gives value 4, which is given already"),
    "a value that is never given": (operands("tanh", lambda x: (6,)), VerifyError, r"uses value 6, which nothing"),
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
    "compute in rows": (changed("tanh", result={"tile": False}), ResidencyError, r"tanh works on tiled.*devices, rows"),
    "compute of rows": (operands("tanh", lambda x: (3,)), VerifyError, r"uses value 3 .*after it was deallocated"),
    "tiles on the host": (changed("tanh", result={"host": True}), ResidencyError, r"tanh works on tiled.*host, tiles"),
    "an unknown and a known attribute": (
        changed("full", attributes={"shape": (), "fill_value": 1.0, "odd": 1, "even": 2}), VerifyError,
        r"full has no attribute even, odd; its attributes are: shape"),
    "an attribute of an op that has none": (
        changed("tanh", attributes={"odd": 1}), VerifyError, r"tanh has no attribute odd; its attributes are: none"),
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
    verify_program(up_to("from_device", Port(9, True)))
    rows = flat_program()
    last = rows.ops.index(op_of(rows, "from_device"))
    del rows.ops[last:]
    rows.results[:] = [Port(8, True)]
    verify_program(rows)
    rows.results[:] = [Port(8, False)]
    with pytest.raises(ResidencyError, match=r"result 0 \(float32\[8, 8\] \(devices, rows\)\) is to be a full host"):
        verify_program(rows)
    tiles = up_to("from_device")
    value = tiles.new(replace(tiles.types[9], tile=True))
    moved = replace(op_of(tiles, "to_layout"), operands=(9,), results=(value,))
    tiles.ops += [moved, replace(op_of(tiles, "deallocate"), operands=(9,))]
    tiles.results[:] = [Port(value, True)]
    verify_program(tiles)
    tiles.results[:] = [Port(value, False)]
    with pytest.raises(ResidencyError, match=r"result 0 \(float32\[8, 8\] \(host, tiles\)\) is to be a full host"):
        verify_program(tiles)


def test_a_program_may_return_all_that_there_is() -> None:
    """Nothing runs on the devices, so there is no handle either."""
    made = to_ttnn(flat_of(jm.jit(lambda x: x, mesh=MESH).trace(X).lower(), "ttnn"))
    assert [op.name for op in made.ops] == []
    verify_program(made)


def on_host_first(x: Any) -> Any:
    """An order of axes that only a reshape says: on the host beside the transfers."""
    return jm.shard_to_full(jnp.exp(jm.full_to_shard(x, P(("x", "y")))), P(("x", "y")))


def test_a_reshape_is_also_done_on_the_host() -> None:
    made = to_ttnn(flat_of(jm.jit(on_host_first, mesh=MESH).trace(X).lower(), "ttnn"))
    verify_program(made)
    first = op_of(made, "reshape").results[0]
    assert made.types[first].host
    assert not made.types[first].tile
    made.types[first] = replace(made.types[first], host=False)
    with pytest.raises(ResidencyError, match=r"reshape works on tiled .*host.*devices, rows"):
        verify_program(made)


# --- the pass --------------------------------------------------------------------------------------------------------


def test_what_joins_nothing_brings_a_device_value_back() -> None:
    """`shard_to_full` over axes of size 1 is folded on the host alone."""
    mesh = jm.make_mesh((1, 4), ("y", "x"))

    def back(x: Any) -> Any:
        said = {"shard_type": "devices", "shard_direction": "shard_to_full", "shard_shape": [1], "shard_dims": [0, -1]}
        return jm.mesh_shard(x, **said)

    def summed(x: Any) -> Any:
        return back(lax.psum(jm.full_to_shard(x, P("x")), "x"))

    def scaled(x: Any) -> Any:
        return back(2 * lax.psum(3 * jm.full_to_shard(x, P("x")), "x"))

    x = np.arange(8, dtype=np.float32)
    want = x.reshape(4, 2).sum(0)
    for body, times in ((summed, 1), (scaled, 6)):
        out = jm.jit(body, mesh=mesh)(x)
        assert isinstance(out, jax.Array)
        np.testing.assert_array_equal(out, times * want)
        names = [e.primitive.name for e in walk.all_eqns(jm.jit(body, mesh=mesh).trace(x).lower().jaxpr)]
        assert names.count("aggregate_tensor") == 1
    folded = jm.jit(lambda x: back(x * 2), mesh=mesh).trace(x).lower().jaxpr
    assert [e.primitive.name for e in walk.all_eqns(folded)] == ["mul"]


@pytest.mark.parametrize("direction", ["full_to_shard", "shard_to_full"])
def test_the_old_identity_is_nothing(direction: str) -> None:
    """Also of a value on the devices, which it does not bring back."""

    def same(x: Any) -> Any:
        said = {"shard_type": "identity", "shard_shape": [1], "shard_dims": [-1]}
        return jm.mesh_shard(x, shard_direction=direction, **said)

    bare = lowered(lambda x: there_and_back(x * 2))
    with_it = lowered(lambda x: there_and_back(same(x * 2)))
    inside = lowered(lambda x: jm.shard_to_full(same(jm.full_to_shard(x * 2, P("y")) * 2), P("y")))
    for program in (with_it, inside):
        assert [e.primitive.name for e in program.eqns] == [e.primitive.name for e in bare.eqns]


def in_a_loop(x: Any, config: MeshMapperConfig) -> Any:
    """Carried on the devices, so that the aggregate is a collective; at a program's end it costs nothing."""
    return lax.scan(lambda c, _: (2 * c, aggregate(c)), distribute(x, config), None, length=2)[1][1]


def test_copies_are_joined_like_shards() -> None:
    """The composer of TTNN does not know that shards are equal."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    f = jm.jit(lambda x: in_a_loop(x, COPY), mesh=jm.make_mesh((2, 4), ("y", "x")))
    np.testing.assert_array_equal(np.asarray(f(x)), np.concatenate([2 * x] * 2))


def moves_twice(x: Any) -> Any:
    return moves(moves(x))


@pytest.mark.parametrize(
    ("change", "body"),
    [
        (lambda program: lower_mesh_shards(program, [HOST], SIZES), there_and_back),
        (lambda program: cancel_transfers(program, [HOST], SIZES), moves_twice),
    ],
)
def test_a_body_that_is_called_twice_stays_one(change: Any, body: Any) -> None:
    """JAX compiles what is the same object once."""
    half = jax.jit(body)
    program = change(traced(lambda x: half(half(x) + 1)))
    bodies = [e.params["jaxpr"] for e in program.eqns if "jaxpr" in e.params]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]
    assert bodies[0] is not traced(lambda x: half(x)).eqns[0].params["jaxpr"]


# --- what is cancelled, and what is not ------------------------------------------------------------------------------


def there_and_there(spec: P) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        s = jm.full_to_shard(jm.shard_to_full(jnp.sin(jm.full_to_shard(x, spec)), spec), spec)
        return jm.shard_to_full(jnp.cos(s), spec)

    return body


def names_of(program: Any) -> list[str]:
    return [e.primitive.name for e in walk.all_eqns(program)]


@pytest.mark.parametrize(
    ("spec", "shape", "names"),
    [
        (P("y", "x"), (16, 8), ["distribute_tensor", "sin", "cos", "aggregate_tensor"]),
        # One dim and two mesh axes: the composer needs a dim of 1 before, which goes with the transfers.
        (P("x"), (8,), ["distribute_tensor", "sin", "cos", "reshape", "aggregate_tensor", "reshape"]),
        # An order of axes that only reshapes say: those between the transfers go with them.
        (P(("x", "y")), (16, 8), ["reshape", "distribute_tensor", "reshape", "sin", "cos", "reshape",
                                  "aggregate_tensor", "reshape"]),
    ],
)  # fmt: skip
def test_inverse_transfers_leave_nothing(spec: P, shape: tuple[int, ...], names: list[str]) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert names_of(jm.jit(there_and_there(spec), mesh=MESH).trace(x).lower().jaxpr) == names


def test_an_inverse_in_another_shape_is_one_reshape() -> None:
    """The full tensor is reshaped between, rows with the split dim; so the shards are, and nothing moves."""

    def body(x: Any) -> Any:
        full = jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P("x"))), P("x"))
        return jm.shard_to_full(jnp.cos(jm.full_to_shard(full.reshape(8, 4, 4), P("x"))), P("x"))

    program = lowered(body)
    assert names_of(program) == ["distribute_tensor", "sin", "reshape", "cos", "aggregate_tensor"]
    assert [e.outvars[0].aval.shape for e in program.eqns][1:4] == [(4, 8), (2, 4, 4), (2, 4, 4)]


def test_only_a_reshape_back_is_taken_away() -> None:
    """The others are the user's, each with its line."""
    assert names_of(lowered(lambda x: there_and_back(x.reshape(8, 16).reshape(4, 32)))).count("reshape") == 2
    assert names_of(lowered(lambda x: there_and_back(x.reshape(8, 16).reshape(16, 8)))).count("reshape") == 0


def test_a_reshape_that_cuts_other_pieces_is_no_inverse() -> None:
    """The same axis on a dim in the same place, but other elements on each device."""
    x = np.arange(128, dtype=np.float32).reshape(16, 8)

    def body(x: Any) -> Any:
        full = jm.shard_to_full(2 * jm.full_to_shard(x, P(None, "x")), P(None, "x")).reshape(32, 4)
        return jm.shard_to_full(by_place(jm.full_to_shard(full, P(None, "x")), "x"), P(None, "x"))

    assert names_of(lowered(body)).count("distribute_tensor") == 2
    weights = 1 + 10 * np.arange(4, dtype=np.float32)
    got = jm.jit(body, mesh=jm.make_mesh((2, 4), ("y", "x")))(x)
    np.testing.assert_array_equal(np.asarray(got), (2 * x).reshape(32, 4) * weights)


def test_an_axis_of_size_1_over_which_a_value_varies_keeps_its_transfers() -> None:
    """The shard varies over it and the distribute's result does not, so one cannot stand for the other."""
    mesh, spec = jm.make_mesh((1, 4), ("y", "x")), P("x", "y")

    def body(x: Any) -> Any:
        s = jm.full_to_shard(jm.shard_to_full(2 * jm.full_to_shard(x, spec), spec), spec)
        return jm.shard_to_full(lax.psum(3 * s, "y"), spec)

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    program = jm.jit(body, mesh=mesh)
    np.testing.assert_array_equal(np.asarray(program(x)), 6 * x)
    for eqn in walk.all_eqns(program.trace(x).lower().jaxpr):
        if eqn.primitive.name == "pvary":
            assert not compat.varying_axes(getattr(eqn.invars[0], "aval", X)) & set(eqn.params["axes"])


# --- where transfers are written -------------------------------------------------------------------------------------


def test_a_branch_that_does_nothing_brings_its_input() -> None:
    """Its other branch gives a device value; this one has no equation of its own to speak for it."""

    def body(x: Any, w: Any) -> Any:
        return jm.shard_to_full(lax.cond(w[0, 0] > 0, lambda: jm.full_to_shard(x, P()), lambda: x), P())

    program = jm.jit(body, mesh=MESH).trace(X, X).lower()
    (turn,) = [e for e in walk.all_eqns(program.jaxpr) if e.primitive.name == "cond"]
    assert [names_of(b) for b in turn.params["branches"]] == [["distribute_tensor"]] * 2
    notes = [str(n) for row in program.explain() for n in row.notes]
    assert any("the full host tensor that the cond gives on the devices is copied to each" in n for n in notes), notes


def twice(s: Any, b: Any) -> Any:
    return (s + b) * b


READS = {
    "straight": twice,
    "call": jax.jit(twice),
    "scan": lambda s, b: lax.scan(lambda c, _: (twice(c, b), None), s, None, length=3)[0],
    "scan over it": lambda s, b: lax.scan(lambda c, b: (twice(c, b), None), s, jnp.stack([b, b]))[0],
    "while": lambda s, b: lax.fori_loop(0, 3, lambda _, c: twice(c, b), s),
    "cond": lambda s, b: lax.cond(b[0, 0] > 0, lambda: twice(s, b), lambda: s - b),
    "cond with others": lambda s, b: lax.cond(b[0, 0] > 0, lambda o, s, b: s - b, lambda o, s, b: s + o, 1.0, s, b),
}


@pytest.mark.parametrize("name", READS)
def test_a_full_tensor_is_brought_once_and_outside(name: str) -> None:
    """Read twice on the devices, in a body or not: one replicating distribute, before the body."""

    def body(x: Any, b: Any) -> Any:
        return jm.shard_to_full(READS[name](jm.full_to_shard(x, P("y")), b), P("y"))

    program = jm.jit(body, mesh=MESH).trace(X, jax.ShapeDtypeStruct((8, 8), jnp.float32)).lower().jaxpr
    assert [e.primitive.name for e in program.eqns].count("distribute_tensor") == 2
    assert names_of(program).count("distribute_tensor") == 2
    assert [e.params.get("mapper_config") for e in program.eqns].count(COPY) == 1


def test_what_a_branch_needs_on_the_host_stays_there() -> None:
    """Also where its surroundings read it on the devices: it is brought for those, and distributed in the branch."""

    def inner(x: Any, w: Any) -> Any:
        turned = lax.cond(w[0, 0] > 0, lambda: there_and_back(x), lambda: x)
        return turned, x * jm.full_to_shard(w, P())

    def body(x: Any, w: Any) -> Any:
        turned, product = jax.jit(inner)(x, w)
        return turned, jm.shard_to_full(product, P())

    names = names_of(jm.jit(body, mesh=MESH).trace(X, X).lower().jaxpr)
    assert names.count("distribute_tensor") == 3
    assert names.count("aggregate_tensor") == 2
    assert not {"dynamic_slice", "axis_index"} & set(names)


def test_what_a_loop_reads_on_the_host_stays_there() -> None:
    """What decides, and where a carry starts that its body does not read; both are read on the devices elsewhere."""

    def deciding(x: Any, w: Any, k: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < w.sum(), lambda c: c + k, k)

    def starting(x: Any, w: Any, k: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: k + 1, w)

    for loops in (deciding, starting):

        def inner(x: Any, w: Any, k: Any, loops: Any = loops) -> Any:
            return loops(x, w, k), w * jm.full_to_shard(x, P())

        def body(x: Any, w: Any, k: Any, inner: Any = inner) -> Any:
            looped, product = jax.jit(inner)(x, w, k)
            return looped, jm.shard_to_full(product, P())

        program = jm.jit(body, mesh=MESH).trace(X, X, X).lower().jaxpr
        (loop,) = [e for e in program.eqns if e.primitive.name == "while"]
        assert walk.open_jaxpr(program).invars[1] in loop.invars
        assert names_of(program).count("aggregate_tensor") == 1


def test_a_solver_is_lowered_with_its_bodies() -> None:
    def solved(x: Any, give: Callable[[Any], Any] = lambda v: v) -> Any:
        def scaled(by: float) -> Callable[..., Any]:
            return lambda *v: give(jm.shard_to_full(by * jm.full_to_shard(v[-1], P("y")), P("y")))

        return lax.custom_linear_solve(scaled(2.0), x, scaled(0.5))

    names = names_of(lowered(solved))
    assert names[0] == "custom_linear_solve"
    assert names.count("distribute_tensor") == names.count("aggregate_tensor") == 2
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_array_equal(np.asarray(jm.jit(solved, mesh=jm.make_mesh((2, 4), ("y", "x")))(x)), x / 2)
    words = r"custom_linear_solve.*its body moves tensors between host and devices"
    with pytest.raises(MissingRuleError, match=words):
        lowered(lambda x: solved(x, lambda v: jm.full_to_shard(v, P())))


def test_a_device_value_is_split_where_it_is() -> None:
    """One local slice per mesh axis that cuts; what mesh axes do not cut apart goes through the host."""

    def whole(x: Any) -> Any:
        return lax.psum(jm.full_to_shard(x, P("y")), "y")

    def split(config: MeshMapperConfig) -> Any:
        return lower(traced(lambda x: distribute(whole(x), config)), [HOST], SIZES).program

    def cut(config: MeshMapperConfig) -> list[str]:
        names = names_of(split(config))
        return [n for n in names if n in ("dynamic_slice", "axis_index", "aggregate_tensor", "distribute_tensor")]

    columns = split(COLUMNS)
    assert cut(COLUMNS) == ["distribute_tensor", "axis_index", "dynamic_slice"]
    both = MeshMapperConfig([PlacementShard(0), PlacementShard(1)], (2, 4))
    assert cut(both) == ["distribute_tensor"] + ["axis_index", "dynamic_slice"] * 2
    assert cut(CROSSED) == ["distribute_tensor", "aggregate_tensor", "distribute_tensor"]
    assert cut(COPY) == ["distribute_tensor"]
    # Its own piece starts at the device's coordinate times 4 in the dim that is cut, and at 0 in the other.
    numbers = [a.val for e in columns.eqns for a in e.invars if isinstance(a, compat.Literal)]
    assert sorted(int(n) for n in numbers) == [0, 4]
    assert {e.outvars[0].aval.shape for e in columns.eqns if e.primitive.name == "dynamic_slice"} == {(8, 4)}
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    joined = MeshComposerConfig([1, 0], (2, 1))
    f = jm.jit(lambda x: aggregate(distribute(whole(x), COLUMNS), joined), mesh=jm.make_mesh((2, 4), ("y", "x")))
    np.testing.assert_array_equal(np.asarray(f(x)), x[:8] + x[8:])


# --- the attributes of a mesh_shard ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "pieces", "dims", "words"),
    [
        ("replicate", (2,), (-1,), "shard_shape = [1] (or 2 ones for this tensor of rank 2), got [2]"),
        ("replicate", (1, 2), (-1,), "got [1, 2]"),
        ("replicate", (1, 1, 1), (-1,), "got [1, 1, 1]"),
        ("replicate", (1,), (0,), "shard_dims = [-1] (or one -1 per axis of the mesh y=2, x=4), got [0]"),
        ("replicate", (1,), (-1, 1), "got [-1, 1]"),
        ("replicate", (1,), (-1, -1, -1), "got [-1, -1, -1]"),
        ("devices", (2, 1), (0,), "[0] has 1 entries and the mesh y=2, x=4 has 2 axes; write -1"),
        ("devices", (2,), (0, -1), "[2] has 1 entries and the tensor has rank 2"),
        ("devices", (2, 1), (0, 2), "names dim 2 for mesh axis 'x' of size 4, but the tensor has rank 2; allowed are "
         "-1 (no dim) to 1"),
        ("devices", (2, 1), (-2, -1), "names dim -2 for mesh axis 'y' of size 2"),
        ("devices", (2, 1), (0, 1), "split the dims into [2, 4] pieces; write shard_shape = [2, 4]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("direction", ShardDirection)
def test_attributes_that_contradict_each_other(
    kind: str, pieces: tuple[int, ...], dims: tuple[int, ...], words: str, direction: ShardDirection
) -> None:
    with pytest.raises(VerifyError, match=re.escape(words)):
        verify(MeshShardAttributes(ShardType(kind), direction, pieces, dims), (16, 8), SIZES)


@pytest.mark.parametrize("pieces", [(1,), (1, 1)])
@pytest.mark.parametrize("dims", [(-1,), (-1, -1)])
@pytest.mark.parametrize("direction", ShardDirection)
def test_replicate_is_written_short_or_long(
    pieces: tuple[int, ...], dims: tuple[int, ...], direction: ShardDirection
) -> None:
    assert verify(MeshShardAttributes(ShardType.REPLICATE, direction, pieces, dims), (3, 5), SIZES) == (3, 5)


@pytest.mark.parametrize(
    "back",
    [
        lambda s, **assumed: jm.shard_to_full(s, P("y"), **assumed),
        lambda s, **assumed: jm.mesh_shard(
            s, shard_type="devices", shard_direction="shard_to_full", shard_shape=[2, 1], shard_dims=[0, -1], **assumed
        ),
    ],
)
def test_copies_are_taken_for_equal_only_when_that_is_said(back: Callable[..., Any]) -> None:
    words = r"with shard_dims \[0, -1\] does not aggregate mesh axis 'x', but .* still varies over it.*psum"
    for said in ({}, {"assume_replicated": False}):
        with pytest.raises(jm.ReplicationError, match=words):
            traced(lambda x, said=said: back(jm.full_to_shard(x, P("y", "x")), **said))
    assert traced(lambda x: back(jm.full_to_shard(x, P("y", "x")), assume_replicated=True)).out_avals[0].shape == (
        16,
        2,
    )


@pytest.mark.parametrize("axes", [("x",), ("y", "x")])
def test_a_shard_is_not_split_again(axes: tuple[str, ...]) -> None:
    said = ", ".join(map(repr, sorted(axes)))
    words = rf"mesh_shard full_to_shard needs a full tensor.*varies over mesh axis {said}; it is a shard already"
    with pytest.raises(jm.ReplicationError, match=words):
        traced(lambda x: jm.full_to_shard(jm.full_to_shard(x, P(*axes)), P()))


def test_a_refused_split_names_its_own_axes() -> None:
    words = "dim 1 has size 6, which 4 devices ('x' of size 4) do not divide; pad the dim to 8 or leave it whole."
    with pytest.raises(VerifyError, match=re.escape(words)):
        traced(lambda x: jm.full_to_shard(x, P("y", "x")), jnp.ones((4, 6)))
    words = "which 8 devices ('y' of size 2 and 'x' of size 4) do not divide; pad the dim to 16"
    with pytest.raises(VerifyError, match=re.escape(words)):
        traced(lambda x: jm.full_to_shard(x, P(("x", "y"))), jnp.ones((9,)))


# --- transfers inside of a program -----------------------------------------------------------------------------------


def test_transfers_inside_of_a_loop() -> None:
    """A loop that carries a device value: its transfers compile to slices and gathers, and the oracle is by hand."""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    numbers = {
        "large": np.arange(8, dtype=np.int32) + (1 << 24),
        "two bits": np.array([-2, -1, 0, 1] * 2).astype(jnp.int2),
        "unsigned": np.array([3, 1, 0, 2] * 2).astype(jnp.uint2),
        "four": np.array([-8, -1, 0, 7] * 2).astype(jnp.int4),
    }

    def apart(v: Any) -> Any:
        full = jm.shard_to_full(by_place(jm.full_to_shard(v, P("x")), "y"), P("x"), assume_replicated=True)
        # Every device reads the copy at coordinate 0, not its own.
        return jm.shard_to_full(2 * jm.full_to_shard(full, P("y")), P("y"))

    def drawn(keys: Any) -> Any:
        own = jax.vmap(lambda k: jax.random.fold_in(k, lax.axis_index("x")))(jm.full_to_shard(keys, P()))
        return jax.random.key_data(jm.shard_to_full(own, P(), assume_replicated=True))

    def body(x: Any, numbers: Any, keys: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            joined = {k: jm.shard_to_full(jm.full_to_shard(n, P("x")), P("x")) for k, n in numbers.items()}
            return c, (crossed(x), apart(x), drawn(keys), joined)

        _, out = lax.scan(step, distribute(x, COPY), None, length=1)
        return jax.tree.map(lambda v: v[0], out)

    keys = jax.random.split(jax.random.key(3), 2)
    across, one, words, joined = jm.jit(body, mesh=jm.make_mesh((2, 4), ("y", "x")), check_replication=False)(
        x, numbers, keys
    )
    want = x.copy()
    for place in range(8):
        row, column = divmod(place, 2)
        want[2 * row : 2 * row + 2, 4 * column : 4 * column + 4] *= (1 + 10 * (place // 4)) * (1 + place % 4)
    np.testing.assert_array_equal(np.asarray(across), want)
    np.testing.assert_array_equal(np.asarray(one), 2 * x)
    np.testing.assert_array_equal(
        np.asarray(words), jax.random.key_data(jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys))
    )
    for name, n in numbers.items():
        assert joined[name].dtype == n.dtype
        np.testing.assert_array_equal(np.asarray(joined[name]).astype(np.int64), n.astype(np.int64))


# --- values ----------------------------------------------------------------------------------------------------------


def test_shapes_compare_by_kind_and_values() -> None:
    assert MeshShape(2, 4) == MeshShape([2, 4]) == (2, 4)
    assert MeshShape(2, 4) != (2, 5)
    assert MeshShape(2, 4) != (2, 3)
    assert MeshShape(2, 4) != MeshCoordinate(2, 4)
    assert MeshShape(2, 4) != MeshShape(4, 2)
    assert len({MeshShape(2, 4), MeshShape([2, 4]), (2, 4), MeshShape(4, 2)}) == 2
    assert hash(MeshShape(2, 4)) == hash((2, 4)) != hash(MeshShape(4, 2))
    assert PlacementReplicate() == PlacementReplicate()
    assert PlacementShard(1) == PlacementShard(1) != PlacementShard(2)


@pytest.mark.parametrize("values", [(), ((),), (0,), (2, -1), ([2, 0],)])
def test_a_mesh_has_axes_of_at_least_one_device(values: Any) -> None:
    with pytest.raises(VerifyError, match=r"every axis at least 1, got \("):
        MeshShape(*values)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MeshShape("24"), r"MeshShape takes integers, got '24'"),
        (lambda: MeshShape(2, True), r"MeshShape takes integers, got \(2, True\)"),
        (lambda: MeshCoordinate(1.5, 2), r"MeshCoordinate takes integers, got \(1\.5, 2\)"),
        (lambda: PlacementShard(False), r"PlacementShard takes integers, got \(False,\)"),
        (lambda: MeshComposerConfig([0, 0.5]), r"MeshComposerConfig takes integers, got \[0, 0\.5\]"),
        (lambda: MeshMapperConfig([PlacementReplicate(), 3]), r"MeshMapperConfig takes .* as placements, got 3"),
        (lambda: MeshMapperConfig([], b"12"), r"MeshShape takes integers, got b'12'"),
    ],
)
def test_what_is_no_integer_is_shown_with_its_owner(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(jm.ArgumentTypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("value", "field"),
    [(PlacementShard(1), "dim"), (ROWS, "placements"), (ROWS, "mesh_shape_override"), (JOIN, "dims"),
     (JOIN, "mesh_shape_override"), (attributes_from_spec(P("y"), 1, SIZES), "shard_dims"),
     (resolve_mapper(ROWS, (2, 4), (16, 8)), "dims"), (resolve_composer(JOIN, (2, 4), (8, 8)), "dims"),
     (land((2, 4), (2, 4)), "mode")],
)  # fmt: skip
def test_values_do_not_change_and_are_keys(value: Any, field: str) -> None:
    assert len({value, copy.copy(value)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)


def test_an_axis_of_size_1_has_no_factor() -> None:
    """Neither in an order of axes that a reshape says, nor in one that TTIR can say."""
    sizes = {"y": 2, "w": 1, "x": 4}
    said = attributes_from_spec(P(("x", "w", "y")), 1, sizes)
    assert (said.shard_shape, said.shard_dims) == ((4, 2, 1), (1, -1, 0))
    assert (said.factors, said.dims) == (((4, 2, -1),), (0, -1, 0))
    assert said.factored((16,)) == (4, 2, 2)
    assert said.factored_local((2,)) == (1, 1, 2)
    said = attributes_from_spec(P(("y", "w", "x")), 1, sizes)
    assert (said.shard_shape, said.shard_dims, said.factors) == ((8,), (0, -1, 0), (None,))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P("z"), "names mesh axis 'z', but the mesh has the axes ('y', 'x')"),
        (P("y", ("x", "y")), "names mesh axis 'y' 2 times; an axis may split one dim once"),
        (P("y", unreduced={"x"}), "has unreduced or reduced axes, but mesh_shard only splits dims"),
        (P("y", P.UNCONSTRAINED), "has an UNCONSTRAINED entry; mesh_shard needs an axis, a tuple or None"),
        (P("y", None, None), "has 3 entries, but the tensor has rank 2"),
    ],
)
def test_a_spec_that_says_no_split_is_refused(spec: P, words: str) -> None:
    with pytest.raises(jm.SpecError, match=re.escape(words)):
        attributes_from_spec(spec, 2, SIZES)


def test_fewer_chunks_than_places_leave_the_last_ones_empty() -> None:
    held = resolve_mapper(MeshMapperConfig(SHARD, [8]), (2, 4), (6,))
    assert held.chunks == (6,)
    assert held.holders == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert [held.index(place) for _, place in held.placed()] == [(slice(n, n + 1),) for n in range(6)]


def test_two_dropped_axes_need_no_reshape() -> None:
    plan = plan_aggregate((2, 3, 4), (-1, 0, -1), (2, 2, 2))
    assert (plan.before, plan.after) == (None, None)
    assert plan.config == MeshComposerConfig([2, 0, 1], (1, 2, 1))


@pytest.mark.parametrize(
    ("config", "claimed"),
    [
        (JOIN, ((1,), ())),
        (MeshComposerConfig([0, 1], (2, 2)), ((), ((1, 2),))),
        (MeshComposerConfig([0, 1], (1, 2)), ((0,), ((1, 2),))),
        (MeshComposerConfig([0, 1], (2, 4)), ((), ())),
        (MeshComposerConfig([0], (8,)), ((), ())),
        (FIRST_DEVICE, ((0, 1), ())),
    ],
)
def test_which_copies_a_composer_takes_for_equal(config: MeshComposerConfig, claimed: Any) -> None:
    assert claimed_equal(resolve_composer(config, (2, 4), (8, 8))) == claimed


def test_the_axes_on_each_dim_are_in_mesh_order() -> None:
    assert rows_of((1, None, 1, 0), 3) == [(3,), (0, 2), ()]


def test_a_distribution_that_leaves_devices_out_has_no_dims_per_axis() -> None:
    for drop in (False, True):
        assert mesh_axis_dims(land((2, 2), (2, 4)), (0, 1), drop_single=drop) is None
        assert mesh_axis_dims(land((3,), (2, 2)), (0,), drop_single=drop) is None
        assert mesh_axis_dims(land((2,), (2, 4)), (0,), drop_single=drop) is None
        assert mesh_axis_dims(land((1,), (2, 4)), (0,), drop_single=drop) == ((None, None) if drop else None)
        assert mesh_axis_dims(land((2, 4), (2, 4)), (1, None), drop_single=drop) == (1, None)
        assert mesh_axis_dims(land((8,), (2, 4)), (1,), drop_single=drop) == (1, 1)
    assert mesh_axis_dims(land((2, 1), (2, 4)), (0, 1), drop_single=True) == (0, None)
    assert mesh_axis_dims(land((2, 1), (2, 4)), (0, 1), drop_single=False) is None


SHARD = [PlacementShard(0)]
REPLICATE = [PlacementReplicate()]


@pytest.mark.parametrize(
    ("resolve", "words"),
    [
        (lambda: resolve_mapper(MeshMapperConfig(SHARD, [8]), (2, 4), (9,)),
         "dim 0 of size 9 over the 8 places of distribution axis 0 ([8]) gives 4 shards of 2 and one of 1; "
         "pad the dim to 16 or"),
        (lambda: resolve_mapper(MeshMapperConfig(REPLICATE + SHARD), (2, 4), (6,)),
         "dim 0 of size 6 over the 4 places of distribution axis 1 ([2, 4]) gives 3 chunks of 2; pad the dim to 8 or"),
        (lambda: resolve_mapper(MeshMapperConfig(SHARD), (2, 4), (8,)),
         "distribution shape [2, 4], got 1 placements for 2 axes: [PlacementShard(0)]"),
        (lambda: resolve_composer(MeshComposerConfig([0]), (2, 4), (8,)),
         "distribution shape [2, 4], got 1 dims for 2 axes: [0]"),
        (lambda: resolve_composer(MeshComposerConfig([0, -1]), (2, 4), (8,)),
         "axes 0 and 1 both name tensor dim 0 (given [0, -1])"),
        (lambda: resolve_composer(MeshComposerConfig([0, 2]), (2, 4), (8, 8)), "dim 2 of a tensor of rank 2; "
         "allowed dims: -2 to 1."),
        (lambda: resolve_composer(MeshComposerConfig([0, -3]), (2, 4), (8, 8)), "dim -3 of a tensor of rank 2"),
        (lambda: resolve_mapper(MeshMapperConfig(SHARD + REPLICATE), (2, 4), ()),
         "PlacementShard(0) names dim 0 of a tensor of rank 0; allowed dims: none"),
        (lambda: traced(lambda x: jm.full_to_shard(x, P(None, "x")), jnp.ones((4, 6))),
         "full_to_shard of shape [4, 6] with P"),
        (lambda: land((3, 3), (2, 4)), "[3, 3] has 9 places, but the mesh [2, 4] has only 8 devices"),
    ],
)  # fmt: skip
def test_a_refused_distribution_says_both_values(resolve: Callable[[], Any], words: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(words)):
        resolve()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("full_to_shard", lambda: jm.full_to_shard(1.0, P())),
        ("shard_to_full", lambda: jm.shard_to_full(1.0, P())),
        ("mesh_shard", lambda: replicated(1.0)),
        ("distribute_tensor", lambda: distribute(jnp.ones((8, 8)))),
        ("aggregate_tensor", lambda: aggregate(jnp.ones((8, 8)))),
    ],
)
def test_outside_of_a_program_the_operation_is_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(jm.UnloweredError, match=f"^{name} has no execution rule"):
        call()


def test_an_aggregate_of_nothing_keeps_its_type() -> None:
    for dtype in (np.int8, np.float16):
        x = np.zeros((0, 4), dtype)
        out = jm.jit(lambda x: in_a_loop(x, ROWS), mesh=jm.make_mesh((2, 4), ("y", "x")))(x)
        assert (out.shape, out.dtype) == ((0, 4), dtype)


# --- vmap and transposes ---------------------------------------------------------------------------------------------

BOTH = MeshMapperConfig([PlacementShard(-1), PlacementShard(0)], (2, 4))
JOIN_BOTH = MeshComposerConfig([-1, 0], (2, 4))
SECOND = MeshMapperConfig([PlacementReplicate(), PlacementShard(-2)], (2, 4))
JOIN_SECOND = MeshComposerConfig([1, 0], (1, 4))
ONE = MeshMapperConfig([PlacementReplicate(), PlacementShard(0)], (2, 4))
CROSSED = MeshMapperConfig([PlacementShard(0), PlacementShard(1)], (4, 2))
JOIN_CROSSED = MeshComposerConfig([0, 1], (4, 2))


def by_place(s: Any, axes: str = "yx") -> Any:
    """Times a number that differs between the devices, so that no transfer is cancelled."""
    for axis, weight in zip(axes, (10, 1), strict=False):
        s = s * (1 + weight * lax.axis_index(axis))
    return s


def crossed(x: Any) -> Any:
    return aggregate(by_place(distribute(x, CROSSED)), JOIN_CROSSED)


def raw(x: Any) -> Any:
    said = {"shard_type": "devices", "shard_shape": [4, 2], "shard_dims": [1, 0]}
    s = by_place(jm.mesh_shard(x, shard_direction="full_to_shard", **said))
    return jm.mesh_shard(s, shard_direction="shard_to_full", **said)


def replicated(x: Any) -> Any:
    said = {"shard_type": "replicate", "shard_shape": [1], "shard_dims": [-1]}
    s = 3 * jm.mesh_shard(x, shard_direction="full_to_shard", **said)
    return 2 * jm.mesh_shard(s, shard_direction="shard_to_full", **said)


MOVES = {
    "negative dims": lambda x: aggregate(by_place(distribute(x, BOTH)), JOIN_BOTH),
    "a dropped axis": lambda x: aggregate(by_place(distribute(x, SECOND), "x")[:, :4], JOIN_SECOND),
    "across mesh axes": crossed,
    "rank 1": lambda x: aggregate(by_place(distribute(x[0], ONE), "x")[None], MeshComposerConfig([0, 1], (1, 4))),
    "the copy of device 0": lambda x: aggregate(jnp.flip(distribute(x, COPY)), FIRST_DEVICE),
    "mesh_shard": raw,
    "mesh_shard, replicate": replicated,
}


@pytest.mark.parametrize("name", [n for n in MOVES if n != "across mesh axes"])
def test_vmap_moves_the_batch_along(name: str) -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.arange(3 * 8 * 8, dtype=np.float32).reshape(3, 8, 8)
    one = jm.jit(MOVES[name], mesh=mesh)
    want = np.stack([np.asarray(one(row)) for row in x])
    for at in range(3):
        mapped = jm.jit(lambda x, at=at: jax.vmap(MOVES[name], in_axes=at, out_axes=at)(x), mesh=mesh)
        np.testing.assert_array_equal(np.asarray(mapped(np.moveaxis(x, 0, at))), np.moveaxis(want, 0, at))


@pytest.mark.parametrize("name", MOVES)
def test_a_transpose_is_the_adjoint(name: str) -> None:
    """The sum of y * f(x) is the sum of x * f'(y); all numbers are small integers, so both are exact."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (8, 8)).astype(np.float32)
    f = jm.jit(MOVES[name], mesh=mesh)
    y = rng.integers(-4, 5, np.shape(f(x))).astype(np.float32)
    (back,) = jax.linear_transpose(f, x)(y)
    assert float((y * np.asarray(f(x))).sum()) == float((x * np.asarray(back)).sum())
    inside = jm.jit(lambda x, y: jax.vjp(MOVES[name], x)[1](y)[0], mesh=mesh)
    got = inside(x, y)
    for copy_of in ttnn.get_device_tensors(got) if isinstance(got, jm.MeshTensor) else [got]:
        np.testing.assert_array_equal(np.asarray(copy_of), np.asarray(back))
