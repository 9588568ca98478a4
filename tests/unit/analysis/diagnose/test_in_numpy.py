"""What NumPy performs has the bits that XLA gives; other operands go to XLA."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmesh.analysis.diagnose.in_numpy import bind, in_numpy
from jaxmesh.jaxprs import evaluate

TINY = np.finfo(np.float32).tiny
EDGES = np.array(
    [0.0, -0.0, TINY, -TINY, TINY / 2, -TINY / 4, 1e-45, 1.0, -1.5, 2.5, 1e30, -3e38, np.inf, -np.inf, np.nan, -np.nan],
    np.float32,
)
NUMBERS: dict[str, np.ndarray[Any, Any]] = {
    "float32": np.concatenate([EDGES, np.random.default_rng(0).standard_normal(48).astype(np.float32)]),
    "bfloat16": np.concatenate([EDGES, np.random.default_rng(1).standard_normal(48)]).astype(jnp.bfloat16),
    "int32": np.array([0, 1, -1, 2, -7, 7, 2**31 - 1, -(2**31), 12345, -99], np.int32),
    "int8": np.array([0, 1, -1, 2, -7, 7, 127, -128], np.int8),
    "uint8": np.array([0, 1, 2, 7, 255, 128], np.uint8),
    "bool": np.array([True, False]),
}
BINARY = (lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)
BITWISE = (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor)
UNARY = (lax.neg, lax.abs, lax.sqrt, lax.floor, lax.ceil, lax.sign, lax.is_finite, lax.bitwise_not)


def check(fun: Any, *operands: np.ndarray[Any, Any]) -> bool:
    """Compares the bits of an operation on each element alone with XLA's; returns True if NumPy has performed some."""
    try:
        (eqn,) = jax.make_jaxpr(fun)(*operands).eqns
    except TypeError:
        return True  # The operation has no such type.
    (wanted,), name, some = evaluate.bind(eqn, operands), eqn.primitive.name, False
    assert np.asarray(bind(eqn, operands)[0]).tobytes() == np.asarray(wanted).tobytes()
    for i in range(len(operands[0])):
        found = in_numpy(name, [x[i : i + 1] for x in operands], eqn.params, wanted.dtype)
        some = some or found is not None
        if found is not None:
            assert found.dtype == wanted.dtype
            assert found.tobytes() == np.asarray(wanted)[i : i + 1].tobytes(), (name, i)
    return some


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("fun", [*BINARY, *BITWISE], ids=lambda f: f.__name__)
def test_operations_of_two_operands(fun: Any, name: str) -> None:
    pairs = np.array(list(itertools.product(NUMBERS[name][:16], repeat=2)), NUMBERS[name].dtype)
    assert check(fun, pairs[:, 0], pairs[:, 1]) or name == "bool" or fun is lax.rem


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("fun", UNARY, ids=lambda f: f.__name__)
def test_operations_of_one_operand(fun: Any, name: str) -> None:
    check(fun, NUMBERS[name])


@pytest.mark.parametrize(("name", "to"), list(itertools.permutations(NUMBERS, 2)))
def test_conversions(name: str, to: str) -> None:
    check(lambda x: lax.convert_element_type(x, np.dtype(to) if to != "bfloat16" else jnp.bfloat16), NUMBERS[name])


@pytest.mark.parametrize("name", NUMBERS)
def test_selects(name: str) -> None:
    x = NUMBERS[name]
    which = np.arange(len(x)) % 2 == 0
    assert check(lax.select_n, which, x, x[::-1])


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: lax.broadcast_in_dim(x, (3, 4, 6), (1, 2)),
        lambda x: lax.reshape(x, (2, 12)),
        lambda x: lax.rev(x, (1,)),
        lambda x: lax.slice(x, (1, 0), (4, 6), (2, 3)),
        lambda x: lax.transpose(x, (1, 0)),
        lambda x: lax.concatenate([x, x], 1),
        lambda _: lax.broadcasted_iota(np.int32, (3, 5), 1),
    ],
)
def test_movements(fun: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (eqn,) = jax.make_jaxpr(fun)(x).eqns
    operands = [x] * len(eqn.invars)
    assert in_numpy(eqn.primitive.name, operands, eqn.params, eqn.outvars[0].aval.dtype) is not None
    np.testing.assert_array_equal(bind(eqn, operands)[0], fun(x))


def test_keys_and_large_arrays_go_to_xla() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    (eqn,) = jax.make_jaxpr(lambda k: lax.reshape(k, (2, 2)))(keys).eqns
    assert bind(eqn, [keys])[0].shape == (2, 2)
    large = np.zeros((1 << 22) + 1, np.float32)
    assert in_numpy("add", [large, large], {}, large.dtype) is None
