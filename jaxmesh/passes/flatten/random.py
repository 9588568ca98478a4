"""Random numbers: JAX's counter-based generator, written out in 32-bit words.

A key is an array of words (`uint32[2]` for the default generator), as `jax.random.key_data` returns it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.op import Results
from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs import special
from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr
from jaxmesh.jaxprs.typed import typed
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing, storage_type
from jaxmesh.passes.flatten.decompositions import Function, Params
from jaxmesh.passes.flatten.index_arithmetic import MOST

RULES: Rules[Rule] = Rules()

_WORD = np.dtype(np.uint32)


# --- JAX's generators -----------------------------------------------------------------------------------------------


def generator(aval: Aval) -> Any:
    """Returns the generator of a type of keys; None for plain numbers."""
    return getattr(aval.dtype, "_impl", None)


def _over_keys(function: Callable[..., object], count: int) -> Callable[..., Any]:
    """Maps a function of one key's words over an array of keys with `count` dims."""
    for _ in range(count):
        function = jax.vmap(function)
    return function


def _seed(params: Params, seeds: jax.Array) -> jax.Array:
    return _over_keys(params["impl"].seed, seeds.ndim)(seeds)


def _fold(params: Params, keys: jax.Array, numbers: jax.Array) -> jax.Array:
    impl = params["impl"]
    words = keys.ndim - len(impl.key_shape)
    shape = np.broadcast_shapes(keys.shape[:words], numbers.shape)
    keys = jax.numpy.broadcast_to(keys, (*shape, *impl.key_shape))
    return _over_keys(impl.fold_in, len(shape))(keys, jax.numpy.broadcast_to(numbers, shape))


def _gamma(params: Params, words: jax.Array, a: jax.Array) -> jax.Array:
    keys = typed.random.wrap_key_data(words, impl=params["impl"].name)
    return special.random_gamma(keys, a, log_space=params["log_space"])


@RULES.add("random_seed")
def _random_seed(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    (x,) = xs
    if eqn.params["impl"].tag == "fry" and b.dtype(x).itemsize == 4:
        # JAX shifts by all 32 bits to get at the upper half, which not every machine takes for zero.
        low = b.cast(b.reshape(x, (*b.shape(x), 1)), _WORD)
        return (b.concat([b.full(b.shape(low), 0, _WORD), low], len(b.shape(x))),)
    return b.composed(_seed, xs, eqn.params)


def _of_keys(name: str, function: Function) -> None:
    """Adds a function of the parameters, with the generator of the keys, and of words."""

    @RULES.add(name)
    def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
        return b.composed(function, xs, {**eqn.params, "impl": generator(eqn.invars[0].aval)})


def _of_each_key(one: Callable[[Params, jax.Array], jax.Array]) -> Function:
    """Returns a function of the parameters and of the words of an array of keys, from one of a single key."""

    def mapped(params: Params, keys: jax.Array) -> jax.Array:
        return _over_keys(functools.partial(one, params), keys.ndim - len(params["impl"].key_shape))(keys)

    return mapped


_of_keys("random_bits", _of_each_key(lambda p, key: p["impl"].random_bits(key, p["bit_width"], p["shape"])))
_of_keys("random_split", _of_each_key(lambda p, key: p["impl"].split(key, p["shape"])))
_of_keys("random_fold_in", _fold)
_of_keys("random_gamma", _gamma)


@RULES.add("random_wrap", "random_unwrap", "random_clone")
def _same_words(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    return xs


# --- threefry --------------------------------------------------------------------------------------------------------

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _rotate(b: Builder, x: Value, by: int) -> Value:
    left = b.with_number("logical_left_shift", x, by)
    return b.same("bitwise_or", [left, b.with_number("logical_right_shift", x, 32 - by)])


@RULES.add("threefry2x32")
def _threefry(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Emits Threefry-2x32, 20 rounds (Salmon et al., SC11): adds, rotations and exclusive ors."""
    shape = np.broadcast_shapes(*(b.shape(x) for x in xs))
    first, second, x, y = xs
    parity = b.full((), 0x1BD11BDA, _WORD)
    last = b.binary("bitwise_xor", b.binary("bitwise_xor", first, second), parity)
    keys = (first, second, last)
    x, y = b.binary("add", x, first), b.binary("add", y, second)
    x, y = (b.broadcast(b.reshape(v, (*[1] * (len(shape) - len(b.shape(v))), *b.shape(v))), shape) for v in (x, y))
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = b.same("add", [x, y])
            y = b.same("bitwise_xor", [x, _rotate(b, y, by)])
        x = b.binary("add", x, keys[(group + 1) % 3])
        count = b.full((), group + 1, _WORD)
        y = b.binary("add", b.binary("add", y, keys[(group + 2) % 3]), count)
    return x, y


@RULES.add("iota_2x32_shape")
def _counters(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Returns the upper and the lower half of each element's number."""
    shape = tuple(eqn.params["shape"])
    count = math.prod(shape)
    if count > MOST:
        raise missing(eqn, f"{list(shape)} has {count} elements, more than 32 bits count; draw fewer at once")
    low = b.op("arange", [], (count,), _WORD, start=0, end=count, step=1, arange_dimension=0)
    return b.full(shape, 0, _WORD), b.reshape(low, shape)


# --- arrays of keys --------------------------------------------------------------------------------------------------


def move_keys(rule: Rule) -> Rule:
    """Returns the rule for a primitive that only moves data, extended to keys: it moves their words."""

    def moved(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value] | Value:
        body = on_words(eqn)
        return rule(b, eqn, xs) if body is None else b.jaxpr(body, xs)

    return moved


def on_words(eqn: Eqn) -> Jaxpr | None:
    """Returns a body that moves the words of keys as an equation moves the keys; None if no operand is of keys."""
    keys = [generator(v.aval) for v in eqn.invars]
    impl = next((g for g in keys if g is not None), None)
    if impl is None:
        return None

    def mapped(*xs: jax.Array) -> Results:
        params = eqn.primitive.get_bind_params(eqn.params)
        function: Callable[..., object] = functools.partial(eqn.primitive.bind, **params)
        for _ in impl.key_shape:
            function = jax.vmap(function, in_axes=[None if g is None else -1 for g in keys], out_axes=-1)
        return function(*xs)

    types = [storage_type(v.aval) for v in eqn.invars]
    return typed.make_jaxpr(mapped)(*[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types])
