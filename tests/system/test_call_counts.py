"""What programs cost before they run, counted in calls that Python makes: no times, so no load changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.oracles import calls_made, same_bits
from tests.generators.programs.hand_written import LLAMA, MLP, Program

MESH = AbstractMesh((2, 4), ("y", "x"))
SPEC = P("y", "x")
X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def straight(y: Any, count: int) -> Any:
    for _ in range(count // 2):
        y = jnp.tanh(y) * y
    return y


def reshaped(y: Any, count: int) -> Any:
    """No reshape gives back the shape of the first value, so each looks for it through all before."""
    for i in range(count):
        y = y.reshape([(4,), (1, 4)][i % 2])
    return y.reshape(2, 2)


def cancelled(y: Any, count: int) -> Any:
    for _ in range(count // 3):
        y = jnp.tanh(jm.full_to_shard(jm.shard_to_full(y, SPEC), SPEC))
    return y


def called(y: Any, count: int) -> Any:
    constant = np.ones((2, 2), np.float32)
    part = jax.jit(lambda c: straight(c + constant, 20))
    for _ in range(count):
        y = part(y)
    return y


def scanned(y: Any, count: int) -> Any:
    return jax.lax.scan(lambda c, _: (straight(c, count), None), y, None, length=2)[0]


def between(local: Callable[[Any, int], Any], count: int) -> Callable[[Any], Any]:
    return lambda x: jm.shard_to_full(local(jm.full_to_shard(x, SPEC), count), SPEC)


@pytest.mark.parametrize("local", [straight, reshaped, cancelled, called, scanned], ids=lambda f: f.__name__)
def test_the_pass_is_linear(local: Callable[[Any, int], Any]) -> None:
    def calls(count: int) -> int:
        traced = jm.jit(between(local, count), mesh=MESH).trace(X)
        traced.lower()
        return calls_made(lambda: traced.lower().plan)

    assert calls(960) < 8 * 1.1 * calls(120)


def test_plans_of_many_results_are_linear() -> None:
    def calls(count: int) -> int:
        f = jm.jit(lambda x: [jm.full_to_shard(x + i, SPEC) for i in range(count)], mesh=MESH)
        traced = f.trace(X)
        return calls_made(lambda: traced.lower().plan)

    assert calls(320) < 8 * 1.1 * calls(40)


def test_an_equation_costs_the_pass_few_calls() -> None:
    traced = jm.jit(between(straight, 2_000), mesh=MESH).trace(X)
    traced.lower()
    assert calls_made(traced.lower) < 60 * 2_000


def test_bodies_that_calls_share_stay_shared() -> None:
    """Also those whose NumPy constants the program has its own copies of."""
    traced = jm.jit(between(called, 5), mesh=MESH).trace(X)
    bodies = [e.params["jaxpr"] for e in traced.jaxpr.eqns if e.primitive.name in ("jit", "pjit")]
    assert len(bodies) == 5
    assert len(set(map(id, bodies))) == 1


@pytest.mark.parametrize("program", [MLP, LLAMA], ids=lambda p: p.name)
def test_no_cost_depends_on_the_mesh(program: Program) -> None:
    """Tracing, lowering and every text, from 8 to 65,536 devices."""
    shapes = [(256, 256), (256, 256), (256, 256)]
    if program is LLAMA:
        norm, into = (8,), (8, 1024)
        shapes = [(256, 4, 8), norm, (8, 1024), (8, 512), (8, 512), (1024, 8), norm, into, into, (1024, 8)]
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]

    def work(sides: tuple[int, int]) -> None:
        traced = jm.jit(program.jaxmesh, mesh=AbstractMesh(sides, ("y", "x"))).trace(*args)
        lowered = traced.lower()
        for text in (traced.as_text(), *map(lowered.as_text, ("ttnn", "python", "cpp"))):
            assert text

    def calls(sides: tuple[int, int]) -> int:
        work(sides)
        return calls_made(lambda: work(sides))

    few = calls((2, 4))
    assert calls((64, 64)) < 1.02 * few
    assert calls((256, 256)) < 1.02 * few


# --- calls -----------------------------------------------------------------------------------------------------------


def placed(program: Program, mesh: Any) -> list[Any]:
    return [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(program.args(), program.in_specs, strict=True)]


@pytest.mark.parametrize("way", ["jit", "compiled"])
def test_a_call_takes_few_steps(way: str) -> None:
    """Those of the hand-written program are JAX's one; the rest is what locks and checks cost."""
    with jm.check_replication(False):
        args = placed(MLP, mesh := jm.make_mesh((2, 4)))
        f = jm.jit(MLP.jaxmesh, mesh=mesh)
        run = f if way == "jit" else f.lower(*args).compile()
        for _ in range(3):
            jax.block_until_ready(run(*args))
        assert calls_made(lambda: run(*args)) <= 45
        jax.block_until_ready(run(*args))


def test_a_compiled_program_checks_what_it_takes_as_it_is() -> None:
    """After a call that went the short way, each kind of other argument."""
    mesh = jm.make_mesh((2, 4))
    args = MLP.args()
    run = jm.jit(MLP.jaxmesh, mesh=mesh).lower(*args).compile()
    want = np.asarray(run(*args))
    assert same_bits(run(*placed(MLP, mesh)), want)
    assert same_bits(run(*[jax.device_put(a, jax.devices()[3]) for a in args]), want)
    assert same_bits(run(*[jax.device_put(a, NamedSharding(mesh, P())) for a in args]), want)
    assert same_bits(run(*map(np.asarray, args)), want)
    with pytest.raises(jm.ArgumentTypeError, match="float16"):
        run(args[0].astype(jnp.float16), *args[1:])
    with pytest.raises(jm.ArgumentTypeError, match="traced as"):
        run(args[0][:2], *args[1:])
    with pytest.raises(jm.ArgumentTypeError, match="tree"):
        run(*args[:2])
    with pytest.raises(jm.ArgumentTypeError, match="tree"):
        run(*args[:2], w2=args[2])
    gone = jnp.copy(args[0])
    gone.delete()
    with pytest.raises(jm.DeletedError):
        run(gone, *args[1:])


def test_a_compiled_program_takes_tensors_as_they_are() -> None:
    mesh = jm.make_mesh((2, 4))
    x = jnp.arange(32.0).reshape(4, 8)
    tensor = jm.jit(lambda x: jm.full_to_shard(x, SPEC), mesh=mesh)(x)
    run = (
        jm.jit(lambda t, u: jm.shard_to_full(t + u["other"], SPEC), mesh=mesh)
        .lower(tensor, {"other": tensor})
        .compile()
    )
    assert same_bits(run(tensor, {"other": tensor}), 2 * x)
    with pytest.raises(jm.ArgumentTypeError):
        run(x, {"other": tensor})
    tensor.deallocate()
    with pytest.raises(jm.ResidencyError):
        run(tensor, {"other": tensor})
