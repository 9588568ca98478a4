"""Explanations, estimates and printed texts agree on what a program moves."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from tests.generators import sharded_programs
from tests.generators.plain_programs import CASES, Case, jitted
from tests.generators.second_blind.programs import ALL, FIFTH, FOURTH
from tests.generators.suite.all_programs import PROGRAMS, Entry
from tests.generators.text_moves import Moves, as_counted, count_moves

lax: Any = jax.lax
numpy: Any = jnp


def difference(lowered: Any) -> tuple[Moves, ...] | None:
    """Returns the moves of the text, the explanation and the estimate; None if they are the same."""
    text = count_moves(lowered.as_text(strict=False), dict(lowered.mesh.shape))
    explanation = lowered.explain()
    assert explanation.uncounted == ""
    found = [text, as_counted(explanation.totals())]
    try:
        estimate = lowered.estimate()
    except errors.MeshError:
        # No machine has the mesh.
        pass
    else:
        found.append(as_counted(estimate.totals()))
        assert sorted(map(str, estimate.totals())) == sorted(map(str, explanation.totals()))
    return tuple(found) if any(f != text for f in found) else None


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_programs_of_the_suite(entry: Entry) -> None:
    assert difference(entry.lowered) is None


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_plain_programs(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        lowered = jitted(case).lower(*case.args)
    why = lowered.explain().uncounted
    if why:
        with pytest.raises(errors.JaxmeshError, match=re.escape(why)):
            lowered.as_text("cpp", strict=False)
    else:
        assert difference(lowered) is None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    meshes, compared = sharded_programs.make_meshes(), 0
    for seed in range(40 * part, 40 * (part + 1)):
        program = sharded_programs.draw(seed, meshes)
        args = [jax.ShapeDtypeStruct(s, "float32") for s in program.shapes]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jitted = jm.jit(program, mesh=program.mesh, in_shardings=program.in_specs, out_shardings=program.out_specs)
            assert difference(jitted.lower(*args)) is None, f"seed {seed}: {program}"
        compared += 1
    assert compared == 40


def kinds_of_text(lowered: Any) -> Counter[str]:
    """Returns the ops of a text without loops by name, but for those that an estimate leaves out."""
    names = Counter[str](re.findall(r'"ttnn\.(\w+)"\(', lowered.as_text(strict=False)))
    return Counter({name: n for name, n in names.items() if name not in ("deallocate", "get_device")})


def kinds_of_estimate(lowered: Any) -> Counter[str]:
    counts = Counter[str]()
    for op in lowered.estimate().ops:
        counts[op.op] += op.count
    return counts


@pytest.mark.slow(but_one_in=23)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FOURTH, *FIFTH][::4])
def test_programs_of_other_authors_also_when_their_ttir_is_read(name: str) -> None:
    made = ALL[name](0)
    traced = jm.jit(made.fun, mesh=made.mesh, in_shardings=made.specs).trace(*made.args)
    lowered, again = traced.lower(), jm.from_mlir(traced.as_text(), made.mesh).lower()
    assert difference(lowered) is None
    assert kinds_of_text(lowered) == kinds_of_estimate(lowered)
    first, second = (as_counted(each.explain().totals()) for each in (lowered, again))
    if first.pop(("distribute", ()), 0) == second.pop(("distribute", ()), 0):
        # A number and a tensor of one number are views of each other.
        kinds = [{k: n for k, n in kinds_of_estimate(x).items() if k != "reshape"} for x in (lowered, again)]
        assert kinds[0] == kinds[1]
    else:
        # A table that the program holds is created on the devices when its text is read.
        assert "dense<" in traced.as_text()
    assert first == second


# --- bytes among the devices, by hand --------------------------------------------------------------------------------

SHARD = 4 * 4 * 4
"""Bytes of the shard [4, 4] of float32 that each of 2x4 devices has of [8, 16]."""
SHIFT = [(i, (i + 1) % 4) for i in range(4)]
BY_HAND: list[tuple[str, Callable[[Any], Any], tuple[str, ...], dict[str, int], int]] = [
    # Function of the shard; the axes that its result varies over; what one device sends by axis; what all send.
    ("nothing", lambda v: v + 1, ("y", "x"), {}, 0),
    ("sum over x", lambda v: lax.psum(v, "x"), ("y",), {"x": 96}, 768),
    ("sum over y", lambda v: lax.psum(v, "y"), ("x",), {"y": 64}, 512),
    ("sum over both", lambda v: lax.psum(v, ("y", "x")), (), {"y": 64, "x": 96}, 1280),
    ("mean over x", lambda v: lax.pmean(v, "x"), ("y",), {"x": 96}, 768),
    ("maximum over x", lambda v: lax.pmax(v, "x"), ("y",), {"x": 192}, 1536),
    ("minimum over y", lambda v: lax.pmin(v, "y"), ("x",), {"y": 64}, 512),
    ("maximum over both", lambda v: lax.pmax(v, ("y", "x")), (), {"y": 64, "x": 192}, 2048),
    ("gather over x", lambda v: lax.all_gather(v, "x", tiled=True), ("y", "x"), {"x": 192}, 1536),
    ("gather over y", lambda v: lax.all_gather(v, "y", axis=1), ("y", "x"), {"y": 64}, 512),
    ("scatter over x", lambda v: lax.psum_scatter(v, "x", tiled=True), ("y", "x"), {"x": 48}, 384),
    ("scatter over y", lambda v: lax.psum_scatter(v, "y", tiled=True), ("y", "x"), {"y": 32}, 256),
    ("gather and scatter", lambda v: lax.psum_scatter(lax.all_gather(v, "x", tiled=True), "x", tiled=True), ("y", "x"),
     {"x": 192 + 192}, 2 * 1536),
    ("ring over x", lambda v: lax.ppermute(v, "x", SHIFT), ("y", "x"), {"x": 64}, 512),
    ("swap over y", lambda v: lax.ppermute(v, "y", [(0, 1), (1, 0)]), ("y", "x"), {"y": 64}, 512),
    ("three turns", lambda v: lax.fori_loop(0, 3, lambda _, w: lax.ppermute(w, "x", SHIFT), v), ("y", "x"),
     {"x": 192}, 1536),
    ("pieces to all in x", lambda v: lax.all_to_all(v, "x", 0, 1, tiled=True), ("y", "x"), {"x": 48}, 384),
    ("pieces to all in y", lambda v: lax.all_to_all(v, "y", 0, 1, tiled=True), ("y", "x"), {"y": 32}, 256),
    ("16 bits", lambda v: lax.psum(v.astype(numpy.bfloat16), "x").astype(v.dtype), ("y",), {"x": 48}, 384),
    ("a number", lambda v: lax.psum(numpy.sum(v, keepdims=True), "x"), ("y",), {"x": 6}, 48),
    ("softmax", lambda v: numpy.exp(v - lax.pmax(numpy.max(v, 1, keepdims=True), "x"))
     / lax.psum(numpy.sum(v, 1, keepdims=True), "x"), ("y", "x"), {"x": 48 + 24}, 576),
    ("a sum of gradients", jax.grad(lambda v: lax.psum(numpy.sum(v * v), ("y", "x"))), ("y", "x"), {}, 0),
]  # fmt: skip


PARTLY: Mapping[str, tuple[Callable[[Any], Any], Any, dict[str, int]]] = {
    # Manual over x, of a value whose shard [8, 16] takes 512 bytes: what one device sends by axis.
    "ring": (lambda v: lax.ppermute(v, "x", SHIFT), P(None, "x"), {"y": 0, "x": 512}),
    "turns": (lambda v: lax.fori_loop(0, 300, lambda _, u: lax.ppermute(u, "x", SHIFT), v), P(None, "x"),
              {"y": 0, "x": 300 * 512}),
    "gather": (lambda v: lax.all_gather(v, "x", axis=1, tiled=True), P(), {"y": 0, "x": 3 * 512}),
    "gather of split rows": (lambda v: lax.all_gather(v + 1, "x", axis=0, tiled=True), P(), {"y": 512, "x": 3 * 1024}),
    "scatter": (lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True), P(None, "x"), {"y": 0, "x": 384}),
    "exchange": (lambda v: lax.all_to_all(v, "x", 1, 1, tiled=True), P(None, "x"), {"y": 0, "x": 384}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY)
def test_collectives_over_some_axes_leave_other_splits_alone(name: str) -> None:
    local, out, each = PARTLY[name]
    mesh, x = jm.make_mesh((2, 4), ("y", "x")), numpy.arange(16 * 64, dtype=numpy.float32).reshape(16, 64)

    def function(x: Any) -> Any:
        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=P(None, "x"), out_specs=out, axis_names={"x"}, check_vma=False
        )
        return mapped(x)

    lowered = jm.jit(function, mesh=mesh, in_shardings=P("y", "x")).lower(x)
    assert difference(lowered) is None
    assert lowered.estimate("t3000").link_bytes == each
    assert (numpy.asarray(lowered.compile()(x)) == jax.jit(function)(x)).all()


@pytest.mark.parametrize(("name", "local", "axes", "each", "all_devices"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_bytes_by_hand(
    name: str, local: Callable[[Any], Any], axes: tuple[str, ...], each: dict[str, int], all_devices: int
) -> None:
    def fun(x: Any) -> Any:
        found = local(jm.full_to_shard(x, P("y", "x")))
        spec = P("y" if "y" in axes else None, "x" if "x" in axes else None)
        return jm.shard_to_full(found, spec, assume_replicated=True)

    lowered = jm.jit(fun, mesh=AbstractMesh((2, 4), ("y", "x"))).lower(jax.ShapeDtypeStruct((8, 16), numpy.float32))
    assert {axis: n for axis, n in lowered.estimate("t3000").link_bytes.items() if n} == each
    sent = sum(t.sent for t in lowered.explain().totals() if t.kind not in ("distribute", "aggregate"))
    assert sent == all_devices
    assert difference(lowered) is None


# --- loops that stay loops -------------------------------------------------------------------------------------------


def collective(x: Any, w: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return c / numpy.sqrt(1 + (c**2).sum(0, keepdims=True)) + x * 0.1

    return lax.fori_loop(0, 6, step, x)


def in_loops(x: Any, w: Any) -> Any:
    def outer(c: Any, _: Any) -> Any:
        c = lax.fori_loop(0, 5, lambda i, d: numpy.tanh(d @ w) + d.sum(0, keepdims=True), c)
        return c - c.mean(), c[0]

    return lax.scan(outer, x, None, length=4)


def branches(x: Any, w: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return lax.cond(c[0, 0] > 0, lambda y: y + y.sum(0, keepdims=True), lambda y: numpy.cos(y) @ w, c)

    return lax.fori_loop(0, 6, step, x)


def stacked(x: Any, w: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return numpy.tanh(c @ w) + row[:, None] * c.sum(), (c.sum(0), row[::-1])

    return lax.scan(step, x, w, reverse=True)


def turns(x: Any, w: Any) -> Any:
    def local(v: Any) -> Any:
        return lax.fori_loop(0, 7, lambda _, u: lax.ppermute(numpy.sin(u), "x", SHIFT), v)

    return jm.shard_to_full(local(jm.full_to_shard(x, P("y", "x"))), P("y", "x"))


FOR_INDICES = {
    "add", "arange", "clamp_scalar", "concat", "constant", "empty", "eq", "full", "gather", "lt", "maximum", "minimum",
    "reshape", "slice_static", "slice_write", "subtract", "to_device", "to_layout", "typecast", "where", "multiply",
    "repeat", "distribute_tensor", "mesh_partition", "ge", "gt", "le", "logical_and",
}  # fmt: skip
"""Ops by which a loop counts, takes a row, and writes one."""
KEPT = {"collective": collective, "in loops": in_loops, "branches": branches, "stacked": stacked, "turns": turns}


@pytest.mark.parametrize("spec", [P("y"), P("y", "x"), P()], ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_a_loop_counts_as_its_body_times_its_trips(name: str, spec: Any) -> None:
    shape = jax.ShapeDtypeStruct((8, 8), numpy.float32)
    shardings = {} if name == "turns" else {"in_shardings": (spec, P())}
    lowered = jm.jit(KEPT[name], mesh=AbstractMesh((2, 4), ("y", "x")), **shardings).lower(shape, shape)
    kept, unrolled = (lowered.estimate("t3000", unroll_limit=n) for n in (0, 100_000))

    def among(totals: Any) -> list[str]:
        return sorted(f"{t} {t.sent}" for t in totals if t.kind not in ("distribute", "aggregate"))

    def computed(estimate: Any) -> Counter[str]:
        counts = Counter[str]()
        for op in estimate.ops:
            counts[op.op] += op.count if op.op not in FOR_INDICES else 0
        return +counts

    assert "ttcore.while_loop" in lowered.as_text(unroll_limit=0)
    assert among(kept.totals()) == among(unrolled.totals())
    assert computed(kept) == computed(unrolled)
    text = count_moves(lowered.as_text(strict=False, unroll_limit=0), dict(lowered.mesh.shape))
    assert text == as_counted(kept.totals())
    assert sum(op.flops for op in kept.ops if op.op == "matmul") == sum(
        op.flops for op in unrolled.ops if op.op == "matmul"
    )


@pytest.mark.parametrize("name", ["collective", "in loops", "branches", "turns"])
def test_long_loops_have_one_account(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxmesh.passes.flatten.builder.SHORT", 0)
    shape = jax.ShapeDtypeStruct((8, 8), numpy.float32)
    shardings = {} if name == "turns" else {"in_shardings": (P("y"), P())}
    lowered = jm.jit(KEPT[name], mesh=AbstractMesh((2, 4), ("y", "x")), **shardings).lower(shape, shape)
    assert "ttcore.while_loop" in lowered.as_text()
    assert difference(lowered) is None
