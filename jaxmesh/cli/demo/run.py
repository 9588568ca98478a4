"""The steps of the demo: trace, lower, compile, run, differentiate, compare, and list the shards of every device."""

# The demo is written as users write, and JAX annotates a part of its functions.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
from jax.sharding import Mesh

import jaxmesh as jm
from jaxmesh.analysis.account import Total
from jaxmesh.cli.demo import model
from jaxmesh.cli.demo.checks import Check, Holding, compare, compare_gradients, list_holdings

Say = Callable[[str], None]
BOTH = (0, 1)
"""The differentiated arguments: weights and input, not the target."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The texts of the forward program at each level, what it moves, the comparisons, and each device's shards."""

    mesh: Mesh
    dims: model.Dims
    ttir: str
    ttnn: str
    hlo: str
    moves: tuple[Total, ...]
    checks: tuple[Check, ...]
    holdings: tuple[Holding, ...]

    @property
    def passed(self) -> bool:
        """Returns True if every comparison is within its tolerance and every shard equals its slice."""
        return all(c.passed for c in self.checks) and all(h.exact for h in self.holdings)


def run(mesh: Mesh, dims: model.Dims, say: Say) -> DemoOutcome:
    """Runs the demo on a mesh with devices, the last axis tensor parallel; calls `say` at the start of each step."""
    # Run the unsharded model on the same platform: the arithmetic of another would be compared, too.
    with jax.default_device(mesh.devices.flat[0]):
        outcome = _forward(mesh, dims, say)
        return replace(outcome, checks=(*outcome.checks, *_gradients(mesh, dims, say)))


def _forward(mesh: Mesh, dims: model.Dims, say: Say) -> DemoOutcome:
    weights, x, _ = model.make_inputs(dims)
    say("run the unsharded model")
    expected = _jit(model.unsharded_model(dims).forward, weights, x)
    say("trace the sharded model to TTIR")
    traced = jm.jit(model.sharded_model(dims, mesh).forward, mesh=mesh).trace(weights, x)
    say("lower it to TTNN")
    lowered = traced.lower()
    say("compile it")
    compiled = lowered.compile()
    say("run it on the mesh")
    output = compiled(weights, x)
    say("run it on the reference executor")
    reference = lowered.reference(weights, x)
    say("look at what each device holds")
    specs = {"x": model.input_spec(mesh), **model.weight_specs(mesh)}
    holdings = list_holdings({"x": x, **weights}, specs, mesh)
    checks = (
        compare("forward, compiled on the mesh: output", output, expected),
        compare("forward, reference executor: output", reference, expected),
    )
    # The demo takes meshes of any rank.
    ttnn = lowered.as_text(strict=False)
    texts, moves = (traced.as_text(), ttnn, compiled.as_text()), tuple(lowered.explain().totals())
    return DemoOutcome(mesh, dims, *texts, moves, checks, tuple(holdings))


def _jit(fun: Callable[..., object], *args: object) -> Any:
    return cast(object, jax.jit(fun)(*args))


def _gradients(mesh: Mesh, dims: model.Dims, say: Say) -> list[Check]:
    plain, sharded = model.unsharded_model(dims), model.sharded_model(dims, mesh)
    inputs = model.make_inputs(dims)
    say("differentiate the unsharded model")
    expected = _jit(jax.value_and_grad(plain.loss, BOTH), *inputs)
    say("differentiate the compiled program: jax.grad(jm.jit(loss))")
    outside = jax.value_and_grad(jm.jit(sharded.loss, mesh=mesh), BOTH)(*inputs)
    say("compile the differentiated program: jm.jit(jax.grad(loss))")
    program = jm.jit(jax.value_and_grad(sharded.loss, BOTH), mesh=mesh)
    inside = program(*inputs)
    say("run the differentiated program on the reference executor")
    reference = program.lower(*inputs).reference(*inputs)
    return [
        *compare_gradients("jax.grad(jm.jit(loss))", outside, expected),
        *compare_gradients("jm.jit(jax.grad(loss))", inside, expected),
        *compare_gradients("jm.jit(jax.grad(loss)), reference executor", reference, expected),
    ]
