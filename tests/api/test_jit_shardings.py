"""`jm.jit` of plain programs with shardings: values, gradients, texts, communication, explanations, errors."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors

MESH = jm.make_mesh((2, 4), ("y", "x"))
SMALL = jm.make_mesh((1, 2), ("y", "x"))
LINE = jm.make_mesh((8,), ("x",))
CUBE = jm.make_mesh((2, 2, 2), ("z", "y", "x"))
wsc: Any = lax.with_sharding_constraint


def on(*spec: Any, mesh: Any = MESH) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A program, its arguments, its shardings.

    `text` is whether TTIR has a form of it. `like_jax` is whether its results have JAX's shardings.
    """

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    in_shardings: Any = None
    out_shardings: Any = None
    mesh: Any = field(default=MESH)
    text: bool = True
    gradients: bool = True

    def options(self) -> dict[str, Any]:
        return {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}

    def jax_options(self) -> dict[str, Any]:
        def named(s: Any) -> Any:
            return NamedSharding(self.mesh, s) if isinstance(s, P) else s

        return {
            k: jax.tree.map(named, v, is_leaf=lambda s: s is None or isinstance(s, P))
            for k, v in self.options().items()
        }


# --- the programs ----------------------------------------------------------------------------------------------------


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    q, k, v = ((x @ w).reshape(*x.shape[:2], 4, 4) for w in (wq, wk, wv))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(x.shape) @ wo


def llama_block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, gate: Any, up: Any, down: Any) -> Any:
    def norm(x: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    x = x + attention(norm(x), wq, wk, wv, wo)
    y = norm(x)
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def train_step(x: Any, w1: Any, w2: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((jax.nn.gelu(x @ weights[0]) @ weights[1]) ** 2)

    value, grads = jax.value_and_grad(loss)((w1, w2))
    return value, [w - 0.1 * g for w, g in zip((w1, w2), grads, strict=True)]


def moe(x: Any, router: Any, experts: Any) -> Any:
    return jnp.einsum("te,teo->to", jax.nn.softmax(x @ router), jnp.einsum("td,edo->teo", x, experts))


def layer_norm(x: Any, g: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g


def scanned(x: Any, ws: Any) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, ws)


def convolution(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME")


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def embedded(table: Any, ids: Any) -> Any:
    return table[lax.stop_gradient(ids).astype(jnp.int32)]


def cross_entropy(logits: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.arange(8)[:, None] % 4, 1).mean()


@jax.custom_vjp
def straight_through(x: Any) -> Any:
    return jnp.round(x)


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g * 3,))


def with_shard_map(x: Any) -> Any:
    body = jax.shard_map(lambda a: lax.psum(a, "x") * 2, mesh=MESH, in_specs=P("y", "x"), out_specs=P("y"))
    return wsc(body(x * 2) + 1, on("x"))


def partly_manual(x: Any) -> Any:
    body = jax.shard_map(
        lambda a: lax.psum(a, "x") * 2, mesh=MESH, in_specs=P(None, "x"), out_specs=P(), axis_names={"x"}
    )
    return body(x * 2) + 1


def by_hand(x: Any, w: Any) -> Any:
    product = lax.psum(jm.full_to_shard(x, P("y", "x")) @ jm.full_to_shard(w, P("x")), "x")
    return jm.shard_to_full(product, P("y"))


def nested(x: Any) -> Any:
    return jm.jit(lambda y: y * 2, mesh=MESH, in_shardings=P("x"))(x) + 1


X, W, V = normal(8, 16), normal(16, 32), normal(32, 16)
SQUARE, BATCH, IMAGES = normal(16, 16), normal(4, 8, 16), normal(4, 8, 8, 8)
FOUR = (SQUARE,) * 4
HEADS = (P(None, "x"),) * 3

CASES = [
    Case("tensor and data parallel mlp", mlp, (X, W, V), (P("y"), P(None, "x"), P("x"))),
    Case("weights split over both axes", mlp, (X, W, V), (P("y"), P("y", "x"), P("x", "y"))),
    Case("mlp on 1x2", mlp, (X, W, V), (P("y"), P(None, "x"), P("x")), mesh=SMALL),
    Case("mlp on 8", mlp, (X, W, V), (P("x"), P(), P()), mesh=LINE),
    Case("mlp on 2x2x2", mlp, (X, W, V), (P("z"), P("y", "x"), P("x", "y")), mesh=CUBE),
    Case("two axes on a dim of 2x2x2", mlp, (X, W, V), (P(("x", "z")), P(None, "y"), P("y")), mesh=CUBE),
    Case("attention, heads split", attention, (BATCH, *FOUR), (P("y"), *HEADS, P("x"))),
    Case("attention, sequence split", attention, (BATCH, *FOUR), (P("y", "x"), *(P(),) * 4)),
    Case("attention on 8", attention, (BATCH, *FOUR), (P(None, "x"), *(P(),) * 4), mesh=LINE),
    Case("llama block", llama_block, (BATCH, *FOUR, SQUARE, SQUARE, SQUARE),
         (P("y"), *HEADS, P("x"), P(None, "x"), P(None, "x"), P("x"))),
    Case("llama block on 2x2x2", llama_block, (BATCH, *FOUR, SQUARE, SQUARE, SQUARE),
         (P("z", "y"), *HEADS, P("x"), P(None, "x"), P(None, "x"), P("x")), mesh=CUBE),
    Case("train step", train_step, (X, W, V), (P("y"), P(None, "x"), P("x")), gradients=False),
    Case("train step, fully sharded", train_step, (X, W, V), (P(("y", "x")), P("x"), P("x")), gradients=False),
    Case("mixture of experts", moe, (X, normal(16, 8), normal(8, 16, 16)), (P("y"), P(), P("x"))),
    Case("layer norm over a split dim", layer_norm, (X, normal(16)), (P("y", "x"), P("x"))),
    Case("softmax over a split dim", jax.nn.softmax, (X,), P("y", "x")),
    Case("logsumexp over two axes", lambda x: jax.nn.logsumexp(x, 0), (X,), P(("y", "x"))),
    Case("cross entropy, vocabulary split", cross_entropy, (X,), P("y", "x")),
    Case("embedding, vocabulary split", embedded, (normal(16, 8), np.float32([1, 3, 5, 15])), (P("x"), P("y"))),
    Case("embedding, vocabulary split over 8", embedded, (normal(16, 8), np.float32([1, 3, 5, 15])), (P("x"), P()),
         mesh=LINE),
    Case("scan", scanned, (X, normal(3, 16, 16)), (P("y"), P(None, None, "x"))),
    Case("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x), (X,), P("y", "x")),
    Case("while_loop", lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, jnp.abs(x)), (X,),
         P("y"), text=False, gradients=False),
    Case("cond", lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x), (X,), P("y"), text=False),
    Case("switch", lambda x: lax.switch(1, [jnp.sin, jnp.cos], x), (X,), P("y")),
    Case("remat", lambda x, w: jax.checkpoint(lambda x: jnp.sin(x @ w) @ w)(x), (X, SQUARE), (P("y"), P(None, "x"))),
    Case("custom_vjp", lambda x: straight_through(x) * x, (X,), P("y", "x")),
    Case("stop_gradient", lambda x: lax.stop_gradient(x) * x, (X,), P("y", "x")),
    Case("relu at ties", lambda x: jax.nn.relu(x * 0), (X,), P("y")),
    Case("maximum over a split dim", lambda x: x.max(0), (X,), P("y", "x")),
    Case("product over a split dim", lambda x: x.prod(0), (X,), P(("y", "x"))),
    Case("and, or over a split dim", lambda x: ((x > 0).any(0), (x > -9).all(0)), (X,), P("y", "x"), gradients=False),
    Case("argmax over a split dim", lambda x: jnp.argmax(x, 0), (X,), P("y", "x"), gradients=False),
    Case("convolution, batch and features", convolution, (IMAGES, normal(8, 8, 3, 3)), (P("y"), P("x"))),
    Case("convolution, split window dims", convolution, (IMAGES, normal(8, 8, 3, 3)), (P(None, None, "y", "x"), P())),
    Case("max-pooling, split window dims", pooled, (IMAGES,), P(None, "y", "x")),
    Case("roll", lambda x: jnp.roll(x, 3, 0), (X,), P("y", "x")),
    Case("reverse", lambda x: x[::-1], (X,), P("y", "x")),
    Case("pad", lambda x: jnp.pad(x, ((1, 3), (0, 0))), (X,), P("y", "x")),
    Case("concatenate", lambda x: jnp.concatenate([x, x * 2]), (X,), P("y", "x")),
    Case("a slice that cuts", lambda x: x[1:7, ::2], (X,), P("y", "x")),
    Case("a slice from other places of each shard", lambda x: x[1:15:2, 1:5], (SQUARE,), P(("y", "x"))),
    Case("a slice that some shards have not", lambda x: x[:12, 2:10], (SQUARE,), P("y", "x"), P("y", "x")),
    Case("a slice over 8", lambda x: x[4:12:2] * 2, (normal(64, 16)[:16],), P("x"), mesh=LINE),
    Case("uneven result", lambda x: jnp.concatenate([x, x[:1]]) * 2, (X,), P("y")),
    Case("uneven reshape", lambda x: x.reshape(4, 32)[:3] * 2, (X,), P("x")),
    Case("sort", lambda x: jnp.sort(x, 0), (X,), P("y", "x")),
    Case("top_k", lambda x: lax.top_k(x, 3)[0], (X,), P("y", "x")),
    Case("cumsum", lambda x: jnp.cumsum(x, 0), (X,), P("y", "x")),
    Case("scatter", lambda x: x.at[np.array([1, 3, 6])].add(1.0), (X,), P("y", "x")),
    Case("segment_sum", lambda x: jax.ops.segment_sum(x, np.array([0, 1, 1, 2, 3, 3, 3, 0]), 4), (X,), P("x", "y")),
    Case("cache update", lambda c, x: lax.dynamic_update_slice_in_dim(c, x, 3, 0), (X, normal(2, 16)),
         (P("y", "x"), P(None, "x"))),
    Case("random", lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (X,), P("y", "x")),
    Case("constraints in between", lambda x, w: wsc(wsc(x @ w, on("y", "x")) * 2, on("x")), (X, SQUARE)),
    Case("reduce_scatter", lambda x, w: wsc(x @ w, on("y", "x")), (X, SQUARE), (P("y", "x"), P("x"))),
    Case("device_put", lambda x: jax.device_put(x * 2, on("y", "x")) + 1, (X,)),
    Case("out_shardings alone", lambda x: x * 2, (X,), None, P("x", "y")),
    Case("reshard at the end", lambda x: x.T, (X,), P("y"), P(None, ("x", "y"))),
    Case("trees and None", lambda d, e: {"a": d["a"] * 2, "b": (d["b"][0] @ e,)}, ({"a": X, "b": (X,)}, SQUARE),
         ({"a": P("y", "x"), "b": (None,)}, P("x")), {"a": P("x"), "b": None}),
    Case("a prefix", lambda d, e: jax.tree.map(jnp.sin, (d, e)), ({"a": X, "b": X}, X), P("y", "x"), P("x")),
    Case("shard_map inside", with_shard_map, (X,), P("y", "x")),
    Case("shard_map over one axis", partly_manual, (X,), P("y", "x")),
    Case("jax.jit inside", lambda x: jax.jit(jnp.sin, in_shardings=on("x"))(x) + 1, (X,), P("y")),
    Case("jax.jit with shardings inside jm.jit", jax.jit(mlp, in_shardings=(on("y"), on(None, "x"), on("x")),
         out_shardings=on("y")), (X, W, V)),
    Case("jm.jit inside", nested, (X,), P("y")),
    Case("an array closed over", lambda x: x @ jnp.asarray(SQUARE), (X,), P("y", "x")),
    Case("bfloat16", lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).sum(0), (X, SQUARE),
         (P("y"), P(None, "x")), gradients=False),
]  # fmt: skip


def cases(keep: Callable[[Case], bool] = lambda c: True) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name.replace(" ", "_")) for c in CASES if keep(c)])


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        yield


def jitted(case: Case) -> Any:
    return jm.jit(case.fun, mesh=case.mesh, **case.options())


def alike(got: Any, want: Any) -> None:
    rows = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for a, b in rows:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5 * (1 + np.max(np.abs(y), initial=0)))


@cases()
def test_values_and_shardings_of_results(case: Case) -> None:
    got = jitted(case)(*case.args)
    alike(got, jax.jit(case.fun)(*case.args))
    for y, z in zip(
        jax.tree.leaves(got), jax.tree.leaves(jax.jit(case.fun, **case.jax_options())(*case.args)), strict=True
    ):
        assert y.sharding.is_equivalent_to(z.sharding, y.ndim), (y.sharding, z.sharding)


@cases(lambda c: c.gradients)
def test_gradients(case: Case) -> None:
    def loss(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: sum(jnp.sum(jnp.sin(0.1 * y)) for y in jax.tree.leaves(fun(*args)))

    every = tuple(range(len(case.args)))
    alike(jax.grad(loss(jitted(case)), every)(*case.args), jax.grad(loss(case.fun), every)(*case.args))


_SHARD = re.compile(r"mesh_shard.*shard_dims = array<i64: ([-0-9, ]+)>, shard_direction = #\w+.\w+<full_to_shard>")


@cases(lambda c: c.text)
def test_the_texts_name_the_shards_that_were_asked_for(case: Case) -> None:
    traced = jitted(case).trace(*case.args)
    text = traced.as_text()
    lowered = traced.lower()
    assert all(lowered.as_text(language) for language in ("ttnn", "python", "cpp"))
    decided = {d.op: d.text for d in traced.decisions if d.kind in ("asked", "propagated")}
    leaves = jax.tree.leaves(case.args)
    asked = jax.tree.leaves(jax.tree.broadcast(case.in_shardings, case.args, is_leaf=_leaf), is_leaf=_leaf)
    assert len([name for name in decided if name.startswith("argument")]) == len(leaves)
    for i, spec in enumerate(asked):
        if spec is not None:
            assert [d for d in traced.decisions if d.op == f"argument {i}" and d.kind == "asked"]
    split = sum(bool(s) and any(s) for s in asked)
    assert len(_SHARD.findall(text)) >= split


def _leaf(x: Any) -> bool:
    return x is None or isinstance(x, P)


# --- communication ---------------------------------------------------------------------------------------------------

_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_CALLED = re.compile(rf" ({'|'.join(_COLLECTIVES)})(?:-start)?\(")


def collectives(text: str) -> Counter[str]:
    return Counter(_CALLED.findall(text))


@cases()
def test_no_collective_where_xla_needs_none(case: Case) -> None:
    theirs = jax.jit(case.fun, **case.jax_options()).lower(*case.args).compile().as_text()
    ours = jitted(case).lower(*case.args).compile().as_text()
    if not collectives(theirs or ""):
        assert not collectives(ours)


def test_a_sum_that_is_scattered_is_a_reduce_scatter() -> None:
    text = (
        jm.jit(lambda x, w: wsc(x @ w, on("y", "x")), mesh=MESH, in_shardings=(P("y", "x"), P("x")))
        .trace(X, SQUARE)
        .as_text()
    )
    assert "ttir.reduce_scatter" in text
    assert "ttir.all_reduce" not in text


def test_tensor_parallelism_takes_one_all_reduce() -> None:
    traced = jm.jit(mlp, mesh=MESH, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(X, W, V)
    assert [d.kind for d in traced.decisions if d.bytes or d.kind.startswith("all_")] == ["all_reduce"]
    assert traced.assumptions == ()


# --- arrays on the mesh, Explicit axes, meshes without devices -------------------------------------------------------


def test_arrays_on_the_mesh_are_presharded() -> None:
    args = [jax.device_put(a, on(*s)) for a, s in zip((X, W, V), (("y",), (None, "x"), ("x",)), strict=True)]
    program = jm.jit(mlp, mesh=MESH)
    text = program.trace(*args).as_text()
    assert text.count("shard_status<presharded>") == 3
    assert text.count("full_to_shard>") == 0
    y = program(*args)
    alike(y, mlp(X, W, V))
    assert y.sharding.is_equivalent_to(on("y"), 2)
    compiled = program.lower(*args).compile()
    alike(compiled(*args), mlp(X, W, V))
    alike(program.trace(*args).reference(*args), mlp(X, W, V))
    # A result goes in again as it is.
    alike(program(*args[:2], jax.device_put(V, on("x"))), y)
    with pytest.raises(jm.JaxmeshError, match="traced with the sharding"):
        compiled(jax.device_put(X, on("x")), *args[1:])


def test_arrays_elsewhere_than_asked_for_are_an_error() -> None:
    with pytest.raises(errors.ArgumentValueError, match="in_shardings asks for"):
        jm.jit(mlp, mesh=MESH, in_shardings=(P("x"), None, None))(jax.device_put(X, on("y")), W, V)


def test_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)

    def program(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.sharding.reshard(jax.nn.relu(x @ w1), P(None, "x"))
        return jnp.einsum("ij,jk->ik", h, w2, out_sharding=P("y"))

    specs = P("y"), P(None, "x"), P("x")
    args = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip((X, W, V), specs, strict=True)]
    with jax.set_mesh(mesh):
        got, want = jm.jit(program)(*args), jax.jit(program)(*args)
        alike(got, want)
        assert jax.typeof(got).sharding.spec == jax.typeof(want).sharding.spec
        grads = [
            jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), (0, 1, 2))(*args) for f in (jm.jit(program), jax.jit(program))
        ]
        alike(*grads)
        assert [g.sharding.spec for g in grads[0]] == [g.sharding.spec for g in grads[1]]
        assert jm.jit(program).trace(*args).as_text().count("presharded") == 3


def test_the_mesh_of_set_mesh() -> None:
    with jax.set_mesh(MESH):
        y = jm.jit(lambda x: wsc(x * 2, P("y")), in_shardings=P("x"))(X)
    alike(y, X * 2)
    assert y.sharding.is_equivalent_to(on("y"), 2)


def test_a_mesh_without_devices() -> None:
    mesh = AbstractMesh((64, 64), ("y", "x"))
    struct = jax.ShapeDtypeStruct
    args = struct((128, 256), np.float32), struct((256, 512), np.float32), struct((512, 256), np.float32)
    text = jm.jit(mlp, mesh=mesh, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(*args).as_text()
    assert "tensor<2x256xf32>" in text


def test_vmap_jit_hessian_from_outside() -> None:
    program = jm.jit(lambda x, w: jax.nn.softmax(x @ w), mesh=MESH, in_shardings=(P("y"), P(None, "x")))
    w = normal(16, 8)

    def plain(x: Any, w: Any) -> Any:
        return jax.nn.softmax(x @ w)

    alike(jax.vmap(program, (0, None))(BATCH, w), jax.vmap(plain, (0, None))(BATCH, w))
    alike(jax.jit(program)(X, w), plain(X, w))
    alike(jax.jvp(program, (X, w), (X, w))[1], jax.jvp(plain, (X, w), (X, w))[1])
    few = normal(2, 16)
    hessians = [jax.hessian(lambda x, f=f: (f(x, w) ** 2).sum())(few) for f in (program, plain)]
    alike(*hessians)


def test_split_by_hand_with_shardings() -> None:
    program = jm.jit(by_hand, mesh=MESH, in_shardings=(P("y", "x"), P("x")), out_shardings=P("y"))
    alike(program(X, SQUARE), X @ SQUARE)
    assert program(X, SQUARE).sharding.is_equivalent_to(on("y"), 2)


# --- explanations, warnings, errors ----------------------------------------------------------------------------------


def test_decisions_name_the_line_the_dim_and_the_axis() -> None:
    def program(x: Any, w: Any) -> Any:
        h = x @ w
        return wsc(h, on("x")).sum(0)

    explanation = jm.jit(program, mesh=MESH, in_shardings=(P("y"), P(None, "x"))).trace(X, SQUARE).explain()
    kinds = Counter(d.kind for d in explanation.decisions)
    assert kinds["asked"] == 2
    assert kinds["propagated"] == 1
    moves = [d for d in explanation.decisions if d.kind in ("all_to_all", "all_gather", "all_reduce")]
    assert moves
    assert all("test_jit_shardings.py" in d.line and "over " in d.text for d in moves)
    assert any("dim 0" in d.text for d in moves)
    assert any(n.kind == "partitioned" for row in explanation for n in row.notes)
    assert "asked: argument 0: P('y', None)" in str(explanation)


def test_the_sum_of_a_scatter_is_a_decision() -> None:
    """Each device has some of the updates, as in the gradient of an embedding whose ids are split."""

    def program(table: Any, ids: Any, updates: Any) -> Any:
        return table.at[ids].add(updates)

    options = {"in_shardings": (P("x"), P("y"), P("y")), "out_shardings": P("x")}
    args = normal(16, 8), np.int32([1, 3, 3, 15]), normal(4, 8)
    traced = jm.jit(program, mesh=MESH, **options).trace(*args)
    moves = [d for d in traced.decisions if d.kind.startswith(("all_", "reduce_"))]
    assert [(d.kind, d.text) for d in moves] == [
        ("all_reduce", "over y: sum of updates, of which each device has a part")
    ]
    assert traced.as_text().count("ttir.all_reduce") == 1
    alike(jm.jit(program, mesh=MESH, **options)(*args), program(jnp.asarray(args[0]), *args[1:]))


def warned(kind: type[Warning], call: Callable[[], Any], match: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(kind, match=match):
            call()
        # Each kind can be turned off.
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", kind)
        call()


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(fun: Callable[..., Any], **options: Any) -> Callable[[], Any]:
        return lambda: jm.jit(fun, mesh=MESH, **options).trace(X)

    warned(errors.ReplicatedProgramWarning, trace(lambda x: wsc(x, on()) * 2, in_shardings=P("y")), "whole on every")
    warned(errors.DroppedShardingWarning, trace(lambda x: jnp.concatenate([x, x[:1]]), in_shardings=P("y")), "divide")
    warned(errors.DonationWarning, trace(lambda x: x.sum(0), in_shardings=P("y"), donate_argnums=0), "donated")
    pinned = NamedSharding(MESH, P("y"), memory_kind="pinned_host")
    warned(errors.MemoryKindWarning, trace(jnp.sin, in_shardings=pinned), "pinned_host")

    def doubly(x: Any) -> Any:
        body = jax.shard_map(lambda a: lax.psum(a, "x"), mesh=MESH, in_specs=P("y"), out_specs=P("y"))
        return body(x) * 2

    warned(errors.RedundantReductionWarning, trace(doubly, in_shardings=P("y")), "does not vary")
    monkeypatch.setenv("JAXMESH_ALL_GATHER_WARNING", "100")
    warned(errors.AllGatherWarning, trace(lambda x: wsc(x * 2, on(None, "x")) + 1, in_shardings=P("y", "x")), "bytes")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"in_shardings": P("q")}, "names the axis 'q'"),
        ({"in_shardings": (P("y"), P())}, "no prefix"),
        ({"in_shardings": 3}, "takes a PartitionSpec"),
        ({"in_shardings": P(None, None, "x")}, "rank|dim|spec"),
        ({"out_shardings": (P(), P())}, "no prefix"),
        ({"in_shardings": NamedSharding(LINE, P("x"))}, "one program has one mesh"),
    ],
)
def test_errors(options: dict[str, Any], match: str) -> None:
    with pytest.raises(jm.JaxmeshError, match=match):
        jm.jit(jnp.sin, mesh=MESH, **options).trace(X)


def test_uneven_shardings_are_an_error_where_they_are_asked_for() -> None:
    with pytest.raises(errors.ArgumentValueError, match="dim 0 of size 6 does not divide by 4 over x"):
        jm.jit(jnp.sin, mesh=MESH, in_shardings=P("x")).trace(normal(6, 4))


def test_keyword_arguments_have_no_in_shardings() -> None:
    with pytest.raises(jm.JaxmeshError, match="keyword"):
        jm.jit(lambda x: x, mesh=MESH, in_shardings=P("x"))(x=X)


def test_what_has_no_meaning_runs_as_jax_runs_it() -> None:
    program = jm.jit(lambda x: jnp.abs(jnp.fft.fft(x)), mesh=MESH, in_shardings=P("y"))
    alike(program(X), np.abs(np.fft.fft(X)).astype(np.float32))
    with pytest.raises(jm.JaxmeshError, match=r"stablehlo\.fft"):
        program.trace(X).as_text()


def test_drawings_show_the_placements() -> None:
    traced = jm.jit(mlp, mesh=MESH, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(X, W, V)
    before, after = str(jm.visualize(traced)), str(jm.visualize(traced.lower()))
    assert "float32[8, 16]" in before
    assert "y" in after
