"""The columns of the transformation matrix: what is done to a function of one array.

A part takes the function and gives one whose results are compared with those of the same part of the unsharded
function. It runs outside of the program (`part(jaxmesh.jit(f))`), inside (`jaxmesh.jit(part(f))`), and, where the
function's type stays what it was, around the work on a shard alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Fun = Callable[[Any], Any]
_jax: Any = jax
_lax: Any = lax
_jnp: Any = jnp
_checkpoints: Any = importlib.import_module("jax.ad_checkpoint")


def one(f: Fun) -> Fun:
    """Says the type of a function of one array; what JAX leaves untyped says none."""
    return f


def two(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """As `one`, of two arrays."""
    return f


@dataclass(frozen=True)
class Part:
    """One thing that is done to a function, and under which column of the table it stands.

    `linear` parts are given the linear form of the program; `derivative` parts need one, `reverse` parts one that goes
    backwards; `shards` parts also run on a shard alone; `wraps` parts keep the type of the function.
    """

    column: str
    name: str
    apply: Callable[[Fun], Fun]
    derivative: bool = False
    reverse_of_while: bool = False
    linear: bool = False
    shards: bool = False


def weights(like: Any) -> Any:
    """Small integers in the shape and dtype of a result: a cotangent, or a tangent."""
    count = int(_jnp.size(like))
    return (_jnp.arange(count) % 3 - 1).reshape(_jnp.shape(like)).astype(like.dtype)


def scalar(f: Fun) -> Fun:
    """A loss in which every result has another weight."""

    def loss(x: Any) -> Any:
        out = f(x)
        return (out * weights(out)).sum()

    return loss


# --- derivatives -----------------------------------------------------------------------------------------------------


def jvp(f: Fun) -> Fun:
    """Value and tangent."""
    return lambda x: _jax.jvp(f, (x,), (weights(x),))


def vjp(f: Fun) -> Fun:
    """Value and cotangent."""

    def run(x: Any) -> Any:
        out, pull = _jax.vjp(f, x)
        return out, pull(weights(out))

    return run


def linearized(f: Fun) -> Fun:
    """Value and two tangents from one linearization."""

    def run(x: Any) -> Any:
        out, push = _jax.linearize(f, x)
        return out, push(weights(x)), push(2 * x)

    return run


def transposed(f: Fun) -> Fun:
    """The transpose of a linear function, and the transpose of that."""

    def run(x: Any) -> Any:
        pull = _jax.linear_transpose(f, x)
        out = f(x)
        (back,) = pull(out)
        (again,) = _jax.linear_transpose(one(lambda ct: pull(ct)[0]), out)(back)
        return back, again

    return run


def _derivatives() -> Iterator[Part]:
    def part(column: str, name: str, apply: Callable[[Fun], Fun], linear: bool = False) -> Part:
        return Part(column, name, apply, derivative=True, linear=linear)

    yield part("grad", "grad", lambda f: _jax.grad(scalar(f)))
    yield part("grad", "value_and_grad", lambda f: _jax.value_and_grad(scalar(f)))
    yield part("jvp", "jvp", jvp)
    yield part("vjp", "vjp", vjp)
    yield part("linearize", "linearize", linearized)
    yield part("linear_transpose", "linear_transpose", transposed, linear=True)
    yield part("hessian", "hessian", lambda f: _jax.hessian(scalar(f)))
    yield part("hessian", "hessian-vector product", lambda f: jvp(_jax.grad(scalar(f))))
    yield part("jacobian", "jacfwd", _jax.jacfwd)
    yield part("jacobian", "jacrev", _jax.jacrev)


# --- vmap ------------------------------------------------------------------------------------------------------------


def _batched(f: Fun, in_axis: int, out_axis: int) -> Fun:
    """Over x and 2x."""

    def run(x: Any) -> Any:
        out_rank = len(_jax.eval_shape(f, x).shape)
        at = max(-out_rank - 1, min(out_axis, out_rank))
        return _jax.vmap(f, in_axis, at)(_jnp.stack([x, 2 * x], in_axis))

    return run


def _twice_batched(f: Fun) -> Fun:
    def run(x: Any) -> Any:
        xs = _jnp.stack([x, 2 * x, -x], 1)
        return _jax.vmap(_jax.vmap(f, 1, 0), -1, -1)(_jnp.stack([xs, 1 - xs], -1))

    return run


def _vmaps() -> Iterator[Part]:
    for in_axis, out_axis in ((0, -1), (1, 1), (2, 0), (-1, 2), (-2, -2), (-3, -3)):
        yield Part("vmap", f"vmap {in_axis} to {out_axis}", lambda f, i=in_axis, o=out_axis: _batched(f, i, o))
    yield Part("vmap of vmap", "vmap of vmap", _twice_batched)
    yield Part("vmap of grad", "vmap of grad", lambda f: _batched(_jax.grad(scalar(f)), 1, 0), derivative=True)
    yield Part("vmap of grad", "grad of vmap", lambda f: _jax.grad(scalar(_batched(f, -1, 1))), derivative=True)


# --- what keeps the type of a function -------------------------------------------------------------------------------

Wrap = Callable[[Fun], Fun]


def nested_jit(f: Fun) -> Fun:
    """Two deep."""
    return _jax.jit(one(lambda v: _jax.jit(f)(v) + _jax.jit(f)(v + 1)))


def custom_jvp(f: Fun) -> Fun:
    """With the function's own derivative, doubled, as its rule: that it is taken shows."""
    g = _jax.custom_jvp(f)
    g.defjvp(two(lambda p, t: (f(*p), 2 * _jax.jvp(f, p, t)[1])))
    return g


def custom_vjp(f: Fun) -> Fun:
    """As `custom_jvp`."""
    g = _jax.custom_vjp(f)
    g.defvjp(one(lambda v: (f(v), v)), two(lambda v, ct: (2 * _jax.vjp(f, v)[1](ct)[0],)))
    return g


def scanned(f: Fun) -> Fun:
    """Over x and x + 1, the results summed with weights."""

    def run(x: Any) -> Any:
        _, outs = _lax.scan(two(lambda c, r: (c + 1, f(c + r))), x, _jnp.arange(2).astype(x.dtype))
        return outs[0] - 2 * outs[1]

    return run


def _repeated(f: Fun, loop: Callable[[Callable[[Any, Any], Any], Any], Any]) -> Fun:
    def run(x: Any) -> Any:
        return loop(lambda i, acc: acc + f(x + _jnp.asarray(i).astype(x.dtype)), f(x))

    return run


def while_loop(f: Fun) -> Fun:
    """Twice round, by a counter."""

    def loop(body: Any, start: Any) -> Any:
        going, step = one(lambda s: s[0] < 2), one(lambda s: (s[0] + 1, body(s[0], s[1])))
        return _lax.while_loop(going, step, (_jnp.int32(0), start))[1]

    return _repeated(f, loop)


def fori_loop(f: Fun) -> Fun:
    """Of a count that is known: a scan."""
    return _repeated(f, lambda body, start: _lax.fori_loop(0, 2, body, start))


def fori_dynamic(f: Fun) -> Fun:
    """Of a count that is not: a while."""
    return _repeated(f, lambda body, start: _lax.fori_loop(0, _jnp.arange(3)[-1], body, start))


def cond(f: Fun) -> Fun:
    """Both ways, by predicates that are not constants."""

    def run(x: Any) -> Any:
        yes = _jnp.arange(2) == _jnp.arange(2)[::-1] * 0
        doubled, other = one(lambda v: 2 * f(v)), one(lambda v: 3 * f(v + 1))
        return _lax.cond(yes[0], f, doubled, x) + _lax.cond(yes[1], f, other, x)

    return run


def switch(f: Fun) -> Fun:
    """The branch in the middle."""
    branches: list[Fun] = [f, lambda v: f(2 * v) - f(v), lambda v: 3 * f(v)]
    return lambda x: _lax.switch(_jnp.arange(3)[1], branches, x)


def named(f: Fun) -> Fun:
    """With names and products for the policies of remat to tell apart."""

    def run(x: Any) -> Any:
        name = _checkpoints.checkpoint_name
        # A multiple of one: it means the same on a shard.
        first = name(x @ (2 * _jnp.eye(x.shape[-1], dtype=x.dtype)), "first")
        return name(f(first * first), "second")

    return run


def policies() -> dict[str, Any]:
    """Every policy of `jax.checkpoint_policies`, made where it is a maker; None is JAX's own default."""
    p = _jax.checkpoint_policies
    makers: dict[str, Callable[[], Any]] = {
        "offload_dot_with_no_batch_dims": lambda: p.offload_dot_with_no_batch_dims("device", "pinned_host"),
        "save_any_names_but_these": lambda: p.save_any_names_but_these("first"),
        "save_anything_except_these_names": lambda: p.save_anything_except_these_names("first"),
        "save_only_these_names": lambda: p.save_only_these_names("first"),
        "save_from_both_policies": lambda: p.save_from_both_policies(
            p.dots_saveable, p.save_only_these_names("second")
        ),
        "save_and_offload_only_these_names": lambda: p.save_and_offload_only_these_names(
            names_which_can_be_saved=["first"],
            names_which_can_be_offloaded=["second"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }
    names = [n for n in dir(p) if not n.startswith("_")]
    return {"no policy": None, **{n: makers[n]() if n in makers else getattr(p, n) for n in names}}


def _wraps() -> Iterator[tuple[str, str, Wrap]]:
    for name, policy in policies().items():
        yield "remat", f"remat, {name}", lambda f, p=policy: _jax.checkpoint(named(f), policy=p)
    yield "custom_jvp", "custom_jvp", custom_jvp
    yield "custom_vjp", "custom_vjp", custom_vjp
    yield "scan", "scan", scanned
    yield "while_loop", "while_loop", while_loop
    yield "fori_loop", "fori_loop", fori_loop
    yield "fori_loop", "fori_loop of a dynamic count", fori_dynamic
    yield "cond", "cond", cond
    yield "switch", "switch", switch
    yield "nested jit", "jit in jit", nested_jit


WHILES = frozenset({"while_loop", "fori_loop of a dynamic count"})


def _wrapped() -> Iterator[Part]:
    for column, name, wrap in _wraps():
        yield Part(column, name, wrap, shards=True)
        # A custom_vjp has no forward mode, in JAX; all else has both.
        if name != "custom_vjp" and column != "remat":
            yield Part(column, f"jvp of {name}", lambda f, w=wrap: jvp(w(f)), derivative=True)
        yield Part(
            column,
            f"vjp of {name}",
            lambda f, w=wrap: vjp(w(f)),
            derivative=True,
            reverse_of_while=name in WHILES,
        )


# --- jaxprs ----------------------------------------------------------------------------------------------------------


def evaluated(f: Fun) -> Fun:
    """`make_jaxpr`, and the jaxpr evaluated."""

    def run(x: Any) -> Any:
        closed = _jax.make_jaxpr(f)(x)
        (out,) = _jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x)
        return out

    return run


def parts() -> list[Part]:
    """Every part that is a function of a function."""
    return [
        Part("jit", "jit", _jax.jit),
        *_derivatives(),
        *_vmaps(),
        *_wrapped(),
        Part("make_jaxpr", "make_jaxpr and eval_jaxpr", evaluated),
        Part("make_jaxpr", "vjp of eval_jaxpr", lambda f: vjp(evaluated(f)), derivative=True),
    ]
