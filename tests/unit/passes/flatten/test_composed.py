"""Linear algebra, complex numbers and Fourier transforms in flat programs: the results are those of JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxmesh as jm
from jaxmesh.errors import UnsupportedError
from jaxmesh.passes.flatten.builder import Options
from jaxmesh.passes.flatten.flatten import flatten
from tests.generators.flat_programs import flat_of, run_flat

Case = tuple[Callable[..., Any], *tuple[Any, ...]]
RNG = np.random.default_rng(3)
LINEAR: Any = jax.scipy.linalg


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


SQUARE, X, Y = floats(8, 8), floats(3, 4, 6), floats(3, 4, 6)
POSITIVE = SQUARE @ SQUARE.T + 8 * np.eye(8, dtype=np.float32)
TRIANGLE = np.tril(SQUARE) + 4 * np.eye(8, dtype=np.float32)


def of_two(a: Any, b: Any) -> Any:
    return lax.complex(a, b)


def with_q(a: Any, c: Any) -> list[Any]:
    """The products of both sides with Q and its transpose, which is never made."""
    h, taus = jnp.linalg.qr(a, mode="raw")
    ways = [(left, transpose) for left in (True, False) for transpose in (True, False)]
    return [lax.linalg.ormqr(h.T, taus, c if left else c.T, left=left, transpose=t) for left, t in ways]


LINEAR_ALGEBRA: dict[str, Case] = {
    "cholesky": (jnp.linalg.cholesky, np.stack([POSITIVE, 2 * POSITIVE])),
    "gradient of cholesky": (
        jax.grad(lambda a: jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))).sum()), POSITIVE,
    ),
    "cho_solve": (lambda a, b: LINEAR.cho_solve(LINEAR.cho_factor(a), b), POSITIVE, floats(8, 2)),
    "lu": (lax.linalg.lu, floats(6, 4)),
    "lu of zeros": (lax.linalg.lu, np.zeros((3, 3), np.float32)),
    "solve": (jnp.linalg.solve, SQUARE, floats(8, 3)),
    "inverse": (jnp.linalg.inv, floats(2, 5, 5)),
    "determinant": (jnp.linalg.det, floats(3, 5, 5)),
    "slogdet": (jnp.linalg.slogdet, floats(5, 5)),
    "qr": (jnp.linalg.qr, floats(8, 5)),
    "qr, square": (jnp.linalg.qr, floats(5, 5)),
    "qr, complete": (lambda a: jnp.linalg.qr(a, mode="complete"), floats(7, 5)),
    "qr, wide": (jnp.linalg.qr, floats(4, 6)),
    "qr, raw": (lambda a: jnp.linalg.qr(a, mode="raw"), floats(8, 5)),
    "products with q": (with_q, floats(6, 4), floats(6, 3)),
    "qr of zeros": (jnp.linalg.qr, np.zeros((3, 2), np.float32)),
    **{
        f"triangular, {left=}, {lower=}, {transposed=}, {unit=}": (
            lambda a, b, left=left, lower=lower, transposed=transposed, unit=unit: lax.linalg.triangular_solve(
                a if lower else a.T, b if left else b.T, left_side=left, lower=lower, transpose_a=transposed,
                unit_diagonal=unit,
            ),
            TRIANGLE, floats(8, 3),
        )
        for left in (True, False) for lower in (True, False) for transposed in (True, False) for unit in (True, False)
        if not unit or (left and lower)
    },
}  # fmt: skip

COMPLEX: dict[str, Case] = {
    "arithmetic": (lambda a, b: jnp.abs((of_two(a, b) * of_two(b, a) + 2j) / (of_two(a, a) - 3 + 1j)), X, Y),
    "powers": (lambda a, b: jnp.real(of_two(a, b) ** 3 + of_two(a, b) ** -2), X, Y),
    "exp and conj": (lambda a, b: jnp.imag(jnp.exp(of_two(a, b)).conj()), X, Y),
    "abs of large ones": (lambda a: jnp.abs(of_two(a * np.float32(1e30), a * np.float32(1e30))), X),
    "dot": (lambda a, b: jnp.real(of_two(a[0], b[0]) @ of_two(b[0], a[0]).T), X, Y),
    "equal": (lambda a, b: (of_two(a, b) == of_two(a, a)) | (of_two(a, b) != of_two(a, b)), X, Y),
    "moves": (
        lambda a, b: jnp.imag(
            jnp.where(a > 0, jnp.concatenate([of_two(a, b), of_two(b, a)])[::-1][2:5], 1j).transpose(2, 0, 1).sum(1)
        ),
        X, Y,
    ),
    "a call and a branch": (lambda a: jnp.real(lax.cond(True, jax.jit(lambda z: z * 1j), lambda z: z, a + 2j)), X),
    "a branch that the devices choose": (
        lambda a, b: jnp.imag(lax.cond(a[0, 0, 0] > 0, lambda: of_two(a, b), lambda: 1j * of_two(b, a) + 2)),
        X, Y,
    ),
    "a branch of devices": (lambda a: jnp.imag(lax.cond(a.sum() > 0, lambda z: z * 1j, lambda z: z, a + 2j)), X),
    "a scan": (lambda a: jnp.abs(lax.scan(lambda c, r: (c * 0.5j + r, c), 0j * a[0], a + 1j)[1]), X),
    "a loop": (
        lambda a: lax.while_loop(
            lambda s: (s[0] < 4) & (jnp.abs(s[1]).max() < 9), lambda s: (s[0] + 1, s[1] * 1.5j), (0, a + 1j)
        )[1].real,
        X,
    ),
    "a choice of one part": (lambda a: jnp.imag(jnp.where(a > 0, lax.complex(a, 0 * a + 1), 1j)), X),
    "a constant": (lambda a: jnp.real(a * np.exp(1j * np.arange(6)).astype(np.complex64)), X),
    "rfft": (lambda a: jnp.abs(jnp.fft.rfft(a)), X),
    "rfft, odd": (lambda a: jnp.fft.rfft(a, 9).imag, X),
    "irfft": (lambda a: jnp.fft.irfft(jnp.fft.rfft(a) * jnp.exp(1j * jnp.arange(4))), X),
    "irfft, odd": (lambda a: jnp.fft.irfft(jnp.fft.rfft(a), 5), X),
    "one point": (lambda a: jnp.fft.irfft(jnp.fft.rfft(a, 1), 1), X),
    "fft along two dims": (lambda a: jnp.fft.fft(jnp.fft.fft(a, axis=-1), axis=-2).real, X),
    "fft2": (lambda a, b: jnp.fft.fft2(of_two(a, b)).imag, X, Y),
    "ifftn": (lambda a, b: jnp.fft.ifftn(of_two(a, b)).real, X, Y),
    "irfft2": (lambda a: jnp.fft.irfft2(2 * jnp.fft.rfft2(a)), X),
    "irfftn": (lambda a: jnp.fft.irfftn(jnp.fft.rfftn(a).conj()), X),
    "gradient": (jax.grad(lambda a: (jnp.abs(jnp.fft.rfft(a)) ** 2).sum()), X),
}  # fmt: skip


@pytest.mark.slow(but_one_in=12)
@pytest.mark.parametrize("name", [*LINEAR_ALGEBRA, *COMPLEX])
def test_values_are_those_of_jax(name: str) -> None:
    function, *args = (LINEAR_ALGEBRA | COMPLEX)[name]

    def leaves(*xs: Any) -> list[Any]:
        return jax.tree.leaves(function(*xs))

    mesh = jm.make_mesh((1, 1))
    got = run_flat(flat_of(jm.jit(leaves, mesh=mesh).trace(*args), "ttir"), mesh, *args)
    for result, want in zip(got, leaves(*args), strict=True):
        assert (result.shape, result.dtype) == (want.shape, want.dtype)
        scale = max(1.0, float(np.max(np.abs(np.asarray(want, np.float64)), initial=0)))
        np.testing.assert_allclose(np.asarray(result), np.asarray(want), rtol=2e-4, atol=2e-5 * scale)


def test_every_operation_is_at_the_line_of_the_user() -> None:
    def solve(x: Any) -> Any:
        return jnp.linalg.cholesky(x)

    program = flat_of(jm.jit(solve, mesh=jm.make_mesh((1, 1))).trace(POSITIVE), "ttir")
    line = solve.__code__.co_firstlineno + 1
    assert {op.line.rpartition("test_composed.py:")[2].partition(":")[0] for op in program.ops} == {str(line)}


def test_loops_of_linear_algebra_count_against_the_limit() -> None:
    traced = jax.make_jaxpr(jnp.linalg.cholesky)(POSITIVE)
    some: Any = {"name": "f", "mesh": {}, "level": "ttir", "arguments": [(False, "a")], "results": [(False, "")]}
    with pytest.raises(UnsupportedError, match=r"of 8 iterations is unrolled.*unroll_limit is 50"):
        flatten(traced, **some, options=dataclasses.replace(Options(), unroll_limit=50))


def test_primitives_of_a_library_are_what_it_implements() -> None:
    def implement(x: Any, *, power: int) -> list[Any]:
        return [jnp.any(x > power), x**power]

    primitive = Primitive("any_and_power")
    primitive.multiple_results = True
    primitive.def_impl(implement)
    primitive.def_abstract_eval(lambda x, power: [jax.core.ShapedArray((), np.bool_), x])
    x = np.array([[1, 0, 3], [2, 5, 0]], np.int32)
    traced = jax.make_jaxpr(lambda x: primitive.bind(x, power=3))(x)
    some: Any = {"name": "f", "mesh": {}, "level": "ttir", "arguments": [(False, "a")], "results": [(False, "")] * 2}
    truth, powers = run_flat(flatten(traced, **some), jm.make_mesh((1, 1)), x)
    assert np.asarray(truth) == np.any(x > 3)
    np.testing.assert_array_equal(np.asarray(powers), x**3)


def test_a_primitive_of_a_library_that_computes_on_the_host_has_no_text() -> None:
    primitive = Primitive("sine_of_numpy")
    primitive.def_impl(np.sin)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(jnp.sin, multiple_results=False))
    x = floats(4)
    program = lambda x: primitive.bind(x) + 1  # noqa: E731
    traced = jm.jit(program, mesh=jm.make_mesh((2, 1))).trace(x)
    with pytest.raises(jm.MissingRuleError, match="'sine_of_numpy'"):
        traced.as_text()
    # A plain program with shardings goes through its StableHLO, which has a text.
    split: Any = jm.jit(program, mesh=jm.make_mesh((2, 1)), in_shardings=jax.P("x"))
    np.testing.assert_allclose(split(x), np.sin(x) + 1, rtol=1e-6)
    assert "ttir.sin" in split.trace(x).as_text()
