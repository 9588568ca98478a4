"""Constants of truth values: upstream's MLIR writes a bit for each, as digits."""

from __future__ import annotations

import numpy as np
import pytest

import jaxmesh as jm


@pytest.mark.parametrize("shape", [(8, 16), (3, 3), (9,), (2, 2, 2)])
def test_a_constant_of_bits_is_read(shape: tuple[int, ...]) -> None:
    want = np.random.default_rng(0).random(shape) < 0.5
    digits = np.packbits(want, axis=None, bitorder="little").tobytes().hex().upper()
    kind = "x".join(map(str, shape))
    text = f"""module {{
  func.func @main() -> tensor<{kind}xi1> {{
    %0 = "ttir.constant"() <{{value = dense<"0x{digits}"> : tensor<{kind}xi1>}}> : () -> tensor<{kind}xi1>
    return %0 : tensor<{kind}xi1>
  }}
}}"""
    np.testing.assert_array_equal(jm.from_mlir(text).lower().compile()(), want)


def test_a_constant_of_bytes_stays_one() -> None:
    text = """module {
  func.func @main() -> tensor<4xi1> {
    %0 = "ttir.constant"() <{value = dense<"0x01000001"> : tensor<4xi1>}> : () -> tensor<4xi1>
    return %0 : tensor<4xi1>
  }
}"""
    np.testing.assert_array_equal(jm.from_mlir(text).lower().compile()(), [True, False, False, True])
