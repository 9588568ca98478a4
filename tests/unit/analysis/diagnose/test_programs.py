"""Errors planted in programs of kinds that users write are named at their operation, and roundings are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators.diagnosed import exported, outcomes
from tests.generators.plain_programs import LINE, MESH, Case, normal, wsc

pytestmark = pytest.mark.filterwarnings("ignore::jaxmesh.errors.ShardingWarning")


def on_devices(f: Any, ins: Any, outs: Any, mesh: Any = MESH) -> Any:
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)


def means_in_turn(w: Any, x: Any) -> Any:
    """A step of gradient descent whose gradients are averaged over one mesh axis after the other."""

    def step(w: Any, x: Any) -> Any:
        g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        g = lax.pmean(lax.pmean(g, "x"), "y")
        return w - g * lax.rsqrt((g * g).sum())

    return on_devices(step, (P(), P(("y", "x"))), P())(w, x)


def sum_of_copies(x: Any, g: Any) -> Any:
    """A reduction of what every device holds whole."""

    def scaled(x: Any, g: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.psum(jnp.abs(g).sum(), "y")

    return on_devices(scaled, (P("y", None), P()), P("y"))(x, g)


def stages(xs: Any, w: Any) -> Any:
    """A pipeline, whose first stage alone reads the arguments."""

    def run(xs: Any, w: Any) -> Any:
        i, h, outs = lax.axis_index("x"), jnp.zeros_like(xs[0]), list[Any]()
        for t in range(4):
            h = jnp.tanh(jnp.where(i == 0, xs[min(t, 2)], h) @ w[0])
            outs.append(lax.psum(h, "x"))
            h = lax.ppermute(h, "x", [(j, (j + 1) % 8) for j in range(8)])
        return jnp.stack(outs)

    return on_devices(run, (P(), P("x")), P(), LINE)(xs, w)


def shifted_tokens(x: Any, mu: Any, w: Any) -> Any:
    previous = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return jnp.tanh((x * mu + previous * (1 - mu)) @ w)


def joined_columns(a: Any, b: Any, w: Any) -> Any:
    a, b = (wsc(v, jax.NamedSharding(MESH, P())) for v in (a, b))
    return jnp.concatenate([a, b], 1) @ w


BOTH = {"dropped all_reduce", "wrong cluster_axis"}
PROGRAMS: Mapping[str, tuple[Case, set[str]]] = {
    "means in turn": (Case("", means_in_turn, (normal(8, 16), normal(16, 8)), (P(), P(("y", "x")))), BOTH),
    "a sum of copies": (Case("", sum_of_copies, (normal(8, 16), normal(16)), (P("y"), P())), BOTH),
    "a pipeline": (
        Case("", stages, (normal(3, 4, 8), normal(8, 8, 8)), (P(), P("x")), mesh=LINE),
        {"shifted slice", "dropped all_reduce"},
    ),
    "shifted tokens": (
        Case("", shifted_tokens, (normal(4, 8, 16), normal(16), normal(16, 16)), (P("y"), P(), P(None, "x"))),
        {"wrong pad"},
    ),
    "joined columns": (
        Case("", joined_columns, (normal(8, 8), normal(8, 8), normal(16, 8)), (P("y"), P("y"), P())),
        {"exchanged gathers"},
    ),
}


# No two gathers can be exchanged in TTNN, which reads the first before it makes the second.
STAGES = [(n, s) for n in PROGRAMS for s in ("ttir", "ttnn") if (n, s) != ("joined columns", "ttnn")]


@pytest.mark.slow(but_one_in=9)
@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_errors_are_named(name: str, stage: str) -> None:
    case, kinds = PROGRAMS[name]
    found = [o for o in outcomes(exported(case), stage, 2) if o.changes and o.planted.kind in kinds]
    assert {o.planted.kind for o in found} == kinds
    assert all(o.is_named for o in found), "\n".join(o.text for o in found if not o.is_named)


def test_a_batch_has_no_windows() -> None:
    """The cause of a wrong pad is not that a mesh axis splits the batch."""

    def convolution(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    case = Case("", convolution, (normal(8, 6, 6, 4), normal(3, 3, 4, 4)), (P("y"), P()))
    (found,) = [o for o in outcomes(exported(case), "ttir", 1) if o.planted.kind == "wrong pad"]
    assert found.is_named
    assert found.diagnosis.cause.startswith("with padding = ")


def test_a_rounding_may_choose_another_index() -> None:
    """Of two numbers that bfloat16 rounds to one the first is the largest; what follows goes on from there."""
    case = Case("", lambda x, w: (x @ w).argmax(-1) * 2 + 1, (normal(40, 8), normal(8, 64)), (P("y"), P()))
    found = [o for o in outcomes(exported(case), "ttir", 1) if o.planted.rounding]
    assert [o.diagnosis.verdict for o in found] == ["less precise"]


def test_arguments_that_a_text_rounds_are_less_precise() -> None:
    """No operation of the program rounds, but the text computes in bfloat16."""
    x = normal(8, 8)
    text = jax.jit(lambda x: x.max(0)).lower(x).as_text()

    def diagnosed(fun: Any) -> jm.Diagnosis:
        return jm.diagnose({"shlo_frontend": text, "ttir": jm.jit(fun).trace(x).as_text()}, x)

    found = diagnosed(lambda x: x.astype(jnp.bfloat16).max(0).astype(jnp.float32))
    assert (found.verdict, found.op) == ("less precise", "ttir.typecast")
    wrong = diagnosed(lambda x: x.astype(jnp.bfloat16).min(0).astype(jnp.float32))
    assert (wrong.verdict, wrong.op) == ("wrong", "ttir.min")
