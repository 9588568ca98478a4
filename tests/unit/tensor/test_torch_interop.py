"""Element types between torch and NumPy."""

from __future__ import annotations

from jaxmesh.tensor.torch_interop import _narrow


def test_types_that_numpy_does_not_know_go_through_bits() -> None:
    known = ("float32", "float16", "int64", "uint8", "complex64", "bool")
    assert not any(map(_narrow, known))
    assert all(map(_narrow, ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")))
