"""`jm.jit` beside `jax.jit`: programs within programs and transformations, how often a function is called, remat."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.as_jax_jit import (
    AUTO,
    EXPLICIT,
    W1,
    W2,
    X,
    anew,
    auto,
    explicit,
    filtering,
    outcome,
    put,
    same_results,
)

DEPTH = 8
AGAINST: Any = jax.jit, jm.jit


@pytest.fixture(params=[False, True], ids=["", "checked"])
def checked(request: pytest.FixtureRequest) -> Generator[None]:
    """Runs a test without and with comparisons of copies, which take another way through `jm.jit`."""
    with jm.check_replication(request.param):
        yield


def collectives(text: str) -> dict[str, int]:
    """Returns how many of each collective a text has."""
    return dict(Counter(re.findall(r'"ttir\.(all_\w+|mesh_partition|reduce_scatter|collective\w+)"', text)))


# --- how often a function is called ----------------------------------------------------------------------------------


class Counted:
    """A function, made of another, that counts its calls; it may raise."""

    def __init__(self, f: Callable[..., Any], raises: bool = False) -> None:
        self.f, self.raises, self.calls = f, raises, 0
        self.__name__ = f.__name__

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.raises:
            raise KeyError("mine")
        return self.f(*args)


def layer(x: Any) -> Any:
    return jnp.tanh(x) * 2


def by_hand(x: Any) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))


def mapped(x: Any) -> Any:
    return jax.shard_map(layer, mesh=AUTO, in_specs=P("y"), out_specs=P("y"))(x)


WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": lambda f: lambda x: f(x),
    "jax.jit": lambda f: jax.jit(lambda x: f(x)),
    "grad": lambda f: lambda x: jax.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f: jax.vmap(lambda x: f(x)),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0],
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, f, f, x),
    "checkpoint": lambda f: jax.checkpoint(lambda x: f(x)),
}


def nest(f: Callable[..., Any], jit: Any, wrapper: str, depth: int, **options: Any) -> Any:
    """Returns a function within programs, each made of a transformation of the program within."""
    program = jit(f, **options)
    for _ in range(depth - 1):
        program = jit(WRAPPERS[wrapper](program), **options)
    return program


def argument(wrapper: str, depth: int) -> Any:
    """Returns an argument with a dim for each `vmap`."""
    return np.ones((*[1] * (depth - 1) * (wrapper == "vmap"), 4, 8), np.float32)


@pytest.mark.slow(but_one_in=3)
@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_function_eight_programs_deep_is_called_as_often_as_by_jax(wrapper: str, raises: bool) -> None:
    depth = 4 if wrapper in ("grad", "scan", "cond") else DEPTH
    calls, ends = [], []
    for jit in AGAINST:
        counted = Counted(layer, raises)
        ends.append(outcome(nest(counted, jit, wrapper, depth), argument(wrapper, depth)))
        calls.append(counted.calls)
    assert calls[0] == calls[1] == 1
    assert type(ends[0].error) is type(ends[1].error) is (KeyError if raises else type(None))
    if not raises:
        same_results(ends[1].result, ends[0].result)


@pytest.mark.slow(but_one_in=2)
@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("options", [{}, {"in_shardings": auto("y")}], ids=["", "in_shardings"])
@pytest.mark.parametrize("x", [X, put(X, auto("y")), put(X, explicit("y"))], ids=["host", "auto", "explicit"])
def test_a_function_is_called_once(options: dict[str, Any], x: Any) -> None:
    if x is not X and x.sharding.mesh is EXPLICIT:
        options = {name: explicit("y") for name in options}
    counted = Counted(layer)
    program = jm.jit(counted, **options)
    for _ in range(3):
        program(x)
        program(x + 1)
    assert counted.calls <= 2
    # The first call is of a host array, the second of an array on a device.
    first = Counted(layer)
    jm.jit(first, **options)(x)
    assert first.calls == 1


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("stage", ["__call__", "trace", "lower", "eval_shape"])
def test_each_stage_calls_a_function_once(stage: str) -> None:
    counted, raising = Counted(layer), Counted(layer, True)
    getattr(jm.jit(counted), stage)(X)
    assert counted.calls == 1
    with pytest.raises(KeyError, match="mine"):
        getattr(jm.jit(raising), stage)(X)
    assert raising.calls == 1


def test_the_stages_after_a_trace_call_nothing() -> None:
    counted = Counted(layer)
    traced = jm.jit(counted, mesh=AUTO, in_shardings=P("y")).trace(X)
    lowered = traced.lower()
    compiled = lowered.compile()
    assert (len(traced.as_text()) > 0, len(lowered.as_text()) > 0, compiled(X).shape) == (True, True, X.shape)
    assert counted.calls == 1


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("depth", [1, 2, DEPTH])
def test_a_program_that_splits_by_hand_is_called_twice_at_most(depth: int, raises: bool) -> None:
    counted = Counted(by_hand, raises)
    made = outcome(nest(counted, jm.jit, "jit", depth, mesh=AUTO), X)
    assert 1 <= counted.calls <= (1 if raises else 2)
    if raises:
        assert type(made.error) is KeyError
    else:
        np.testing.assert_array_equal(made.result, X * 2)


def test_a_mapped_body_is_called_as_often_as_by_jax() -> None:
    calls = []
    for jit in AGAINST:
        counted = Counted(layer)

        def f(x: Any, counted: Any = counted) -> Any:
            return jax.shard_map(counted, mesh=AUTO, in_specs=P("y"), out_specs=P("y"))(x)

        nest(f, jit, "jit", DEPTH)(X)
        calls.append(counted.calls)
    assert calls[0] == calls[1]


def calls_of_frames(run: Callable[[], Any]) -> int:
    """Returns how many functions Python calls."""
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("f", [layer, mapped, by_hand])
def test_the_cost_of_a_trace_grows_linearly_with_depth(f: Callable[..., Any]) -> None:
    def cost(depth: int) -> int:
        program = nest(anew(f), jm.jit, "jit", depth, mesh=AUTO)
        return calls_of_frames(lambda: program.trace(X))

    cost(2)
    two, four, eight = cost(2), cost(4), cost(8)
    assert eight - four <= 2.6 * max(four - two, 1)


def test_errors_of_a_function_eight_programs_deep_have_the_users_frames() -> None:
    with filtering("remove_frames"):
        theirs, mine = (outcome(nest(Counted(layer, True), jit, "jit", DEPTH), X) for jit in AGAINST)
    assert mine.frames == theirs.frames
    assert mine.chain == theirs.chain


# --- what a program within a program means ---------------------------------------------------------------------------


def product(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def inner_with_shardings(jit: Any) -> Callable[..., Any]:
    options = {"in_shardings": (auto("y", "x"), auto("x")), "out_shardings": auto("y")}
    return jit(product, **options)


OUTER: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "alone": lambda g: lambda x, w: g(x, w) * 2,
    "twice": lambda g: lambda x, w: g(g(x, w) @ w.T, w),
    "grad": lambda g: lambda x, w: jax.grad(lambda x, w: (g(x, w) ** 2).sum(), argnums=(0, 1))(x, w),
    "vmap": lambda g: lambda x, w: jax.vmap(g, in_axes=(0, None))(jnp.stack([x, x + 1]), w),
    "scan": lambda g: lambda x, w: lax.scan(lambda c, _: (g(c, w) @ w.T, c.sum()), x, None, 3),
    "checkpoint": lambda g: lambda x, w: jax.grad(lambda x: jax.checkpoint(g)(x, w).sum())(x),
    "jvp": lambda g: lambda x, w: jax.jvp(lambda x: g(x, w), (x,), (x * 2,)),
    "while": lambda g: (
        lambda x, w: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, g(c[1], w) @ w.T), (0, x))[1]
    ),
}


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("name", OUTER)
def test_a_program_within_a_program_keeps_its_shardings(name: str) -> None:
    options = {"in_shardings": (auto("y", "x"), auto("x"))}
    theirs, mine, within = (
        outer(OUTER[name](inner_with_shardings(inner)), **options)
        for outer, inner in ((jax.jit, jax.jit), (jm.jit, jm.jit), (jm.jit, jax.jit))
    )
    same_results(mine(X, W1), theirs(X, W1))
    text = mine.trace(X, W1).as_text()
    assert collectives(text) == collectives(within.trace(X, W1).as_text())
    assert collectives(text).get("all_reduce", 0) > 0


def test_a_program_within_jax_jit_keeps_its_shardings() -> None:
    theirs, mine = (jax.jit(OUTER["alone"](inner_with_shardings(jit))) for jit in AGAINST)
    same_results(mine(X, W1), theirs(X, W1))
    hlo = [f.lower(X, W1).compile().as_text().count("all-reduce(") for f in (theirs, mine)]
    assert hlo[0] == hlo[1] > 0


def test_the_text_of_a_program_within_a_program() -> None:
    """The product is that of shards, 2x2 by 2x16, and one all_reduce adds the parts."""
    outer = jm.jit(OUTER["alone"](inner_with_shardings(jm.jit)), in_shardings=(auto("y", "x"), auto("x")))
    text = outer.trace(X, W1).as_text()
    assert "(tensor<2x2xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>" in text
    assert collectives(text) == {"all_reduce": 1}
    assert text.count("full_to_shard>") == 2


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jit": lambda f: jax.jit(f)(X, W1),
    "grad": lambda f: jax.grad(lambda *a: f(*a).sum(), argnums=(0, 1))(X, W1),
    "value_and_grad": lambda f: jax.value_and_grad(lambda *a: f(*a).sum())(X, W1),
    "vmap": lambda f: jax.vmap(f, in_axes=(0, None))(np.stack([X, X]), W1),
    "scan": lambda f: lax.scan(lambda c, _: (f(c, W1) @ W1.T, None), X, None, 2)[0],
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x, W1).sum())(X),
    "linearize": lambda f: jax.linearize(lambda x: f(x, W1), X)[1](X),
    "hessian": lambda f: jax.hessian(lambda x: f(x, W1[:, :1]).sum())(X[:1, :]),
}


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("options", [{}, {"in_shardings": (None, auto("x")), "out_shardings": auto(None, "y")}])
def test_transformations_of_a_program(name: str, options: dict[str, Any]) -> None:
    if name == "hessian":
        options = {}
    theirs, mine = (TRANSFORMS[name](jit(anew(product), **options)) for jit in AGAINST)
    same_results(mine, theirs)


def test_jaxprs_show_a_program_as_one_call() -> None:
    theirs, mine = (jax.make_jaxpr(jit(anew(product)))(X, W1).eqns for jit in AGAINST)
    assert [e.primitive for e in mine] == [e.primitive for e in theirs]
    assert [e.params["name"] for e in mine] == [e.params["name"] for e in theirs]


@pytest.mark.parametrize("spec", [P("y", "x"), P(None, "x")], ids=str)
def test_nesting_on_explicit_axes(spec: P) -> None:
    x = put(X, NamedSharding(EXPLICIT, spec))

    def body(x: Any) -> Any:
        assert str(jax.typeof(x).sharding.spec) == str(spec)
        return jnp.sin(x) * 2

    results = [nest(anew(body), jit, "jit", 3)(x) for jit in AGAINST]
    same_results(results[1], results[0])


def test_a_body_of_shard_map_calls_programs() -> None:
    def f(jit: Any, x: Any) -> Any:
        inner = jit(lambda v: lax.psum(jnp.sin(v), "x"))
        return jax.shard_map(inner, mesh=AUTO, in_specs=P("y", "x"), out_specs=P("y"))(x)

    theirs, mine = (jit(functools.partial(f, jit))(X) for jit in AGAINST)
    same_results(mine, theirs)


# --- optimization_barrier and remat ----------------------------------------------------------------------------------


def block(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


REMAT: dict[str, Callable[..., Any]] = {
    "default": jax.checkpoint,
    "prevent_cse": functools.partial(jax.checkpoint, prevent_cse=False),
    "dots": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
    "nothing": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable),
    "everything": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable),
}
SPECS = auto("y"), auto(None, "x"), auto("x")


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *args: f(*args).sum(), argnums=(0, 1, 2))


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("name", REMAT)
def test_remat_needs_the_collectives_of_the_plain_program(name: str) -> None:
    plain = jm.jit(gradients(block), in_shardings=SPECS)
    remat = jm.jit(gradients(REMAT[name](block)), in_shardings=SPECS)
    counted = collectives(remat.trace(X, W1, W2).as_text())
    assert counted == collectives(plain.trace(X, W1, W2).as_text()) == {"all_reduce": 3}
    same_results(remat(X, W1, W2), jax.jit(gradients(REMAT[name](block)), in_shardings=SPECS)(X, W1, W2))


@pytest.mark.parametrize("name", ["default", "dots"])
def test_remat_in_a_scan(name: str) -> None:
    def loss(wrap: Callable[..., Any], x: Any, ws: Any) -> Any:
        return lax.scan(lambda c, w: (wrap(block)(c, *w), None), x, ws)[0].sum()

    ws = np.stack([W1] * 3), np.stack([W2] * 3)
    options = {"in_shardings": (auto("y"), (auto(None, None, "x"), auto(None, "x")))}
    plain, remat = (
        jm.jit(jax.grad(functools.partial(loss, wrap), argnums=(0, 1)), **options)
        for wrap in (lambda f: f, REMAT[name])
    )
    counted = collectives(remat.trace(X, ws).as_text())
    assert counted == collectives(plain.trace(X, ws).as_text())
    assert set(counted) == {"all_reduce"}


def test_a_barrier_passes_shardings_through() -> None:
    def f(x: Any, w: Any) -> Any:
        x, w = lax.optimization_barrier((x * 2, w))
        return lax.optimization_barrier(x @ w)

    theirs, mine = (jit(f, in_shardings=(auto("y"), auto(None, "x"))) for jit in AGAINST)
    text = mine.trace(X, W1).as_text()
    assert collectives(text) == {}
    assert "(tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>" in text
    same_results(mine(X, W1), theirs(X, W1))
