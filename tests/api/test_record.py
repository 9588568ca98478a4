"""Recordings agree where programs do, survive a file, and find a planted fault at its equation."""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.record import Entry, PathStep, Place
from jaxmesh.cli import main
from jaxmesh.jaxprs import source_locations, walk
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.source_locations import SourceLocation
from tests.generators.mlir_texts import FILES
from tests.generators.oracles import cases, coordinates, same_bits, some
from tests.generators.programs.execution_paths import Stages
from tests.generators.programs.program import draw_program
from tests.generators.programs.values import Seeded
from tests.generators.suite.all_programs import PROGRAMS, Entry as Suite

MESH = jm.make_mesh((2, 4), ("y", "x"))
X = np.arange(64, dtype=np.float32).reshape(8, 8)
SQUARE = ((X % 7) - 3).astype(np.float32)
LEVELS = ("ttir", "ttnn", "devices")


def recordings(function: Callable[..., Any], *args: Any, mesh: Any = MESH, **options: Any) -> dict[str, jm.Recording]:
    traced = jm.jit(function, mesh=mesh).trace(*args)
    lowered = traced.lower()
    stages = dict(zip(LEVELS, (traced, lowered, lowered.compile(check_replication=False)), strict=True))
    return {level: stage.record(*args, **options) for level, stage in stages.items()}


def record(function: Callable[..., Any], *args: Any, level: str = "ttir", mesh: Any = MESH) -> jm.Recording:
    traced = jm.jit(function, mesh=mesh).trace(*args)
    if level == "ttir":
        return traced.record(*args)
    lowered = traced.lower()
    return (lowered if level == "ttnn" else lowered.compile(check_replication=False)).record(*args)


def only(recording: jm.Recording, op: str) -> list[Entry]:
    return [e for e in recording.entries if e.place.op == op]


def line_of(function: Callable[..., Any], words: str) -> str:
    """The one line of a function that holds the words, as a row names it."""
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, line in enumerate(lines) if words in line]
    return f"{Path(__file__).name}:{found} "


# --- every level agrees ----------------------------------------------------------------------------------------------


def agree(found: dict[str, jm.Recording]) -> None:
    ttir, ttnn, devices = (found[level] for level in LEVELS)
    assert jm.compare(ttir, ttnn, exact=True), jm.compare(ttir, ttnn, exact=True)
    assert jm.compare(ttnn, devices), jm.compare(ttnn, devices)
    assert jm.compare(ttir, devices), jm.compare(ttir, devices)
    # The same program: every value has its partner, in the same order.
    assert [e.name for e in ttnn.entries] == [e.name for e in devices.entries]
    compared = jm.compare(ttir, ttnn)
    assert not compared.strange
    plumbing = {"mesh_shard", "distribute_tensor", "aggregate_tensor", "reshape"}
    pieces = {"axis_index", "mul", "pvary", "dynamic_slice"}
    split = {r.line for r in compared.unmatched if r.op == "mesh_shard"}
    assert all(r.op in plumbing or (r.op in pieces and r.line in split) for r in compared.unmatched)


@pytest.mark.slow(but_one_in=96)
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_reference_and_devices_agree(entry: Suite) -> None:
    found = recordings(entry.function, *entry.args(), mesh=entry.mesh)
    agree(found)
    for recording in found.values():
        names = [e.name for e in recording.entries]
        assert len(set(names)) == len(names)


@pytest.mark.slow(but_one_in=80)
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_agree_at_every_level(seed: int) -> None:
    stages = Stages.of(draw_program(Seeded(seed)))
    compiled = stages.lowered.compile(check_replication=False)
    found = [stage.record(*stages.args) for stage in (stages.traced, stages.lowered, compiled)]
    agree(dict(zip(LEVELS, found, strict=True)))


def test_what_the_devices_split_again_is_no_difference() -> None:
    def program(x: Any, w: Any) -> Any:
        total = lax.psum(jm.full_to_shard(x, P("y")) @ w, "y")
        return jm.shard_to_full(jm.full_to_shard(total, P("x")) * 2, P("x"))

    found = recordings(program, SQUARE, SQUARE)
    agree(found)
    compared = jm.compare(found["ttir"], found["ttnn"])
    assert {"dynamic_slice", "axis_index"} <= {r.op for r in compared.unmatched}
    assert str(compared).splitlines()[-1] == "no difference"


def everything(x: Any, w: Any) -> Any:
    """Loops and branches that devices take together and apart, on the host and on the devices, inside of each other."""
    x = lax.pcast(jm.full_to_shard(x, P("y")), "x", to="varying")
    w = jm.full_to_shard(w, P(None, "x"))

    def step(c: Any, i: Any) -> Any:
        return jnp.flip(c) + i, lax.fori_loop(0, i, lambda j, s: s + c[0, j], c[0, 0])

    y, sums = lax.scan(step, x, jnp.arange(3), reverse=True)
    start = lax.pcast(lax.axis_index("y"), "x", to="varying")
    count, _ = lax.while_loop(lambda t: t[0] < 3 + 20 * lax.axis_index("x"), lambda t: (t[0] + 1, t[1] * 2), (start, y))
    z = lax.cond(lax.axis_index("x") > 1, lambda a: jnp.flip(a) + 1, lambda a: jax.checkpoint(jnp.negative)(a), y)

    def host(c: Any, _: Any) -> Any:
        d = jm.shard_to_full(jm.full_to_shard(c, P("x")) * 2, P("x"))
        return lax.cond(d[0] > 0, lambda v: v + 1, lambda v: v - 1, d), d.sum()

    h = lax.scan(host, jnp.arange(8.0), None, length=2)
    z = lax.psum(z @ w, "x") + lax.psum(count, "x").astype(jnp.float32) + lax.psum(sums.sum(), "x")
    return jm.shard_to_full(z, P("y")), h


@pytest.mark.slow
def test_loops_and_branches() -> None:
    found = recordings(everything, SQUARE, SQUARE)
    agree(found)
    devices = found["devices"]
    # A branch is recorded on the devices that took it; a loop as long as each device went on.
    (negated,) = only(devices, "neg")
    assert negated.coordinates == tuple(c for c in coordinates((2, 4)) if c[1] <= 1)
    assert [str(s) for s in negated.path] == ["cond branch[0]"]
    turns = [e for e in only(devices, "mul") if e.path and e.path[0].place.op == "while" and e.path[0].part == "body"]
    last = turns[-1]
    assert (last.path[0].index, last.coordinates) == (62, ((0, 3),))
    assert [e.path[0].index for e in only(devices, "rev") if e.path and e.path[0].place.op == "scan"] == [2, 1, 0]
    inner = [e for e in devices.entries if [s.place.op for s in e.path] == ["scan", "while"] and e.place.op == "gather"]
    assert all(e.path[1].index < e.path[0].index for e in inner)
    # On the host a value is full, also inside of a loop that distributes.
    assert {e.coordinates for e in only(devices, "aggregate_tensor")} == {None}
    # What is the same by its type is read from every device.
    assert all(len(e.coordinates or ()) == 8 for e in only(devices, "psum_invariant"))


def test_what_is_recorded_is_what_was_made() -> None:
    """Against slices and sums in NumPy."""

    def function(x: Any) -> Any:
        shard = jm.full_to_shard(x, P("y", "x"))
        return jm.shard_to_full(lax.psum(shard * 3, "x"), P("y"))

    for recording in recordings(function, SQUARE).values():
        argument, tripled, added = (only(recording, op)[0] for op in ("argument", "mul", "psum_invariant"))
        shards, full = (e for e in recording.entries if "tensor" in e.place.op or "shard" in e.place.op)
        assert same_bits(argument.data, SQUARE)
        for y, x in coordinates((2, 4)):
            part = SQUARE[4 * y : 4 * y + 4, 2 * x : 2 * x + 2]
            rows = SQUARE[4 * y : 4 * y + 4].reshape(4, 4, 2).sum(1)
            assert same_bits(shards.at((y, x)), part)
            assert same_bits(tripled.at((y, x)), part * 3)
            assert same_bits(added.at((y, x)), rows * 3)
        assert same_bits(full.at((1, 1)), SQUARE.reshape(8, 4, 2).sum(1) * 3)
        assert full.coordinates is None
        assert (argument.place.source.function, tripled.place.op) == (recording.name, "mul")
        assert tripled.place.line.startswith(line_of(function, "* 3"))


@pytest.mark.parametrize("level", LEVELS)
def test_copies_that_are_equal_take_the_memory_of_one(level: str, tmp_path: Path) -> None:
    seen: list[float] = []

    def split(x: Any) -> Any:
        copies, shards = jm.full_to_shard(x, P()) * 2, jm.full_to_shard(x, P("y")) * 3
        jax.debug.callback(lambda v: seen.append(float(v)), copies[0, 0])
        return jm.shard_to_full(copies, P()) + jm.shard_to_full(shards, P("y"))

    recording = record(split, X, level=level)
    jax.effects_barrier()
    assert seen == [0.0] * MESH.size
    recording.save(tmp_path / "a.npz")
    for made in (recording, jm.Recording.load(tmp_path / "a.npz")):
        copies, shards = only(made, "mul")
        for at in np.ndindex(2, 4):
            assert same_bits(copies.at(at), X * 2)
            assert same_bits(shards.at(at), np.split(X * 3, 2)[at[0]])
    copies, shards = only(recording, "mul")
    assert np.shares_memory(copies.at((0, 0)), copies.at((1, 3)))
    assert not np.shares_memory(shards.at((0, 0)), shards.at((1, 0)))


@pytest.mark.slow
def test_keys_calls_and_rules() -> None:
    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return x * 2

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (g * 2,))

    def function(x: Any) -> Any:
        key = jax.random.key(3)
        keys = jax.random.split(key, 4)
        x = jm.full_to_shard(x, P("x"))
        x = jax.jit(jnp.flip)(jax.checkpoint(doubled)(x)) + jax.nn.relu(x)
        return jm.shard_to_full(x + jax.random.randint(keys[1], (2, 8), 0, 9), P("x"))

    found = recordings(function, X)
    agree(found)
    split = only(found["devices"], "random_split")[0]
    assert split.key == "fry"
    assert same_bits(split.data if split.coordinates is None else split.at((0, 0)),
                     jax.random.key_data(jax.random.split(jax.random.key(3), 4)))  # fmt: skip


def test_tensors_on_the_devices_and_other_types() -> None:
    tensor = jm.jit(lambda v: jm.full_to_shard(v, P(None, "x")), mesh=MESH)(X.astype(ml_dtypes.bfloat16))

    def function(t: Any, small: Any, empty: Any, count: Any) -> Any:
        small = jm.full_to_shard(small.astype(jnp.int4), P("y"))
        return t * 2, jm.shard_to_full(small, P("y")), jm.full_to_shard(empty, P()), jm.full_to_shard(count, P())

    found = recordings(function, tensor, np.arange(4), np.zeros((0, 3), np.float32), np.float32(2))
    agree(found)
    assert {str(e.dtype) for e in found["devices"].entries} >= {"bfloat16", "int4", "float32"}


def test_numbers_in_a_program_keep_their_type() -> None:
    """The reference executor gave NumPy's own type for a number that only moves."""

    def function(x: Any) -> Any:
        return jm.full_to_shard(3, P()) + jm.full_to_shard(x, P())

    with jax.enable_x64(True):
        found = recordings(function, np.int32(1))
        assert {e.dtype.name for r in found.values() for e in r.entries} <= {"int32", "int64"}
        (ours, *_), (theirs, *_) = only(found["ttir"], "mesh_shard"), only(found["ttnn"], "distribute_tensor")
        assert ours.dtype == theirs.dtype
        traced = jm.jit(function, mesh=MESH).trace(np.int32(1))
        assert {v.dtype for v in traced.reference(np.int32(1)).values()} == {traced.out_avals[0].dtype}
    agree(recordings(function, np.int32(1)))


def test_donated_arguments_stay() -> None:
    x = jnp.ones((8, 8))
    function = jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("x")) * 2, P("x")), mesh=MESH, donate_argnums=0)
    compiled = function.lower(x).compile()
    first, again = compiled.record(x), compiled.record(x)
    assert jm.compare(first, again, exact=True)
    assert not x.is_deleted()
    # What is recorded is nobody else's memory.
    given = np.ones((8, 8), np.float32)
    recording = function.trace(given).record(given)
    given[:] = 0
    assert (recording.entries[0].data == 1).all()
    assert (recording.entries[1].data == 1).all()


def test_abstract_meshes_and_explicit_axes() -> None:
    def function(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("x")) + 1, P("x"))

    abstract = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    without = jm.jit(function, mesh=abstract).trace(X)
    assert jm.compare(without.record(X), without.lower().record(X), exact=True)
    explicit = jm.make_mesh((2, 4), ("y", "x"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    agree(recordings(function, X, mesh=explicit))


# --- planted faults --------------------------------------------------------------------------------------------------


def straight(x: Any, fault: str = "") -> Any:
    """A program on one line per equation; with a fault in one of them."""
    rows = jm.full_to_shard(x, P("x", "y") if fault == "axes" else P("y", "x")).reshape(-1)
    tripled = rows * (4.0 if fault == "constant" else 3.0)
    pairs = [(i, (i + (3 if fault == "permutation" else 1)) % 4) for i in range(4)]
    turned = lax.ppermute(tripled, "x", pairs)
    piece = lax.slice(turned, (1 if fault == "slice" else 0,), (5 if fault == "slice" else 4,))
    added = lax.psum(piece, "x") if fault != "psum" else piece
    shifted = added - 1.0
    return jm.shard_to_full(shifted, P("y"), assume_replicated=True)


FAULTS = {
    "axes": "jm.full_to_shard(x",
    "constant": "rows * (",
    "permutation": "lax.ppermute",
    "slice": "lax.slice",
}


@pytest.mark.parametrize("level", ["ttir", "devices"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_at_its_equation(fault: str, level: str) -> None:
    good = record(straight, SQUARE)
    bad = record(lambda x: straight(x, fault), SQUARE, level=level)
    first = jm.compare(good, bad).first
    assert first is not None
    assert first.line.startswith(line_of(straight, FAULTS[fault]))
    if fault not in ("axes",):
        assert first.value != first.other
        assert first.coordinate is not None
    # All before it, and nothing of it, is right.
    assert all(r.status == "equal" for r in jm.compare(good, bad).rows[: jm.compare(good, bad).rows.index(first)])


@pytest.mark.parametrize("level", ["ttir", "ttnn", "devices"])
def test_pieces_in_another_order_are_found_on_their_first_device(level: str) -> None:
    """Swapped axes of a square mesh: shapes and types are the same, and two devices have each other's piece."""
    square = jm.make_mesh((2, 2), ("y", "x"))

    def doubled(x: Any, spec: Any) -> Any:
        piece = jm.full_to_shard(x, spec)
        return jm.shard_to_full(piece * 2, spec)

    good = record(lambda x: doubled(x, P("y", "x")), X, mesh=square)
    bad = record(lambda x: doubled(x, P("x", "y")), X, mesh=square, level=level)
    first = jm.compare(good, bad).first
    assert first is not None
    assert first.line.startswith(line_of(doubled, "full_to_shard"))
    assert first.coordinate == (0, 1)
    right, wrong = X[:4, 4:], X[4:, :4]
    assert (first.value, first.other) == (right[first.index], wrong[first.index])
    assert first.largest == np.abs(right - wrong).max()


def test_the_first_device_that_differs_is_named() -> None:
    """Against NumPy: the permutation of the devices in one row is wrong from the first one on whose piece differs."""
    good, bad = record(straight, SQUARE), record(lambda x: straight(x, "permutation"), SQUARE, level="devices")
    first = jm.compare(good, bad).first
    assert first is not None
    pieces = {(y, x): 3 * SQUARE[4 * y : 4 * y + 4, 2 * x : 2 * x + 2].ravel() for y, x in coordinates((2, 4))}
    right = {(y, x): pieces[y, (x - 1) % 4] for y, x in pieces}
    wrong = {(y, x): pieces[y, (x - 3) % 4] for y, x in pieces}
    apart_at = [c for c in coordinates((2, 4)) if not same_bits(right[c], wrong[c])]
    assert first.coordinate == apart_at[0]
    index = int(np.argmax(right[apart_at[0]] != wrong[apart_at[0]]))
    if first.why.startswith("bits differ"):
        assert first.index == (index,)
    else:
        assert first.index == (int(np.argmax(np.abs(right[apart_at[0]] - wrong[apart_at[0]]))),)
    assert first.value == right[apart_at[0]][first.index]
    assert first.other == wrong[apart_at[0]][first.index]
    assert first.largest == max(np.abs(right[c] - wrong[c]).max() for c in right)
    assert first.pcc == pytest.approx(min(np.corrcoef(right[c], wrong[c])[0, 1] for c in right), abs=1e-12)


@pytest.mark.parametrize("level", ["ttir", "devices"])
def test_a_dropped_psum_is_named_before_the_first_difference(level: str) -> None:
    with jm.check_replication(False):
        found = jm.compare(record(straight, SQUARE), record(lambda x: straight(x, "psum"), SQUARE, level=level))
    assert found.first is not None
    assert found.first.line.startswith(line_of(straight, "added - 1.0"))
    (missing,) = found.before
    assert (missing.status, missing.op) == ("only in a", "psum_invariant")
    assert missing.line.startswith(line_of(straight, "lax.psum"))
    assert "before it, only in a: test_record.py" in str(found)


EDITED = """
from jax import lax, numpy as jnp
from jax.sharding import PartitionSpec as P
import jaxmesh as jm
def model(x):
    x = jm.full_to_shard(x, P("y", "x"))
    y = lax.psum(x, "x")
    return jm.shard_to_full(jnp.tanh(y * 0.01) + 1, P("y"))
"""


@pytest.mark.parametrize(
    ("old", "new", "op"),
    [
        ("def model", "# a comment\ndef model", ""),
        ("return jm", "z = 3; return jm", ""),
        ("def model", "# a comment\n# and another\ndef model", "tanh"),
        ("return jm", "z = 3; return jm", "tanh"),
        ('y = lax.psum(x, "x")', '# a comment\n    y = lax.psum(-x, "x")', "psum_invariant"),
    ],
)
def test_lines_that_an_edit_has_moved_keep_their_partners(old: str, new: str, op: str, tmp_path: Path) -> None:
    def made(text: str, level: str) -> jm.Recording:
        path = tmp_path / level / "model.py"
        path.parent.mkdir()
        path.write_text(text)
        names: dict[str, Any] = {}
        exec(compile(text, str(path), "exec"), names)
        return record(names["model"], SQUARE, level=level)

    text = EDITED.replace(old, new).replace("jnp.tanh", "jnp.cos" if op == "tanh" else "jnp.tanh")
    found = jm.compare(made(EDITED, "ttir"), made(text, "devices"))
    if not op:
        assert found
        assert found.unmatched == ()
        return
    assert found.first is not None
    if op == "tanh":
        # Another op has no partner; what comes after it has.
        assert found.first.op == "add"
        assert [r.op for r in found.before] == ["tanh", "cos"]
    else:
        assert found.first.op == op
        assert [r.op for r in found.before] == ["neg"]


def test_a_comparison_of_parts_says_so() -> None:
    def entry(line: int, op: str) -> Entry:
        return Entry(Place(SourceLocation("f.py", line, 1, "f"), op, 0), (), 0, None, X)

    both, left, right = entry(1, "add"), entry(2, "mul"), entry(3, "cos")
    a, b = (jm.Recording((both, e), {"x": 2}, "ttir", "f") for e in (left, right))
    assert str(jm.compare(a, b)).endswith("no difference in the values that both have; others have no partner")


def looped(x: Any, fault: str = "") -> Any:
    x = lax.pcast(jm.full_to_shard(x, P("y")), "x", to="varying")

    def step(c: Any, i: Any) -> Any:
        shift = 3 if fault == "permutation" else 1
        c = c + lax.axis_index("x") * (i if fault != "constant" else jnp.minimum(i, 1))
        c = lax.ppermute(c, "x", [(k, (k + shift) % 4) for k in range(4)])
        added = lax.pcast(lax.psum(c, "x"), "x", to="varying") if fault != "psum" else c
        return added * 0.5, None

    c, _ = lax.scan(step, x, jnp.arange(4.0))
    return jm.shard_to_full(c, P("y"), assume_replicated=True)


@pytest.mark.parametrize("level", ["ttir", "devices"])
@pytest.mark.parametrize(
    ("fault", "words", "turn"),
    [("permutation", "lax.ppermute", 1), ("constant", "c + lax.axis_index", 2)],
)
def test_a_fault_in_a_loop_is_found_in_its_turn(fault: str, words: str, turn: int, level: str) -> None:
    def varied(x: Any, fault: str = "") -> Any:
        return looped(x, fault)

    good = record(varied, SQUARE)
    bad = record(lambda x: varied(x, fault), SQUARE, level=level)
    first = jm.compare(good, bad).first
    assert first is not None
    assert first.line.startswith(line_of(looped, words))
    assert first.path == f"scan[{turn}]"


def test_a_dropped_psum_in_a_loop() -> None:
    with jm.check_replication(False):
        found = jm.compare(record(looped, SQUARE), record(lambda x: looped(x, "psum"), SQUARE, level="devices"))
    assert found.first is not None
    assert found.first.path == "scan[0]"
    assert [r.op for r in found.before if r.status == "only in a"][:1] == ["psum_invariant"]
    assert found.before[0].line.startswith(line_of(looped, "lax.psum"))


# Per primitive another one, or other parameters, of the same type.
SWAPS: dict[str, Callable[[Any], Any]] = {
    "add": lambda e: e.replace(primitive=lax.sub_p),
    "sub": lambda e: e.replace(primitive=lax.add_p),
    "max": lambda e: e.replace(primitive=lax.min_p),
    "min": lambda e: e.replace(primitive=lax.max_p),
    "sin": lambda e: e.replace(primitive=lax.cos_p),
    "neg": lambda e: e.replace(primitive=lax.abs_p, params={}),
    "rev": lambda e: walk.copy_eqn(e),
    "cumsum": lambda e: e.replace(params={**e.params, "reverse": not e.params["reverse"]}),
    "ppermute": lambda e: e.replace(params={**e.params, "perm": tuple((a, b) for b, a in e.params["perm"])}),
    "psum_invariant": lambda e: walk.copy_eqn(e),
    "argmax": lambda e: e.replace(primitive=lax.argmin_p),
    "slice": lambda e: e.replace(
        params={**e.params, **{k: tuple(i + 1 for i in e.params[k]) for k in ("start_indices", "limit_indices")}}
    ),
}


def swappable(x: Any) -> Any:
    """Many equations that can be swapped, on lines of their own, in all kinds of bodies."""
    x = jm.full_to_shard(x, P("y", "x"))
    x = x + 1.5
    x = lax.ppermute(x, "x", [(0, 1), (1, 2), (2, 0)])
    x = jnp.maximum(x, -2.25)

    def step(c: Any, i: Any) -> Any:
        c = c - i
        c = lax.rev(c, (0,))
        d = jnp.sin(c)
        return lax.cumsum(d, 0), lax.slice(c, (0, 0), (2, 1))

    x, slices = lax.scan(step, x, jnp.arange(1.0, 4.0))
    top = lax.argmax(x, 0, jnp.int32)

    def turn(t: Any) -> Any:
        i, v = t
        w = -v
        return i + 1, jnp.minimum(w, v)

    _, y = lax.while_loop(lambda t: t[0] < 3, turn, (0, x))
    z = lax.cond(
        lax.axis_index("y") == 0,
        lambda v: jnp.sin(v),
        lambda v: -v,
        y,
    )
    s = lax.psum(z, "x")
    s = s + slices.sum() * 0.5
    return jm.shard_to_full(lax.psum(s * 0.5, "x") - lax.psum(top[0], "x"), P("y"))


def counts(eqn: Any) -> bool:
    """Whether a loop may be waiting for the result."""
    return eqn.primitive.name == "add" and eqn.outvars[0].aval.dtype.kind == "i"


def changed(jaxpr: Any, number: int) -> tuple[Any, Any]:
    """The jaxpr with one of its equations, at any depth, swapped; and that equation."""
    count, found = 0, []

    def change(inner: Any) -> Any:
        nonlocal count
        eqns = []
        for eqn in inner.eqns:
            eqn = map_sub_jaxprs(eqn, change)
            if eqn.primitive.name in SWAPS and not counts(eqn):
                if count == number:
                    found.append(eqn)
                    eqn = SWAPS[eqn.primitive.name](eqn)
                count += 1
            eqns.append(eqn)
        return walk.with_eqns(inner, eqns, walk.open_jaxpr(inner).outvars)

    made = change(jaxpr)
    return made, found[0] if found else count


SIX = ((np.arange(36) % 7) - 3).astype(np.float32).reshape(6, 6)
TRACED = jm.jit(swappable, mesh=jm.make_mesh((2, 3), ("y", "x"))).trace(SIX)
SWAPPED = changed(TRACED.jaxpr, -1)[1]


@pytest.mark.slow
@cases(40)
@hypothesis.given(number=st.integers(0, SWAPPED - 1), seed=st.integers(0, 3), lowers=st.booleans())
def test_a_random_fault_is_found_at_exactly_its_line(number: int, seed: int, lowers: bool) -> None:
    args = (np.random.default_rng(seed).integers(-9, 9, (6, 6)).astype(np.float32),)
    stage: Any = TRACED.lower() if lowers else TRACED
    jaxpr, eqn = changed(stage.jaxpr, number)
    wrong = type(stage)(stage._boundary, jaxpr, stage.out_tree)
    found = jm.compare(TRACED.record(*args), wrong.record(*args))
    same = all(map(same_bits, jax.tree.leaves(stage.reference(*args)), jax.tree.leaves(wrong.reference(*args))))
    if found.first is None:
        assert same, "results differ, and no equation does"
        return
    first = found.first
    where = {r.line for r in (first, *found.before)}
    assert first.line.startswith(
        f"{Path(__file__).name}:{source_locations.source_line(eqn).split(':')[1].split()[0]} "
    ), where


def test_there_is_something_to_swap() -> None:
    assert SWAPPED > 15
    good, numbers = TRACED.record(SIX), some(range(SWAPPED), 7)
    wrong = [jm.Traced(TRACED._boundary, changed(TRACED.jaxpr, n)[0], None) for n in numbers]
    found = [jm.compare(good, stage.record(SIX)) for stage in wrong]
    assert sum(f.first is not None for f in found) >= 0.8 * len(found)


# --- files -----------------------------------------------------------------------------------------------------------


def odd_values() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, (3, 8)).astype(np.uint8)
    return [
        bits.view(ml_dtypes.bfloat16), bits.view(ml_dtypes.float8_e4m3fn), bits.view(ml_dtypes.float8_e5m2),
        (bits & 15).view(np.int8).astype(ml_dtypes.int4), bits.view(np.float16), bits.view(np.float32),
        bits.view(np.float64), bits.view(np.complex64), bits > 9, np.zeros((0, 4), ml_dtypes.bfloat16),
        np.array(np.nan, np.float32), np.asarray(ml_dtypes.bfloat16(-0.0)), np.int64(-(2**63)) * np.ones((), np.int64),
        np.full((2,), 2**64 - 1, np.uint64), bits.view(np.float32)[:, ::-1],
    ]  # fmt: skip


def recording_of(values: list[np.ndarray], **more: Any) -> jm.Recording:
    places = [Place(SourceLocation(f"/a dir/ü{i}.py", i, 2, "f<'\"&>"), "op", i) for i in range(len(values))]
    steps = (PathStep(places[0], "body", 3), PathStep(places[0], "branch", 0))
    entries = [Entry(p, steps[: i % 3], i % 2, None, v) for i, (p, v) in enumerate(zip(places, values, strict=True))]
    spread = Entry(places[0], (), 7, ((0, 1), (1, 3)), np.stack([values[0]] * 2))
    keys = Entry(places[0], (), 8, None, np.asarray(jax.random.key_data(jax.random.key(5))), "fry")
    options: dict[str, Any] = {"mesh": {"y": 2, "x": 4}, "level": "ttnn", "name": "näme", **more}
    return jm.Recording((*entries, spread, keys), **options)


@pytest.mark.slow
def test_files_keep_every_bit(tmp_path: Path) -> None:
    made = recording_of(odd_values(), partial=True)
    made.save(tmp_path / "a.npz")
    made.save(str(tmp_path / "again"))
    back = jm.Recording.load(tmp_path / "a.npz")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "a.npz").read_bytes()
    assert (back.mesh, back.level, back.name, back.partial) == (made.mesh, made.level, made.name, made.partial)
    for a, b in zip(made.entries, back.entries, strict=True):
        assert (a.place, a.path, a.result, a.coordinates, a.key) == (b.place, b.path, b.result, b.coordinates, b.key)
        assert same_bits(a.data, b.data)
    # Plain NumPy reads it, without pickle.
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert json.loads(file["recording"].tobytes())["version"] == 1
        assert same_bits(file["v5"], made.entries[5].data)
    whole = recordings(everything, SQUARE, SQUARE)["devices"]
    whole.save(tmp_path / "b.npz")
    assert jm.compare(whole, jm.Recording.load(tmp_path / "b.npz"), exact=True).count("equal") == len(whole)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The file with its text and arrays changed."""
    with np.load(path) as file:
        arrays = {n: file[n] for n in file.files}
    said = json.loads(arrays["recording"].tobytes())
    change(said, arrays)
    arrays["recording"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    np.savez(path, **arrays)
    return path


DAMAGE: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "another format": lambda said, _: said.update(format="numbers"),
    "no level": lambda said, _: said.update(level="hlo"),
    "no mesh": lambda said, _: said.update(mesh=[["x", 0]]),
    "a shape": lambda said, _: said["entries"][0].update(shape=[1]),
    "a dtype": lambda said, _: said["entries"][0].update(dtype="float1"),
    "bytes without numbers": lambda said, arrays: (
        said["entries"][0].update(dtype="V4", shape=[2]),
        arrays.update(v0=np.zeros(2, "V4")),
    ),
    "a path without end": lambda said, _: said["entries"][0].update(path=[[said["entries"][0]["place"], "", 0]] * 1001),
    "coordinates": lambda said, _: said["entries"][-2].update(coordinates=[[0, 9], [1, 3]]),
    "coordinates twice": lambda said, _: said["entries"][-2].update(coordinates=[[1, 3], [1, 3]]),
    "a place": lambda said, _: said["entries"][0].update(place=["a", -1, 0, "", "", 0]),
    "a path": lambda said, _: said["entries"][0].update(path=[[]]),
    "an array": lambda _, arrays: arrays.pop("v3"),
    "no entries": lambda said, _: said.pop("entries"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    recording_of(odd_values()).save(tmp_path / "a.npz")
    with pytest.raises(jm.RecordingError, match="is not a recording, or damaged"):
        jm.Recording.load(rewritten(tmp_path / "a.npz", DAMAGE[damage]))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(jm.MissingFileError, match=r"recording .*none\.npz.* does not exist"):
        jm.Recording.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no arrays")
    np.savez(tmp_path / "other.npz", arg0=X)
    np.save(tmp_path / "one.npy", X)
    np.savez(tmp_path / "objects.npz", recording=np.array([object()]))
    recording_of(odd_values()).save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as file:
        file.writestr("recording.npy", b"\x93NUMPY")
    for name in ("text.npz", "other.npz", "one.npy", "objects.npz", "torn.npz", "zip.npz", "."):
        with pytest.raises(jm.RecordingError, match="is not a recording, or damaged"):
            jm.Recording.load(tmp_path / name)
    rewritten(tmp_path / "whole.npz", lambda said, _: said.update(version=2))
    with pytest.raises(jm.RecordingError, match="version 2, but this jaxmesh reads version 1"):
        jm.Recording.load(tmp_path / "whole.npz")
    with pytest.raises(jm.RecordingError, match="cannot write"):
        recording_of([X]).save(tmp_path / "no folder" / "a.npz")


# --- rules -----------------------------------------------------------------------------------------------------------


def pair(a: Any, b: Any, op: str = "mul", **options: Any) -> Any:
    """The comparison of two values of one equation."""
    place = Place(SourceLocation("f.py", 1, 1, "f"), op, 0)
    rows = [jm.Recording((Entry(place, (), 0, None, np.asarray(x)),), {"x": 1}, "ttir", "f") for x in (a, b)]
    return jm.compare(*rows, **options)


def test_what_floats_have_to_keep() -> None:
    a = np.linspace(1, 2, 50, dtype=np.float32)
    assert pair(a, a + np.float32(2e-6)).count("close") == 1
    assert not pair(a, a + np.float32(2e-6), exact=True)
    assert not pair(a, a + np.float32(2e-6), op="transpose")
    assert not pair(a, a * np.float32(1.001))
    assert pair(a, a * np.float32(1.001), rtol=1e-2)
    # A wrong factor has a perfect correlation, and none is asked of a constant.
    assert pair(a, a * np.float32(5), rtol=np.inf)
    assert not pair(a, a[::-1], rtol=np.inf)
    assert not pair(a, a[::-1], rtol=9)
    assert pair(a, a[::-1], rtol=9, pcc=-1)
    assert pair(a, a + 1, atol=1.5, pcc=0)
    assert pair(np.float32([2]), np.float32([2.0005]))
    assert not pair(np.float32([2]), np.float32([2.5]))
    assert not pair(np.int32([2]), np.int32([3]), rtol=9, pcc=-1)
    half = a.astype(ml_dtypes.bfloat16)
    assert pair(half, (a * np.float32(1.004)).astype(ml_dtypes.bfloat16))
    assert not pair(half, (a * np.float32(1.5)).astype(ml_dtypes.bfloat16))
    assert not pair(a, a.astype(np.float64))
    assert "shapes (50,) and (49,)" in str(pair(a, a[:-1]))
    assert pair(np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), op="transpose")
    assert not pair(np.float32([np.nan, 1]), np.float32([1, 1]))


def test_full_values_are_compared_with_every_device() -> None:
    place = Place(SourceLocation("f.py", 1, 1, "f"), "add", 0)
    full = jm.Recording((Entry(place, (), 0, None, X),), {"x": 2}, "ttir", "f")
    copies = np.stack([X, X])
    spread = jm.Recording((Entry(place, (), 0, ((0,), (1,)), copies),), {"x": 2}, "devices", "f")
    assert jm.compare(full, spread)
    assert jm.compare(spread, full)
    copies[1, 3, 4] = 9
    first = jm.compare(full, spread).first
    assert first is not None
    assert (first.coordinate, first.index, first.value, first.other) == ((1,), (3, 4), X[3, 4], 9.0)
    part = jm.Recording((Entry(place, (), 0, ((1,),), X[None]),), {"x": 2}, "devices", "f")
    missing = jm.compare(
        jm.Recording((Entry(place, (), 0, ((0,), (1,)), np.stack([X, X])),), {"x": 2}, "ttir", "f"), part
    )
    assert missing.first is not None
    assert missing.first.coordinate == (0,)


# --- reports ---------------------------------------------------------------------------------------------------------


def test_reports(monkeypatch: Any) -> None:
    place = Place(SourceLocation("<b>f.py", 3, 1, "f"), "add", 0)
    rows = [jm.Recording((Entry(place, (), 0, None, np.float32([1, v])),), {"x": 1}, "ttir", "f&g") for v in (2, 3)]
    bad, good = jm.compare(*rows), jm.compare(rows[0], rows[0])
    assert (bool(bad), bool(good)) == (False, True)
    assert good.first is None
    assert str(good).endswith("no difference")
    text = str(bad)
    assert "first difference: <b>f.py:3 (f): add, index [1]: 2 in a, 3 in b: largest difference 1 > 0.00104" in text
    page = bad._repr_html_()
    assert "&lt;b&gt;f.py:3" in page
    assert "<b>" not in page
    assert "f&amp;g" in page
    assert "color: inherit" in page
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=250, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(bad)
    console.print(good)
    shown = console.export_text()
    assert "<b>f.py:3" in shown
    assert "no difference" in shown
    console.file.close()


# --- choices and limits ----------------------------------------------------------------------------------------------


def simple(x: Any) -> Any:
    return jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P("y"))) * 2, P("y"))


def test_only_some_values() -> None:
    traced = jm.jit(simple, mesh=MESH).trace(X)
    stages = traced, traced.lower(), traced.lower().compile()
    for stage in stages:
        assert [e.place.op for e in stage.record(X, only="mu*").entries] == ["mul"]
        assert [e.place.op for e in stage.record(X, only=["sin", "mul"]).entries] == ["sin", "mul"]
        assert [e.place.op for e in stage.record(X, only=lambda p: p.op == "sin").entries] == ["sin"]
        assert len(stage.record(X, only="test_record.py:*")) == len(stage.record(X)) - 1
        assert stage.record(X, only="mul").partial
    assert jm.compare(stages[0].record(X, only="mul"), stages[2].record(X))


def test_too_many_bytes() -> None:
    traced = jm.jit(simple, mesh=MESH).trace(X)
    for stage in (traced, traced.lower(), traced.lower().compile()):
        size = stage.record(X).nbytes
        assert stage.record(X, max_bytes=size).nbytes == size
        with pytest.raises(jm.RecordingSizeError, match=f"more than max_bytes={size - 1} bytes: {size} with"):
            stage.record(X, max_bytes=size - 1)


WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda t: t.record(), jm.ArgumentTypeError, "traced for"),
    (lambda t: t.record(X[:4]), jm.ArgumentTypeError, r"\[8, 8\]"),
    (lambda t: t.record(X, only=3), jm.ArgumentTypeError, "pattern.*got 3"),
    (lambda t: t.record(X, only=[]), jm.ArgumentTypeError, r"pattern.*got \[\]"),
    (lambda t: t.record(X, only=[3]), jm.ArgumentTypeError, r"pattern.*got \[3\]"),
    (lambda t: t.record(X, only=int), jm.ArgumentTypeError, "pattern"),
    (lambda t: t.record(X, only=lambda p: 1), jm.ArgumentTypeError, "True or False, got 1"),
    (lambda t: t.record(X, max_bytes=-1), jm.ArgumentTypeError, "max_bytes, got -1"),
    (lambda t: t.record(X, max_bytes=1.5), jm.ArgumentTypeError, r"max_bytes, got 1\.5"),
    (lambda t: t.record(X).save(3), jm.ArgumentTypeError, "path of a file"),
    (lambda t: jm.Recording.load(None), jm.ArgumentTypeError, "path of a file"),
    (lambda t: t.record(X).entries[1].at((5, 5)), jm.ArgumentValueError, r"\[5, 5\]"),
    (lambda t: jm.compare(t.record(X), "b.npz"), jm.ArgumentTypeError, r"Recording as b, got 'b\.npz'"),
    (lambda t: jm.compare(3, t.record(X)), jm.ArgumentTypeError, "Recording as a, got 3"),
    (lambda t: jm.compare(t.record(X), t.record(X), pcc="high"), jm.ArgumentTypeError, "pcc, got 'high'"),
    (lambda t: jm.compare(t.record(X), t.record(X), pcc=2), jm.ArgumentValueError, "pcc a number from -1 to 1, got 2"),
    (lambda t: jm.compare(t.record(X), t.record(X), rtol=-1), jm.ArgumentValueError, "rtol.*got -1"),
    (lambda t: jm.compare(t.record(X), t.record(X), atol=None), jm.ArgumentTypeError, "atol, got None"),
    (lambda t: jm.compare(t.record(X), t.record(X), rtol=float("nan")), jm.ArgumentTypeError, "rtol, got nan"),
    (lambda t: jm.compare(t.record(X), t.record(X), exact=1), jm.ArgumentTypeError, "True or False as exact, got 1"),
    (lambda t: jm.compare(t.record(X), jm.Recording((), {"x": 4, "y": 2}, "ttir", "f")), jm.RecordingError,
     "two meshes, {'y': 2, 'x': 4} and {'x': 4, 'y': 2}"),
    (lambda t: jm.compare(t.record(X), jm.Recording((), {"y": 2, "x": 4}, "ttir", "f")), jm.RecordingError,
     "no value that both"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_calls(number: int) -> None:
    call, kind, words = WRONG[number]
    with pytest.raises(kind, match=words):
        call(jm.jit(simple, mesh=MESH).trace(X))


# --- the command line ------------------------------------------------------------------------------------------------


def test_command_line(tmp_path: Path, capsys: Any) -> None:
    text, paths = str(FILES / "matmul_2x4.mlir"), [str(tmp_path / f"{n}.npz") for n in (*LEVELS, "seed", "only")]
    for level, path in zip(LEVELS, paths, strict=False):
        assert main.main(["record", text, "--level", level, "--out", path]) == 0
    assert "wrote" in capsys.readouterr().out
    assert main.main(["compare", paths[0], paths[1], "--exact"]) == 0
    assert main.main(["compare", paths[0], paths[2]]) == 0
    assert capsys.readouterr().out.count("no difference") == 2
    assert main.main(["record", text, "--seed", "7", "--out", paths[3]]) == 0
    assert main.main(["compare", paths[0], paths[3]]) == 1
    assert "line 12  dot_general" in capsys.readouterr().out
    assert main.main(["compare", paths[0], paths[3], "--pcc", "-1", "--rtol", "inf", "--atol", "0"]) == 1
    assert main.main(["record", text, "--only", "dot*", "--max-bytes", "4096", "--out", paths[4]]) == 0
    assert [e.place.op for e in jm.Recording.load(paths[4]).entries] == ["dot_general"]
    capsys.readouterr()
    for arguments, words in [
        (["record", text, "--out", str(tmp_path)], "--out takes a file"),
        (["record", text, "--max-bytes", "9", "--out", paths[4]], "max_bytes=9"),
        (["record", str(tmp_path / "none.mlir"), "--out", paths[4]], "none.mlir"),
        (["compare", paths[0], str(tmp_path / "none.npz")], "does not exist"),
        (["compare", paths[0], text], "not an .npz file"),
        (["compare", paths[0], paths[1], "--pcc", "3"], "from -1 to 1, got 3"),
    ]:
        assert main.main(arguments) == main.USAGE
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("jaxmesh: error: ")
        assert words in err
    for arguments in (
        ["compare", paths[0], paths[1], "--pcc", "x"],
        ["record", text, "--max-bytes", "x", "--out", "a"],
    ):
        with pytest.raises(SystemExit):
            main.main(arguments)
        assert capsys.readouterr().err.startswith("jaxmesh: error: argument")
