"""Operations that are printed as a JAX program compute what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmesh.analysis.diagnose.as_jax import as_jax
from jaxmesh.frontends.mlir.source import parse

Array = np.ndarray[Any, Any]
F32 = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)
IMAGES = np.random.default_rng(1).standard_normal((2, 9, 7, 4)).astype(np.float32)


def convolution(**options: Any) -> Any:
    return lambda x, k: lax.conv_general_dilated(x, k, (2, 1), ((1, 2), (0, 1)), dimension_numbers=DIMS, **options)


DIMS = ("NHWC", "HWIO", "NHWC")
PROGRAMS: dict[str, tuple[Any, Sequence[Array]]] = {
    "product": (lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), (F32, F32.swapaxes(1, 2))),
    "convolution": (convolution(rhs_dilation=(2, 1)), (IMAGES, IMAGES[:, :3, :4, :3].transpose(1, 0, 2, 3))),
    "groups": (convolution(feature_group_count=4), (IMAGES, IMAGES[:, :3, :1].swapaxes(0, 1))),
    "batches": (convolution(batch_group_count=2), (IMAGES, IMAGES.reshape(-1)[:96].reshape(3, 2, 4, 4))),
    "sum": (lambda x: jnp.sum(x, (0, 2)), (F32,)),
    "any": (lambda x: jnp.any(x > 1, 1), (F32,)),
    "bits": (lambda x: lax.convert_element_type(x, jnp.int32), (F32,)),
    "half": (lambda x: lax.exp(lax.convert_element_type(x, jnp.bfloat16)), (F32,)),
    "pad": (lambda x: lax.pad(x[1:3, ::2], np.float32(2), ((1, 0, 1), (0, 2, 0), (0, 0, 0))), (F32,)),
    "iota": (lambda x: lax.select(lax.iota(jnp.int32, 8) > lax.full((8,), 3), x[0, 0], lax.full((8,), np.inf)), (F32,)),
}


def printed(fun: Any, args: Sequence[Array]) -> str | None:
    (piece,) = parse(jax.jit(fun).lower(*args).as_text())
    (entry,) = piece.module.body.operations[0].operation.regions[0].blocks
    *ops, end = [o.operation for o in entry.operations]
    places = [((),) * x.ndim for x in args]
    return as_jax(ops, list(entry.arguments), end.operands[0], places, None, {"x": 1})


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_printed_program_computes_the_same(name: str) -> None:
    fun, args = PROGRAMS[name]
    text = printed(fun, args)
    assert text is not None
    made: dict[str, Any] = {}
    exec(text.rpartition("\n")[0], made)  # Without the last line, which compiles it.
    assert [(t.shape, t.dtype) for t in made["args"]] == [(x.shape, x.dtype) for x in args]
    np.testing.assert_array_equal(np.asarray(jax.jit(made["f"])(*args)), np.asarray(jax.jit(fun)(*args)))


def test_a_reduction_of_bits_has_no_short_form() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.reduce(x, np.int32(-1), lax.bitwise_and, (0,))

    assert printed(fun, [np.arange(8, dtype=np.int32)]) is None
