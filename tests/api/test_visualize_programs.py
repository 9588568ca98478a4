"""Pictures of long programs: folded into one page, against the jaxpr, `explain` and `estimate`."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.drawing.program_blocks import BlockRow, ProgramBlock, fold
from jaxmesh.drawing.program_drawing import ProgramPicture
from jaxmesh.drawing.text_layout import cells
from jaxmesh.jaxprs import primitives, walk
from tests.api.test_visualize import parse_html

LAYERS, WIDTH, HIDDEN = 12, 16, 32
SPECS = {"q": P(None, "x"), "o": P("x"), "up": P(None, "x"), "down": P("x"), "scale": P()}
MESH = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)


def norm(scale: Any, x: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(w: Any, x: Any) -> Any:
    q = x @ w["q"]
    return jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, q), -1) @ q @ w["o"]


def mlp(w: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ w["up"]) @ w["down"]


def block(w: Any, x: Any) -> Any:
    x = x + attention(w, norm(w["scale"], x))
    return x + mlp(w, norm(w["scale"], x))


def loss(weights: Any, x: Any, scoped: bool) -> Any:
    for i, w in enumerate(weights):
        with jax.named_scope(f"layer_{i}" if scoped else ""):
            x = block(w, x)
    return jnp.mean(x * x)


@functools.cache
def training_step(scoped: bool) -> Any:
    """A step of training 12 layers, lowered."""

    def train_step(weights: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x, scoped)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    sizes = {
        "q": (WIDTH, WIDTH),
        "o": (WIDTH, WIDTH),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
        "scale": (WIDTH,),
    }
    layer = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sizes.items()}
    shardings = [{name: NamedSharding(MESH, spec) for name, spec in SPECS.items()}] * LAYERS
    step = jm.jit(train_step, in_shardings=(shardings, NamedSharding(MESH, P("y"))), out_shardings=(None, shardings))
    return step.lower([layer] * LAYERS, jax.ShapeDtypeStruct((8, 4, WIDTH), jnp.float32))


@functools.cache
def picture(scoped: bool) -> ProgramPicture:
    made = jm.visualize(training_step(scoped))
    assert isinstance(made, ProgramPicture)
    return made


each = pytest.mark.parametrize("scoped", [True, False], ids=["named scopes", "functions"])


def named(block: ProgramBlock, *path: str) -> ProgramBlock:
    """The inner block at a path."""
    for name in path:
        (block,) = [b for b in block.blocks if b.name == name]
    return block


@each
def test_a_training_step_of_12_layers_is_one_page(scoped: bool) -> None:
    lines = str(picture(scoped)).splitlines()
    assert len(lines) <= 60
    assert max(map(cells, lines)) <= 100
    page = picture(scoped)._repr_html_()
    parser = parse_html(page)
    # What is open at first: every row that no closed block is around.
    shown, closed = 0, 0
    for tag, attributes in parser.tags:
        if tag == "details":
            closed += "open" not in attributes
    shown = (
        len(re.findall(r'class="row', re.sub(r"<details>.*?</summary>.*?</details>", "", page, flags=re.S))) + closed
    )
    assert shown <= 60


def test_equal_layers_are_one_block() -> None:
    root = picture(True).block
    forward, backward = named(root, "layer_0 ... layer_11"), named(root, "backward")
    assert forward.times == named(backward, "layer_11 ... layer_0").times == LAYERS
    assert {b.name for b in forward.blocks} == {"norm", "attention", "mlp", "block"}
    rows = [r for r in forward.leaves() if isinstance(r, BlockRow)]
    assert [(r.value.change and r.value.change.name, r.times) for r in rows] == [("all_reduce over x", 12)] * 3
    # Without scopes a function is one block, however often it is called.
    assert [b.name for b in named(picture(False).block, "loss", "block").blocks] == ["norm", "attention", "mlp"]


@each
def test_a_folded_picture_counts_what_the_program_holds(scoped: bool) -> None:
    eqns = [e for e in walk.open_jaxpr(training_step(scoped).jaxpr).eqns if e.primitive.name not in primitives.RETYPES]
    root = picture(scoped).block
    moving = sum(
        isinstance(leaf, BlockRow) * leaf.times
        for leaf in root.leaves()
        if not isinstance(leaf, BlockRow) or leaf.value.moves
    )
    assert root.equations + moving == len(eqns)
    want = Counter[str]()
    for row in training_step(scoped).explain():
        for move in row.moves:
            want[f"{move.kind} {', '.join(move.axes)}"] += row.executions or 0
    counts = root.changes()
    collectives = {kind: n for kind, n in want.items() if not kind.startswith(("distribute", "aggregate"))}
    assert collectives == {kind: n for kind, n in counts.items() if kind.startswith("all_")}
    arguments = named(root, "arguments").changes()
    assert arguments == {"x": 4 * LAYERS, "replicated": LAYERS, "y": 1}


@each
def test_the_times_of_blocks_add_up_to_the_estimate(scoped: bool) -> None:
    estimate, root = training_step(scoped).estimate(), picture(scoped).block
    cost = root.cost
    np.testing.assert_allclose(cost.seconds, estimate.seconds, rtol=1e-9)
    for part, share in estimate.shares.items():
        np.testing.assert_allclose(cost.bound[part], share * estimate.seconds, rtol=1e-9, atol=1e-18)
        np.testing.assert_allclose(cost.busy[part], sum(op.times[part] for op in estimate.ops), rtol=1e-9)
    # Every op belongs to an equation.
    assert all(leaf.times for leaf in root.leaves())
    assert estimate.machine.name in str(picture(scoped))


def test_a_block_has_the_time_of_its_own_lines() -> None:
    """The estimate by source line, of a program that has each function once, is the oracle."""

    def f(w: Any, x: Any) -> Any:
        return mlp(w, attention(w, x))

    layer = {n: jax.ShapeDtypeStruct((64, 64), jnp.float32) for n in ("q", "o", "up", "down")}
    shardings = {n: NamedSharding(MESH, SPECS[n]) for n in layer}
    lowered = jm.jit(f, in_shardings=(shardings, NamedSharding(MESH, P("y")))).lower(
        layer, jax.ShapeDtypeStruct((8, 64, 64), jnp.float32)
    )
    by_function = Counter[str]()
    for line in lowered.estimate().lines:
        by_function[line.line.rpartition("(")[2].rstrip(")")] += line.seconds  # type: ignore[assignment]
    made = jm.visualize(lowered)
    assert isinstance(made, ProgramPicture)
    folded = fold(made.flow.steps, made.timing.costs)
    for name in ("attention", "mlp"):
        assert named(folded, name).cost.seconds == pytest.approx(by_function[name])


def test_bars_follow_each_other_on_the_timeline() -> None:
    page = picture(True)._repr_html_()
    bars = [(float(a), float(b)) for a, b in re.findall(r"left:([\d.]+)%;width:max\(([\d.]+)%", page)]
    assert len(bars) > 50
    assert all(left >= 0 and left + wide <= 100.03 for left, wide in bars)
    # In the text, the bars of the outermost rows are one after the other.
    starts = [
        line.rstrip()
        for line in str(picture(True)).splitlines()
        if re.match(r"  \w", line) and re.search(r"s  +[cdl]+$", line)
    ]
    assert len(starts) >= 2
    ends = [(len(re.split(r"[cdl]+$", line)[0]), len(line)) for line in starts]
    assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(ends))


def test_the_whole_lists_every_value() -> None:
    lowered = training_step(True)
    made = jm.visualize(lowered, whole=True)
    assert isinstance(made, ProgramPicture)
    lines = str(made).splitlines()
    assert len(lines) == 2 + len(made.flow.steps)
    assert len(made.flow.steps) > 1000
    assert max(map(cells, lines)) <= 100
    parse_html(made._repr_html_())


def test_a_page_is_one_file(tmp_path: Path) -> None:
    text = picture(True).save(tmp_path / "step.html").read_text(encoding="utf-8")
    parse_html(text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(text) < 700_000


def test_copies_that_a_traced_program_makes_of_a_result_are_replicated() -> None:
    doubled = jm.jit(lambda x: jm.full_to_shard(x * 2, P()) + 1, mesh=jm.make_mesh((2, 4)))
    (line,) = [x for x in str(jm.visualize(doubled.trace(jnp.ones((4, 8))))).splitlines() if "mesh_shard" in x]
    assert "replicated" in line


def test_a_traced_program_folds_too() -> None:
    def f(x: Any) -> Any:
        for i in range(30):
            with jax.named_scope(f"step_{i}"):
                x = jm.shard_to_full(lax.psum(jm.full_to_shard(x, P("y", "x")), "x") * 2, P("y"))
                x = jnp.concatenate([x] * 4, 1)
        return x

    traced = jm.jit(f, mesh=jm.make_mesh((2, 4))).trace(jnp.ones((4, 8)))
    made = jm.visualize(traced)
    assert isinstance(made, ProgramPicture)
    assert [(b.name, b.times) for b in made.block.blocks] == [
        ("arguments", 1), ("step_0", 1), ("step_1 ... step_29", 29), ("results", 1),
    ]  # fmt: skip
    assert "all_reduce over x" in str(made)
    assert "at least" not in str(made)


def test_a_program_without_a_machine_has_no_timeline() -> None:
    mesh = AbstractMesh((7, 7), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    text = str(jm.visualize(jm.jit(lambda x: x + 1, mesh=mesh).lower(jnp.ones(7))))
    assert re.search(r"^no timeline: no machine has the mesh 7x7", text, re.M)


def test_whole_is_of_programs() -> None:
    with pytest.raises(jm.ArgumentTypeError, match="whole=True with a program"):
        jm.visualize(jnp.ones(3), whole=True)
    with pytest.raises(jm.ArgumentTypeError, match="whole"):
        jm.visualize(training_step(True), whole="yes")  # type: ignore[arg-type]
