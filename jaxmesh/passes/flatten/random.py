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

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.caches import lru_cached_by_config
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.passes.flatten.builder import Builder, Rule, missing, storage_type
from jaxmesh.passes.flatten.index_arithmetic import MOST, combine_broadcast
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jax: Any = jax
_WORD = np.dtype(np.uint32)


# --- JAX's generators -----------------------------------------------------------------------------------------------


def generator(aval: Any) -> Any:
    """Returns the generator of a type of keys; None for plain numbers."""
    return getattr(aval.dtype, "_impl", None)


def _built(b: Builder, function: Callable[..., Any], xs: Sequence[Value], parameters: tuple[Any, ...]) -> list[Value]:
    types = tuple((b.shape(x), b.dtype(x)) for x in xs)
    return b.jaxpr(_trace(function, parameters, types), xs)


@lru_cached_by_config(256)
def _trace(function: Callable[..., Any], parameters: tuple[Any, ...], types: tuple[Any, ...]) -> Jaxpr:
    """Traces a generator's code on words, which depends on JAX's flags."""
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types]
    return _jax.make_jaxpr(functools.partial(function, *parameters))(*arguments)


def _over_keys(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Maps a function of one key's words over an array of keys with `count` dims."""
    for _ in range(count):
        function = _jax.vmap(function)
    return function


def _seed(impl: Any, seeds: Any) -> Any:
    return _over_keys(impl.seed, seeds.ndim)(seeds)


def _bits(impl: Any, width: int, shape: tuple[int, ...], keys: Any) -> Any:
    def one(key: Any) -> Any:
        return impl.random_bits(key, width, shape)

    return _over_keys(one, keys.ndim - len(impl.key_shape))(keys)


def _split(impl: Any, shape: tuple[int, ...], keys: Any) -> Any:
    def one(key: Any) -> Any:
        return impl.split(key, shape)

    return _over_keys(one, keys.ndim - len(impl.key_shape))(keys)


def _fold(impl: Any, keys: Any, numbers: Any) -> Any:
    words = keys.ndim - len(impl.key_shape)
    shape = np.broadcast_shapes(keys.shape[:words], numbers.shape)
    keys = _jax.numpy.broadcast_to(keys, (*shape, *impl.key_shape))
    return _over_keys(impl.fold_in, len(shape))(keys, _jax.numpy.broadcast_to(numbers, shape))


@RULES.add("random_seed")
def _random_seed(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    (x,) = xs
    if eqn.params["impl"].tag == "fry" and b.dtype(x).itemsize == 4:
        # JAX shifts by all 32 bits to get at the upper half, which not every machine takes for zero.
        low = b.cast(b.reshape(x, (*b.shape(x), 1)), _WORD)
        return (b.concat([b.full(b.shape(low), 0, _WORD), low], len(b.shape(x))),)
    return _built(b, _seed, xs, (eqn.params["impl"],))


@RULES.add("random_bits")
def _random_bits(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    parameters = (generator(eqn.invars[0].aval), eqn.params["bit_width"], tuple(eqn.params["shape"]))
    return _built(b, _bits, xs, parameters)


@RULES.add("random_split")
def _random_split(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    return _built(b, _split, xs, (generator(eqn.invars[0].aval), tuple(eqn.params["shape"])))


@RULES.add("random_fold_in")
def _random_fold_in(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    return _built(b, _fold, xs, (generator(eqn.invars[0].aval),))


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
    last = combine_broadcast(b, "bitwise_xor", combine_broadcast(b, "bitwise_xor", first, second), parity)
    keys = (first, second, last)
    x, y = combine_broadcast(b, "add", x, first), combine_broadcast(b, "add", y, second)
    x, y = (b.broadcast(b.reshape(v, (*[1] * (len(shape) - len(b.shape(v))), *b.shape(v))), shape) for v in (x, y))
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = b.same("add", [x, y])
            y = b.same("bitwise_xor", [x, _rotate(b, y, by)])
        x = combine_broadcast(b, "add", x, keys[(group + 1) % 3])
        count = b.full((), group + 1, _WORD)
        y = combine_broadcast(b, "add", combine_broadcast(b, "add", y, keys[(group + 2) % 3]), count)
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

    def mapped(*xs: Any) -> Any:
        params = eqn.primitive.get_bind_params(eqn.params)
        function: Callable[..., Any] = functools.partial(eqn.primitive.bind, **params)
        for _ in impl.key_shape:
            function = _jax.vmap(function, in_axes=[None if g is None else -1 for g in keys], out_axes=-1)
        return function(*xs)

    types = [storage_type(v.aval) for v in eqn.invars]
    return _jax.make_jaxpr(mapped)(*[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types])
