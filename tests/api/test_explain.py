"""`explain()`: bytes against the optimized HLO and against counts by hand, names, notes, nesting, tables, command."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.explain import Explanation, Move, Row, explain
from jaxmesh.analysis.explain.records import ENDS, by_line
from jaxmesh.cli import main
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import remarks
from jaxmesh.passes.lowering import lower
from tests.generators.hlo_traffic import Moved, groups_of, moved, nbytes
from tests.generators.mlir_texts import FILES
from tests.generators.programs.hand_written import PROGRAMS as WRITTEN, Program
from tests.generators.suite.all_programs import BY_NAME, PROGRAMS, Entry

HOST = ("distribute", "aggregate")
F32 = 4
MESH = AbstractMesh((2, 4), ("y", "x"))
Y, X = 2, 4
DEVICES = Y * X


def among_devices(e: Explanation) -> Moved:
    return {(t.kind, t.axes): (t.bytes, t.sent) for t in e.totals() if t.kind not in HOST}


def with_host(e: Explanation) -> Moved:
    return {(t.kind, t.axes): (t.bytes, t.sent) for t in e.totals() if t.kind in HOST}


def explained(f: Callable[..., Any], *shapes: tuple[int, ...], mesh: Any = MESH) -> Explanation:
    return jm.jit(f, mesh=mesh).lower(*[jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]).explain()


def as_it_runs(lowered: Any) -> Explanation:
    """Counts the program that runs, as for one without a text."""

    def refuse(_: Any) -> Any:
        raise InexpressibleError("none is asked for")

    traced = lowered._traced
    return explain(
        lowered._boundary,
        lowered.residency,
        lowered.out_tree,
        refuse,
        lowered.default_program,
        traced._jaxpr,
        traced.assumptions,
    )


def rows_of(e: Explanation, op: str) -> list[Row]:
    return [r for r in e if r.op == op]


def kinds(row: Row) -> list[str]:
    return [n.kind for n in row.notes]


# --- bytes, against what XLA compiles to -----------------------------------------------------------------------------

_ROWS = 8 * 12 // X * F32
THROUGH_HOST: dict[str, Moved] = {"rows to columns, two ways": {("all_to_all", ("x",)): (_ROWS, Y * (X - 1) * _ROWS)}}
"""What XLA, which has no host, does among the devices where a program goes through the host: all else is equal."""


def plus(a: Moved, b: Moved) -> Moved:
    return {k: (a.get(k, (0, 0))[0] + b.get(k, (0, 0))[0], a.get(k, (0, 0))[1] + b.get(k, (0, 0))[1]) for k in a | b}


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_bytes_are_those_of_the_optimized_hlo(entry: Entry) -> None:
    lowered = entry.lowered
    found = moved(lowered.compile(check_replication=False).as_text(), dict(entry.mesh.shape))
    said = plus(among_devices(as_it_runs(lowered)), THROUGH_HOST.get(entry.name, {}))
    assert said == found


def local_loss(program: Program) -> Callable[..., Any]:
    axes = [a for entry in program.out_spec if entry for a in (entry if isinstance(entry, tuple) else (entry,))]

    def loss(*full: Any) -> Any:
        shards = [jm.full_to_shard(x, s) for x, s in zip(full, program.in_specs, strict=True)]
        return jm.shard_to_full(lax.psum(jnp.sum(jnp.sin(program.local(*shards)) ** 2), tuple(axes)), P())

    return loss


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("program", WRITTEN, ids=lambda p: p.name)
def test_bytes_of_gradients_are_those_of_the_optimized_hlo(program: Program) -> None:
    mesh = jm.make_mesh((2, 4))
    gradient = jax.grad(local_loss(program), tuple(range(len(program.in_specs))))
    lowered = jm.jit(gradient, mesh=mesh).lower(*program.args())
    found = moved(lowered.compile(check_replication=False).as_text(), dict(mesh.shape))
    assert len(found) > 1
    assert among_devices(as_it_runs(lowered)) == found


def test_the_suite_has_every_kind_of_collective() -> None:
    kinds = {t.kind for e in PROGRAMS for t in as_it_runs(e.lowered).totals()}
    assert kinds >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", *HOST}


def test_the_reader_of_hlo_reads_every_form() -> None:
    eight = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups_of("replica_groups={{0,4},{1,5},{2,6},{3,7}}, x", 8) == eight
    assert groups_of("replica_groups=[4,2]<=[2,4]T(1,0), x", 8) == eight
    assert groups_of("replica_groups=[2,4]<=[8], x", 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of("replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", 8) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert groups_of("replica_groups=mesh['a'=2,'b'=4] {'a'}", 8) == eight
    assert groups_of("replica_groups={}, x", 4) == [[0, 1, 2, 3]]
    assert nbytes("(f32[2,3]{1,0}, bf16[4], pred[], s4[3], f8e4m3fn[5])") == 24 + 8 + 1 + 3 + 5


HLO = """\
HloModule jit_f

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %x = f32[4]{0} get-tuple-element(%p), index=1
  %start = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0},{2,2}}
  ROOT %t = (s32[], f32[4]) tuple(%x, %x)
}

%test (p.1: (s32[], f32[4])) -> pred[] {
  ROOT %less = pred[] constant(true)
}

ENTRY %main (a: f32[4], b: bf16[2,2]) -> f32[] {
  %a = f32[4]{0} parameter(0)
  %b = bf16[2,2]{1,0} parameter(1)
  %w = (s32[], f32[4]) while(%t0), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %both = (f32[4]{0}, /*index=1*/bf16[2,2]{1,0}) all-reduce-start(%a, %b), replica_groups=[2,2]<=[4], to_apply=%add
  %done = (f32[4]{0}, bf16[2,2]{1,0}) all-reduce-done(%both)
  %g = (f32[4]{0}, f32[8]{0}) all-gather-start(%a), replica_groups={{0,2},{1,3}}, dimensions={0}
  ROOT %one = f32[4]{0} all-reduce(%a), replica_groups={{0},{1},{2},{3}}, to_apply=%add
}
"""


def test_the_reader_of_hlo_counts_tuples_loops_and_asynchronous_pairs() -> None:
    assert moved(HLO, {"y": 2, "x": 2}) == {
        ("all_reduce", ("x",)): (16 + 8, 2 * 24 * 2),
        ("all_gather", ("y",)): (32, 16 * 2 * 2),
        ("collective_permute", ("x",)): (5 * 16, 5 * 16 * 2),
    }


# --- bytes, by hand --------------------------------------------------------------------------------------------------


def shapes(name: str) -> list[tuple[int, ...]]:
    return [np.shape(x) for x in jax.tree.leaves(BY_NAME[name].full_args())]


def all_reduce(payload: int, size: int) -> tuple[int, int]:
    """Of all devices in groups: each sends its data twice round the ring, but for its own piece."""
    return payload, DEVICES * 2 * (size - 1) * payload // size


def all_gather(shard: int, size: int) -> tuple[int, int]:
    return shard * size, DEVICES * (size - 1) * shard


def reduce_scatter(whole: int, size: int) -> tuple[int, int]:
    return whole, DEVICES * (size - 1) * whole // size


def to_each(shard: int) -> tuple[int, int]:
    return shard, DEVICES * shard


def both(*moves: tuple[int, int]) -> tuple[int, int]:
    return sum(p for p, _ in moves), sum(s for _, s in moves)


def check(name: str, devices: Moved, host: Moved) -> None:
    e = BY_NAME[name].lowered.explain()
    assert among_devices(e) == devices
    assert with_host(e) == host


def test_perceptron_by_hand() -> None:
    (batch, width), (_, hidden), _ = shapes("mlp")
    result = batch // Y * width * F32
    check(
        "mlp",
        {("all_reduce", ("x",)): all_reduce(result, X)},
        {
            ("distribute", ("y",)): to_each(batch // Y * width * F32),
            ("distribute", ("x",)): both(*[to_each(width * (hidden // X) * F32)] * 2),
            ("aggregate", ("y",)): (result, Y * result),
        },
    )


def test_matmul_by_hand() -> None:
    (m, k), (_, n) = shapes("2-D matmul")
    result = m // Y * n * F32
    check(
        "2-D matmul",
        {("all_reduce", ("x",)): all_reduce(result, X)},
        {
            ("distribute", ("y", "x")): to_each(m // Y * (k // X) * F32),
            ("distribute", ("x",)): to_each(k // X * n * F32),
            ("aggregate", ("y",)): (result, Y * result),
        },
    )


def test_fully_sharded_perceptron_with_gradients_by_hand() -> None:
    """Weights are gathered; their gradients are summed over the batch's other axis, then summed and scattered."""
    (batch, width), (_, hidden), _, (_, out) = shapes("fsdp with gradients")
    w1, w2 = width * hidden * F32, hidden * out * F32
    check(
        "fsdp with gradients",
        {
            ("all_gather", ("x",)): both(all_gather(w1 // X, X), all_gather(w2 // X, X)),
            # The loss is summed over one axis, then over the other.
            ("all_reduce", ("x",)): all_reduce(F32, X),
            ("all_reduce", ("y",)): both(all_reduce(F32, Y), all_reduce(w1, Y), all_reduce(w2, Y)),
            ("reduce_scatter", ("x",)): both(reduce_scatter(w1, X), reduce_scatter(w2, X)),
        },
        {
            ("distribute", ("y", "x")): both(*[to_each(batch // DEVICES * n * F32) for n in (width, out)]),
            ("distribute", ("x",)): both(to_each(w1 // X), to_each(w2 // X)),
            # The number that the loss's own derivative is, and the loss.
            ("distribute", ()): to_each(F32),
            ("aggregate", ()): (F32, F32),
            ("aggregate", ("x",)): ((w1 + w2) // X, w1 + w2),
        },
    )


def test_attention_by_hand() -> None:
    (batch, sequence, width), (_, heads, size), *_ = shapes("attention")
    tokens = batch // Y * sequence * width * F32
    check(
        "attention",
        {("all_reduce", ("x",)): all_reduce(tokens, X)},
        {
            ("distribute", ("y",)): to_each(tokens),
            ("distribute", ("x",)): both(*[to_each(width * (heads // X) * size * F32)] * 4),
            ("aggregate", ("y",)): (tokens, Y * tokens),
        },
    )


def test_llama_block_by_hand() -> None:
    """One sum after attention, one after the perceptron; heads and hidden dims are split over x, the batch over y."""
    weights, x, _ = BY_NAME["llama block"].full_args()
    batch, sequence, width = x.shape
    queries, keys, hidden = (weights[n].shape[1] for n in ("wq", "wk", "w_gate"))
    tokens = batch // Y * sequence * width * F32
    split = [queries, keys, keys, queries, hidden, hidden, hidden]
    check(
        "llama block",
        {("all_reduce", ("x",)): both(*[all_reduce(tokens, X)] * 2)},
        {
            ("distribute", ()): both(*[to_each(width * F32)] * 2),
            ("distribute", ("x",)): both(*[to_each(width * (n // X) * F32) for n in split]),
            ("distribute", ("y",)): to_each(tokens),
            ("aggregate", ("y",)): (tokens, Y * tokens),
        },
    )


def test_moves_of_collectives_by_hand() -> None:
    """One payload S = 64 bytes on each of 2 x 4 devices."""

    def row(name: str, op: str) -> tuple[Move, ...]:
        (found,) = rows_of(BY_NAME[name].lowered.explain(), op)
        return found.moves

    by_axis = Move("all_reduce", ("y",), 2, 4, 64, 4 * 2 * 64), Move("all_reduce", ("x",), 4, 2, 64, 2 * 2 * 3 * 64)
    assert row("psum over two axes", "psum_invariant") == by_axis
    assert row("all_gather, tiled", "all_gather") == (Move("all_gather", ("x",), 4, 2, 4 * 64, 2 * 4 * 3 * 64),)
    assert row("psum_scatter, tiled", "reduce_scatter") == (Move("reduce_scatter", ("x",), 4, 2, 64, 2 * 3 * 64),)
    # Each device keeps one of four pieces; each send is a group of its own.
    pieces = Move("point_to_point", ("x",), 2, 2 * 4 * 3, 3 * 16, 2 * 4 * 3 * 16)
    assert row("all_to_all, tiled", "all_to_all") == (pieces,)
    # Two of four devices in each row send; the others are sent zeros.
    assert row("ppermute with holes", "ppermute") == (Move("point_to_point", ("x",), 2, 4, 64, 4 * 64),)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama block", "scan around a ring", "cond and switch, known", "random sampling"])
def test_names_are_those_of_the_text(name: str) -> None:
    lowered = BY_NAME[name].lowered
    text = lowered.as_text("jaxpr")
    for row in lowered.explain():
        for value in row.values if not row.cancelled else ():
            assert value.name == "_" or re.search(rf"(?<!\w){value.name}:", text), (value, row)
        for operand in row.operands if row.op not in ("argument", "result") else ():
            assert re.search(rf"(?<!\w){re.escape(operand)}(?!\w)", text), (operand, row)


def matmul(x: Any, w: Any) -> Any:
    x, w = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
    return jm.shard_to_full(lax.psum(x @ w, "x"), P("y"))


def test_values() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    assert [r.op for r in e[:2]] == ["argument", "argument"]
    assert [r.operands[0] for r in e[:2]] == ["x", "w"]
    full, shard = e[0].values[0], rows_of(e, "distribute_tensor")[0].values[0]
    assert (full.place, full.varying, full.shape, full.full_shape, full.bytes) == ("host", (), (4, 8), (4, 8), 128)
    assert (shard.place, shard.varying, shard.shape, shard.full_shape) == ("devices", ("y", "x"), (2, 2), (4, 8))
    assert (shard.dtype, shard.bytes, shard.sharded) == ("float32", 16, True)
    product, total = rows_of(e, "dot_general")[0].values[0], rows_of(e, "psum_invariant")[0].values[0]
    assert (product.varying, product.full_shape) == (("y", "x"), None)
    assert (total.varying, total.shape, total.full_shape) == (("y",), (2, 6), (4, 6))
    assert (e[-1].op, e[-1].values[0].place, e[-1].values[0].shape) == ("result", "host", (4, 6))


def test_lines_are_the_users() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    first = matmul.__code__.co_firstlineno
    (psum,) = rows_of(e, "psum_invariant")
    assert f"test_explain.py:{first + 2}" in psum.line
    assert all(f"test_explain.py:{first + 1}" in r.line for r in rows_of(e, "distribute_tensor"))


def test_results_are_the_last_line() -> None:
    lines = by_line(reversed(explained(matmul, (4, 8), (8, 6)).rows))
    assert [line.line for line in lines].index(ENDS[1]) == len(lines) - 1 > 0


def test_replicated_values_are_full_on_each_device() -> None:
    e = explained(lambda x: jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, P())), P()), (4, 6))
    (tanh,) = rows_of(e, "tanh")
    assert (tanh.values[0].place, tanh.values[0].varying, tanh.values[0].full_shape) == ("devices", (), (4, 6))
    (there,) = rows_of(e, "distribute_tensor")
    assert there.moves == (Move("distribute", (), 1, 8, 96, 8 * 96, 96),)


# --- what passes did -------------------------------------------------------------------------------------------------


def test_cancelled_transfers_are_rows_with_the_rule() -> None:
    def f(x: Any) -> Any:
        y = jnp.sin(jm.full_to_shard(x, P("y", "x")))
        z = jm.full_to_shard(jm.shard_to_full(y, P("y", "x")), P("y", "x"))
        return jm.shard_to_full(jnp.cos(z), P("y", "x"))

    e = explained(f, (4, 8))
    gone = [r for r in e if r.cancelled]
    assert sorted(r.op for r in gone) == ["aggregate_tensor", "distribute_tensor"]
    line = f.__code__.co_firstlineno + 2
    for row in gone:
        assert kinds(row) == ["cancelled"]
        assert (row.executions, row.moves) == (0, ())
        assert f"test_explain.py:{line}" in row.line
    (undone,) = [r for r in gone if r.op == "distribute_tensor"]
    assert "undoes an aggregate" in undone.notes[0].rule
    assert e.rows.index(undone) > e.rows.index(rows_of(e, "sin")[0])
    assert {t.kind: t.count for t in e.totals()} == {"distribute": 1, "aggregate": 1}
    # Different shards are not cancelled.
    crossed = explained(
        lambda x: jm.shard_to_full(
            jm.full_to_shard(jm.shard_to_full(jm.full_to_shard(x, P("y")), P("y")), P("x")), P("x")
        ),
        (8, 8),
    )
    assert not [r for r in crossed if r.cancelled]


def test_a_folded_mesh_shard_is_said() -> None:
    said: dict[str, Any] = {"shard_direction": "full_to_shard", "shard_shape": [1], "shard_dims": [-1]}
    e = explained(lambda x: jm.mesh_shard(x, shard_type="identity", **said) + 1, (4, 8))
    (gone,) = [r for r in e if r.cancelled]
    assert gone.op == "mesh_shard"
    assert "identity" in gone.notes[0].text


def test_transfers_at_the_boundary_are_hoisted() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    for row in [*rows_of(e, "distribute_tensor"), *rows_of(e, "aggregate_tensor")]:
        assert kinds(row) == ["lowered", "hoisted"]


def test_a_full_operand_of_device_work_is_inserted() -> None:
    e = explained(lambda x, b: jm.shard_to_full(jm.full_to_shard(x, P()) + b, P()), (4, 8), (4, 8))
    inserted = [r for r in e if "inserted" in kinds(r)]
    assert [r.op for r in inserted] == ["distribute_tensor"]
    assert "add needs" in inserted[0].notes[0].text
    assert inserted[0].operands == ("b",)


def test_a_constant_of_a_loop_is_hoisted_out_of_it() -> None:
    def f(x: Any, b: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(lax.scan(lambda c, _: (c + b, None), s, None, length=5)[0], P("y"))

    e = explained(f, (4, 8), (2, 8))
    (over,) = [r for r in e if any("before the scan" in n.text for n in r.notes)]
    assert over.path == ()
    assert over.executions == 1
    assert "hoisted" in kinds(over)


@pytest.mark.parametrize(
    ("local", "words", "steps"),
    [
        (lambda v: lax.psum(v, ("y", "x")), "one all_reduce per mesh axis: y, then x",
         [("all_reduce", ("y",), 64), ("all_reduce", ("x",), 64)]),
        (lambda v: lax.pmax(v, "x"), "all_gather, and a max on each device", [("all_gather", ("x",), 256)]),
        (lambda v: lax.ppermute(v, "x", [(0, 1)]), "one point_to_point per pair", [("point_to_point", ("x",), 64)]),
        (lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True), "one point_to_point per piece and pair",
         [("point_to_point", ("x",), 48)]),
        (lambda v: lax.psum(v, "x"), "", [("all_reduce", ("x",), 64)]),
    ],
    ids=["several axes", "maximum", "permute", "all_to_all", "as it is"],
)  # fmt: skip
def test_what_was_made_legal(local: Any, words: str, steps: list[tuple[str, tuple[str, ...], int]]) -> None:
    def f(x: Any) -> Any:
        v = local(jm.full_to_shard(x, P("y", "x")))
        axes = jax.typeof(v).manual_axis_type.varying
        return jm.shard_to_full(v, P("y" if "y" in axes else None, "x" if "x" in axes else None))

    (row,) = [r for r in explained(f, (8, 16)) if r.moves and r.moves[0].kind not in HOST]
    legal = [n.text for n in row.notes if n.kind == "legalised"]
    assert bool(legal) == bool(words)
    assert not words or any(words in t for t in legal), legal
    assert [(m.kind, m.axes, m.bytes) for m in row.moves] == steps


def test_configs_that_were_made_legal() -> None:
    merged = explained(lambda x: jm.shard_to_full(jm.full_to_shard(x, P(("y", "x"))), P(("y", "x"))), (16, 3))
    assert all("mesh_shape_override [8]" in str(r.notes) for r in merged if r.moves)
    cube = AbstractMesh((2, 2, 2), ("z", "y", "x"))
    apart = explained(
        lambda x: jm.shard_to_full(jm.full_to_shard(x, P(("z", "x"), "y")), P(("z", "x"), "y")), (8, 4), mesh=cube
    )
    assert all("reshaped into its factors" in str(r.notes) for r in apart if r.moves)
    vector = explained(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("x")), P("x")), (8,))
    assert "dims of 1 are put before" in str(rows_of(vector, "aggregate_tensor")[0].notes)


def test_what_is_assumed() -> None:
    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y"), assume_replicated=True)

    lowered = jm.jit(f, mesh=MESH).lower(jax.ShapeDtypeStruct((4, 8), jnp.float32))
    (row,) = rows_of(lowered.explain(), "aggregate_tensor")
    (note,) = [n for n in row.notes if n.kind == "assumed"]
    assert "copies along x" in note.text
    assert row.moves == (Move("aggregate", ("y",), 2, 1, 16, 32, 32),)
    # Coordinate 0 is brought to the devices along x before it leaves: XLA's program has just this gather.
    (runs,) = rows_of(as_it_runs(lowered), "aggregate_tensor")
    assert runs.moves == (
        Move("all_gather", ("x",), 4, 2, 64, 2 * 4 * 3 * 16),
        Move("aggregate", ("y",), 2, 1, 16, 32, 32),
    )
    compiled = jm.jit(f, mesh=jm.make_mesh((2, 4))).lower(jnp.zeros((4, 8))).compile(check_replication=False)
    assert moved(compiled.as_text(), {"y": 2, "x": 4}) == {("all_gather", ("x",)): (64, 384)}


def test_assumptions_of_a_mapped_function_are_told() -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    mapped = jm.shard_map(lambda v: v, mesh=mesh, in_specs=P("y", "x"), out_specs=P("y"), check_vma=False)
    traced = jm.jit(mapped, mesh=mesh).trace(jnp.zeros((4, 8)))
    assert traced.assumptions
    e = traced.explain()
    assert e.assumptions == traced.assumptions
    assert f"assumed: {traced.assumptions[0]}" in str(e)


# --- nested programs -------------------------------------------------------------------------------------------------


def ring(c: Any, _: Any) -> Any:
    return lax.ppermute(c, "x", [(i, (i + 1) % 4) for i in range(4)]), None


def between(local: Callable[[Any], Any], spec: P = P("y", "x")) -> Callable[[Any], Any]:  # noqa: B008
    return lambda x: jm.shard_to_full(local(jm.full_to_shard(x, spec)), spec)


def test_loops_multiply() -> None:
    def inner(c: Any, _: Any) -> Any:
        return lax.scan(ring, c, None, length=3)[0], None

    e = explained(between(lambda v: lax.scan(inner, v, None, length=5)[0]), (4, 8))
    (row,) = rows_of(e, "ppermute")
    assert row.path == ("scan of 5", "scan of 3")
    assert row.executions == 15
    assert among_devices(e) == {("point_to_point", ("x",)): (15 * 16, 15 * 8 * 16)}
    assert "15 times" in next(line for line in e.table(200).splitlines() if "ppermute" in line)


def test_a_loop_of_unknown_length_says_so() -> None:
    def local(v: Any) -> Any:
        return lax.while_loop(lambda c: jnp.sum(lax.psum(c, ("y", "x"))) < 9, lambda c: ring(c, None)[0] + 1, v)

    e = explained(between(local), (4, 8))
    (row,) = rows_of(e, "ppermute")
    assert (row.path, row.executions) == (("while",), None)
    assert rows_of(e, "psum_invariant")[0].path == ("test of while",)
    assert {t.kind: t.exact for t in e.totals()} == {
        "distribute": True,
        "aggregate": True,
        "point_to_point": False,
        "all_reduce": False,
    }
    assert "an unknown number" in next(line for line in e.table(200).splitlines() if "ppermute" in line)
    assert "loops of unknown length as one iteration" in str(e)


def test_branches() -> None:
    def f(x: Any, flag: Any) -> Any:
        v = jm.full_to_shard(x, P("y", "x"))
        out = lax.cond(flag[0] > 0, lambda a: ring(a, None)[0], lambda a: a * 2, v)
        return jm.shard_to_full(ring(out, None)[0], P("y", "x"))

    e = explained(f, (4, 8), (1,))
    row, always = rows_of(e, "ppermute")
    assert (row.path, row.conditional, row.executions) == (("branch 1 of 2",), True, 1)
    assert (always.path, always.conditional) == ((), False)
    # The text computes both branches, and chooses.
    assert {t.kind: (t.count, t.exact) for t in e.totals()}["point_to_point"] == (2 * 8, True)
    runs = as_it_runs(jm.jit(f, mesh=MESH).lower(jnp.zeros((4, 8)), jnp.zeros(1)))
    assert {t.kind: (t.count, t.exact) for t in runs.totals()}["collective_permute"] == (2, False)
    assert "at most 1 times" in e.table()


def test_remat_and_custom_functions() -> None:
    @jax.custom_jvp
    def doubled(v: Any) -> Any:
        return lax.psum(v, "x") * 2

    doubled.defjvp(lambda p, t: (doubled(*p), lax.psum(t[0], "x") * 2))

    @jax.custom_vjp
    def tripled(v: Any) -> Any:
        return lax.psum(v, "x") * 3

    tripled.defvjp(lambda v: (tripled(v), None), lambda _, ct: (lax.pcast(ct, "x", to="varying") * 3,))

    def local(v: Any) -> Any:
        whole = jax.checkpoint(lambda a: lax.psum(jnp.sin(a), "x"))(v)
        # Different operands: XLA makes one of equal sums.
        return whole + doubled(v) + tripled(jnp.cos(v)) + jax.jit(lambda a: lax.psum(a, "x"))(v * v)

    f = lambda x: jm.shard_to_full(local(jm.full_to_shard(x, P("y", "x"))), P("y"))  # noqa: E731
    e = explained(f, (4, 8))
    paths = [r.path[0].split()[0] for r in e if r.moves and r.moves[0].kind == "all_reduce"]
    assert paths == ["remat", "custom_jvp_call", "custom_vjp_call", "jit"]
    mesh = jm.make_mesh((2, 4))
    gradient = jm.jit(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), mesh=mesh).lower(jnp.ones((4, 8)))
    found = moved(gradient.compile(check_replication=False).as_text(), {"y": 2, "x": 4})
    assert among_devices(gradient.explain()) == found


def test_a_loop_on_the_host_has_its_regions_inside() -> None:
    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jm.shard_to_full(jnp.tanh(jm.full_to_shard(c, P("y", "x"))), P("y", "x")), None

        return lax.scan(step, x, None, length=3)[0]

    e = explained(f, (4, 8))
    for row in [*rows_of(e, "distribute_tensor"), *rows_of(e, "aggregate_tensor")]:
        assert row.path == ("scan of 3",)
        assert row.executions == 3
        assert kinds(row) == ["lowered", "hoisted"]
    assert with_host(e) == {("distribute", ("y", "x")): (48, 384), ("aggregate", ("y", "x")): (48, 384)}
    assert among_devices(e) == {}


def test_calls_are_looked_into() -> None:
    """Transfers in calls are noted as if they stood outside, also those in the body of a loop on the host."""

    @jax.jit
    def through(c: Any) -> Any:
        return jm.shard_to_full(jnp.tanh(jm.full_to_shard(c, P("y", "x"))), P("y", "x"))

    for f in (through, lambda x: lax.scan(lambda c, _: (through(c), None), x, None, length=3)[0]):
        e = explained(f, (4, 8))
        found = [*rows_of(e, "distribute_tensor"), *rows_of(e, "aggregate_tensor")]
        assert [kinds(row) for row in found] == [["lowered", "hoisted"]] * 2
        assert among_devices(e) == {}


def test_an_axis_of_one_device_moves_nothing() -> None:
    e = explained(
        lambda x: jm.shard_to_full(lax.psum(jm.full_to_shard(x, P("y", "x")), ("y", "x")), P()),
        (4, 8),
        mesh=AbstractMesh((1, 8), ("y", "x")),
    )
    assert among_devices(e) == {("all_reduce", ("x",)): (16, 2 * 7 * 16)}
    assert with_host(e) == {("distribute", ("x",)): (16, 128), ("aggregate", ()): (16, 16)}


def test_transfers_in_the_midst_of_device_work_are_gathers_and_slices() -> None:
    """The loop carries shards, so that it runs on the devices, and goes through the host in each turn."""

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jm.full_to_shard(jm.shard_to_full(jnp.tanh(c), P("y", "x")).T.reshape(4, 8), P("y", "x")), None

        return jm.shard_to_full(lax.scan(step, jm.full_to_shard(x, P("y", "x")), None, length=3)[0], P("y", "x"))

    lowered = jm.jit(f, mesh=MESH).lower(jax.ShapeDtypeStruct((4, 8), jnp.float32))
    e = as_it_runs(lowered)
    inside = [r for r in e if r.path]
    (taken,) = rows_of(Explanation("", e.mesh, inside), "aggregate_tensor")
    assert taken.moves == (
        Move("all_gather", ("x",), 4, 2, 64, 2 * 4 * 3 * 16, count=3),
        Move("all_gather", ("y",), 2, 4, 128, 4 * 2 * 1 * 64, count=3),
    )
    (given,) = rows_of(Explanation("", e.mesh, inside), "distribute_tensor")
    assert given.moves == ()
    # TTNN goes through the host in each turn, and transposes on the devices in between.
    text = {r.op: [(m.kind, m.count) for m in r.moves] for r in lowered.explain() if r.path and r.moves}
    assert text == {"aggregate_tensor": [("aggregate", 3)] * 2, "distribute_tensor": [("distribute", 3)] * 2}
    assert "local" in kinds(taken)
    assert "local" in kinds(given)
    compiled = jm.jit(f, mesh=jm.make_mesh((2, 4))).lower(jnp.zeros((4, 8))).compile(check_replication=False)
    assert among_devices(e) == moved(compiled.as_text(), {"y": 2, "x": 4})


def test_a_program_without_a_text_is_counted_as_it_runs() -> None:
    def f(x: Any) -> Any:
        v = jm.full_to_shard(x, P("y", "x"))
        return jm.shard_to_full(jax.pure_callback(np.sin, v, lax.pmax(v, "x") + v), P("y", "x"))

    e = explained(f, (4, 8))
    assert among_devices(e) == {("all_reduce", ("x",)): all_reduce(16, X)}
    assert "no text for primitive 'pure_callback'" in e.uncounted
    assert "no text, so that moves are counted in the program as it runs" in str(e)
    assert explained(matmul, (4, 8), (8, 6)).uncounted == ""


def test_what_nothing_reads_is_dead() -> None:
    def f(x: Any) -> Any:
        v = jm.full_to_shard(x, P("y", "x"))
        jax.jit(lambda a: lax.psum(a, "y"))(v)
        return jm.shard_to_full(v + 1, P("y", "x"))

    e = explained(f, (4, 8))
    (row,) = rows_of(e, "psum_invariant")
    assert row.executions == 0
    assert "dead" in kinds(row)
    assert among_devices(e) == {}


# --- the passes are the same with notes and without ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["llama block with gradients", "existing program in a loop", "rows to columns, two ways"]
)
def test_taking_notes_changes_nothing(name: str) -> None:
    traced = BY_NAME[name].lowered._traced
    assert traced is not None
    plain = traced.lower().as_text("jaxpr")
    with remarks.collect() as log:
        noted = lower(traced.jaxpr, traced._boundary.residencies, traced._boundary.sizes)
    assert log.by_origin()
    assert remarks.COLLECTED.get() is None
    assert jm.Lowered(traced._boundary, noted.program, traced.out_tree).as_text("jaxpr") == plain


def test_every_stage_explains() -> None:
    traced = jm.jit(matmul, mesh=MESH).trace(jnp.zeros((4, 8)), jnp.zeros((8, 6)))
    assert traced.explain().rows == traced.lower().explain().rows


# --- as data and as tables -------------------------------------------------------------------------------------------


def test_data() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    assert isinstance(e.rows, list)
    assert len(e) == len(e.rows) == len(list(e))
    assert e[2:4] == e.rows[2:4]
    held = json.loads(json.dumps(e.to_dicts()))
    assert [h["op"] for h in held] == [r.op for r in e]
    (psum,) = [h for h in held if h["op"] == "psum_invariant"]
    assert psum["moves"] == [
        {
            "kind": "all_reduce",
            "axes": ["x"],
            "group_size": 4,
            "groups": 2,
            "bytes": 48,
            "sent": 576,
            "distinct": None,
            "count": 1,
            "exact": True,
        }
    ]
    with pytest.raises(AttributeError):
        e[0].op = "other"  # pyright: ignore[reportAttributeAccessIssue]
    assert [r.op for r in e.moving] == ["distribute_tensor"] * 2 + ["psum_invariant", "aggregate_tensor"]


def test_the_answer_comes_first() -> None:
    lines = str(explained(matmul, (4, 8), (8, 6))).splitlines()
    first = matmul.__code__.co_firstlineno
    assert lines[0] == "matmul on the mesh y=2, x=4: 6 equations at 2 source lines"
    found = [re.split(r" {2,}", line.strip()) for line in lines]
    assert ["all_reduce", "x", "1", "48", "576"] in found
    assert ["distribute", "x", "1", "48", "384"] in found
    (top,) = [i for i, line in enumerate(lines) if line.startswith("where most bytes move")]
    # The second line sums and gathers, 576 + 96 bytes; the first distributes 128 + 384.
    assert found[top + 1][:2] == [f"test_explain.py:{first + 2} (matmul)", "672"]
    assert found[top + 1][2] == "1 aggregate over y, 1 all_reduce over x"
    assert found[top + 2][:2] == [f"test_explain.py:{first + 1} (matmul)", "512"]
    assert not [line for line in lines if line != line.rstrip()]
    assert not any("dot_general" in line for line in lines)


def test_equations_of_a_source_line_are_one_row_that_opens() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    first = matmul.__code__.co_firstlineno
    assert [(len(line.rows), line.sent) for line in e.lines] == [(2, 0), (2, 512), (4, 672), (1, 0)]
    opened = e.at(f"test_explain.py:{first + 2}")
    assert [r.op for r in opened] == ["pvary", "dot_general", "psum_invariant", "aggregate_tensor"]
    assert opened.rows == list(e.lines[2].rows)


def test_shardings_that_were_asked_for_stand_against_the_propagated() -> None:
    def f(layers: Any, x: Any) -> Any:
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    specs = [P(None, "x"), P("x", None)] * 2
    args = [jnp.zeros((8, 8))] * 4, jnp.zeros((4, 8))
    text = str(jm.jit(f, mesh=MESH, in_shardings=(specs, P("y"))).lower(*args).explain())
    found = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert ["asked", "2 arguments", "P('x', None)", "layers[*]"] in found
    assert ["asked", "1 argument", "P('y', None)", "x"] in found
    assert ["propagated", "1 result", "P('y', None)", "result"] in found
    (why,) = [row for row in found if row[0] == "all_reduce" and len(row) == 4]
    assert why[1] == "2"
    assert why[3] == "over x: sum over shards of a reduced dim"


@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_the_reason_of_a_reduction_is_of_the_operation_that_is_counted(kind: str) -> None:
    asked: Any = jm.jit(lambda x: getattr(x, kind)(1), mesh=MESH, in_shardings=P(None, "x"))
    e = asked.lower(jnp.zeros((4, 8))).explain()
    moved = [kind for kind, _ in among_devices(e)]
    assert [d.kind for d in e.decisions if "reduced dim" in d.text] == moved
    assert moved == ["all_reduce" if kind == "sum" else "all_gather"]


def test_the_full_listing() -> None:
    e = explained(matmul, (4, 8), (8, 6))
    text = e.table(100)
    assert max(map(len, text.splitlines())) <= 100
    (at,) = [i for i, line in enumerate(text.splitlines()) if "psum_invariant(" in line]
    rest = " ".join(text.splitlines()[at:]).split("aggregate_tensor(")[0]
    assert "float32[2,6] of [4,6], shards over y, 48 B" in rest
    assert "all_reduce over x: 48 B in 2 groups of 4, 576 B sent" in rest
    assert "[1] full_to_shard is a distribute_tensor" in text
    assert text.index("a = x: ") < text.index("test_explain.py:") < text.index("  result: float32[4,6]")
    assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("columns", [40, 79, 120])
def test_texts_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    e = BY_NAME["llama block with gradients"].lowered.explain()
    for text in (str(e), e.table()):
        assert max(map(len, text.splitlines())) <= columns


def test_rich() -> None:
    console = pytest.importorskip("rich.console")
    out = console.Console(width=70, record=True, force_terminal=True, file=io.StringIO())
    out.print(explained(matmul, (4, 8), (8, 6)))
    text = out.export_text()
    assert max(map(len, text.splitlines())) <= 70
    assert "all_reduce" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen = Counter[str]()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("input", "br"):
            self.open.append(tag)
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_whole_and_escaped() -> None:
    def evil(d: Any) -> Any:
        return matmul(d["<b>&"], d['"x'])

    evil.__name__ = "<script>alert(1)</script>"
    args = {"<b>&": jnp.zeros((4, 8)), '"x': jnp.zeros((8, 6))}
    e = jm.jit(evil, mesh=MESH).lower(args).explain()
    page = e._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert not {"script", "b"} & set(tags.seen) - {"b"}
    assert tags.seen["b"] == 1
    assert "<script>alert(1)</script>" in tags.text
    assert "<b>&" in tags.text
    # Its style speaks of itself alone.
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style
    rules = [r.strip() for r in re.findall(r"([^{}]+)\{", style[1])]
    assert rules
    assert all(part.strip().startswith(".jaxmesh-explain") for r in rules for part in r.split(","))
    # Jupyter aligns `.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td` to the right, which is two classes strong.
    (aligned,) = [r for r in rules if re.search(r"\btd$", r) and "th," in r]
    assert all(part.count(".") > 2 for part in aligned.split(","))


def test_html_folds_filters_and_has_the_estimate() -> None:
    lowered = jm.jit(matmul, mesh=MESH).lower(jnp.zeros((4, 8)), jnp.zeros((8, 6)))
    page = lowered.explain()._repr_html_()
    tags = Tags()
    tags.feed(page)
    titles = re.findall(r"<summary>(.*?)</summary>", page)
    assert titles[:2] == ["what moves", "where most bytes move"]
    assert lowered.estimate().heading in titles
    assert [t for t in titles if t.startswith("test_explain.py:")] == [
        f"{line.line.split('/')[-1]}: {len(line.rows)} rows; {line.sent} bytes sent by all"
        for line in lowered.explain().lines[1:3]
    ]
    assert tags.seen["input"] == 1
    assert "oninput=" in page
    assert "http" not in page  # It works offline.
    odd = jm.jit(lambda x: x * 2, mesh=AbstractMesh((100, 100), ("y", "x"))).lower(jnp.zeros(4)).explain()
    assert "<summary>no estimate</summary>" in odd._repr_html_()


# --- the command -----------------------------------------------------------------------------------------------------

MATMUL, SEVERAL = str(FILES / "matmul_2x4.mlir"), str(FILES / "several.mlir")


def test_command(capsys: Any) -> None:
    assert main.main(["explain", MATMUL]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "all_reduce" in out
    assert len(out.splitlines()) < 20
    assert main.main(["explain", MATMUL, "--full"]) == 0
    out = capsys.readouterr().out
    assert "all_reduce over x: 384 B in 2 groups of 4" in out
    assert "line 9: ttir.mesh_shard" in out
    assert "  a = x: float32[16,8], full on the host" in out
    assert main.main(["explain", MATMUL, "--moving"]) == 0
    assert "argument" not in capsys.readouterr().out


def test_command_gives_data(capsys: Any) -> None:
    assert main.main(["explain", SEVERAL, "--json", "--moving"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert len(held) > 1
    assert all(row["moves"] or row["notes"] for rows in held.values() for row in rows)


def test_command_complains_in_one_line(capsys: Any) -> None:
    assert main.main(["explain", MATMUL, "--func", "nothing"]) == main.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_every_stage_explains_the_same() -> None:
    f = jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y")), mesh=jm.make_mesh((2, 4)))
    lowered = f.lower(jnp.ones(8))
    assert lowered.compile().explain().table() == lowered.explain().table() == f.trace(jnp.ones(8)).explain().table()


def test_a_value_that_padding_makes_large_is_named() -> None:
    """A last dim of 1 is 32 in tiles; small values are left out."""

    def f(x: Any, y: Any) -> Any:
        return jnp.tanh(x)[:, :, None] * 2, jnp.tanh(y)[:, :, None] * 2

    e = jm.jit(f, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(
        jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    ).explain()  # fmt: skip
    texts = {note.text for row in e for note in row.notes if note.kind == "padded"}
    assert texts == {"float32[512, 512, 1] takes 32.0 MiB in tiles, its numbers 1.0 MiB"}


def test_a_padded_value_without_a_line_of_the_user_has_no_place() -> None:
    mesh = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((2, 2048, 8, 64), jnp.float32)
    made = jm.jit(jax.nn.dot_product_attention, mesh=mesh, in_shardings=P("y", None, "x")).lower(x, x, x)
    text = str(made.explain())
    assert re.search(r"^dot_general +float32\[1, 2048, 2, 64\] takes", text, re.MULTILINE)
    assert not re.search(r" at( {2,}|,)", text.partition("padded in tiles")[2])


def cache(shape: tuple[int, ...], spec: P) -> Any:
    """The lowered sum of a cache on 2x4 devices, beside one that tiles do not make larger."""
    mesh = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    kinds = [(shape, spec), ((8, 8, 4096, 128), P(None, "x")), ((4, 1), P())]
    types = [jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=NamedSharding(mesh, p)) for s, p in kinds]
    return jm.jit(lambda state: [x * 2 for x in state["kv"]], mesh=mesh).lower({"kv": types})


def test_an_argument_that_padding_makes_large_is_named_with_what_helps() -> None:
    heads = (8, 4096, 8, 128), P(None, None, "x")
    found = {row.operands[0]: row.notes for row in cache(*heads).explain() if row.op == "argument" and row.notes}
    text = "bfloat16[8, 4096, 2, 128] takes 256.0 MiB in tiles, its numbers 16.0 MiB"
    helps = "16.0 MiB as [8, 2, 4096, 128] or 64.0 MiB if dim 0 is split instead of dim 2"
    assert {path: [note.text for note in notes] for path, notes in found.items()} == {
        "state['kv'][0]": [f"{text}; {helps}"]
    }
    printed = str(cache(*heads).explain())
    assert re.search(rf"state\['kv'\]\[0\] +{re.escape(text)}\n +{re.escape(helps)}\n", printed)

    def held(*argument: Any) -> int:
        tensors = cache(*argument).estimate("t3000").memory.tensors
        return next(t.bytes for t in tensors if t.name == "state['kv'][0]")

    # What is said to help does.
    assert held(*heads) == 256 * 2**20
    assert held((8, 8, 4096, 128), P(None, "x")) == 16 * 2**20
    assert held((8, 4096, 8, 128), P("x")) == 64 * 2**20
    assert all(not row.notes for row in cache((8, 4096, 8, 128), P("x")).explain() if row.op == "result")


def test_of_many_padded_tensors_the_largest_are_printed() -> None:
    sizes = [512 * (n + 1) for n in range(7)]
    types = [jax.ShapeDtypeStruct((n, 512, 1), jnp.float32) for n in sizes]
    explanation = jm.jit(lambda xs: [x + 1 for x in xs], mesh=AbstractMesh((1, 1), ("y", "x"))).lower(types).explain()
    notes = [note for row in explanation if row.op == "argument" for note in row.notes]
    assert [note.bytes for note in notes] == [n * 512 * 32 * 4 for n in sizes]
    lines = str(explanation).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("padded in tiles"))
    # Each argument and its sum.
    assert [line.split(" ")[0] for line in lines[first + 1 : first + 4]] == ["add", "xs[6]", ""]
    assert "and 10 more: padded" in lines
