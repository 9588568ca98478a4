"""Quantized tensors: what the six ops compute equals NumPy; types that do not fit are errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.cli.main import main
from jaxmesh.frontends.mlir.quantization import quantized

RNG = np.random.default_rng(7)


def kind(storage: str, scales: Sequence[float], zeros: Sequence[int], axis: int | None) -> str:
    pairs = [f"{s!r}:{z}" for s, z in zip(scales, zeros, strict=True)]
    along = "" if axis is None else f":{axis}"
    listed = pairs[0] if axis is None else "{" + ", ".join(pairs) + "}"
    return f"!quant.uniform<{storage}:f32{along}, {listed}>"


def function(op: str, given: str, made: str, more: str = "", types: str = "") -> str:
    extra = "" if not types else "," + ",".join(f" %s{i}: {t}" for i, t in enumerate(types.split(", ")))
    return (
        f"func.func @f(%x: {given}{extra}) -> {made} {{\n"
        f'  %0 = "{op}"(%x{more}) : ({given}{", " + types if types else ""}) -> {made}\n'
        f"  return %0 : {made}\n}}\n"
    )


def run(text: str, *arguments: np.ndarray) -> np.ndarray:
    return np.asarray(jm.from_mlir(text, jm.make_mesh((1, 1))).lower().compile()(*arguments))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize(("storage", "least", "most"), [("i8", -128, 127), ("u8", 0, 255), ("i8<-4:4>", -4, 4)])
def test_numbers_are_those_of_numpy(axis: int | None, storage: str, least: int, most: int) -> None:
    shape = (3, 5)
    count = 1 if axis is None else shape[axis]
    scales, zeros = (
        [float(s) for s in RNG.choice([0.125, 0.5, 2.0], count)],
        [int(z) for z in RNG.integers(0, 4, count)],
    )
    along = (slice(None), None) if axis == 0 else (None, slice(None))
    scale, zero = (np.array(v, np.float32)[along if axis is not None else ...] for v in (scales, zeros))
    x = RNG.uniform(-80, 80, shape).astype(np.float32)
    want = np.clip(np.round(x / scale + zero), least, most).astype(np.int32)
    name = kind(storage, scales, zeros, axis)
    got = run(function("ttir.quantize", "tensor<3x5xf32>", f"tensor<3x5x{name}>"), x)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.int32
    assert got.min() >= least
    back = run(function("ttir.dequantize", f"tensor<3x5x{name}>", "tensor<3x5xf32>"), want)
    np.testing.assert_array_equal(back, (want - zero) * scale)
    other = kind("i32", [2 * s for s in scales], [0] * count, axis)
    again = run(function("ttir.requantize", f"tensor<3x5x{name}>", f"tensor<3x5x{other}>"), want)
    np.testing.assert_array_equal(again, np.round((want - zero) * scale / (2 * scale)).astype(np.int32))


def test_scales_come_as_operands() -> None:
    name = kind("i8", [0.5, 0.25], [1, 0], 0)
    text = function(
        "ttir.quantize_unrolled", "tensor<2x4xf32>", f"tensor<2x4x{name}>", ", %s0, %s1", "tensor<2xf32>, tensor<2xi32>"
    )
    text = text.replace("%s1) :", "%s1) <{axis = 0 : i32}> :")
    x = RNG.uniform(-9, 9, (2, 4)).astype(np.float32)
    scale, zero = np.array([0.5, 0.25], np.float32), np.array([1, 0], np.int32)
    np.testing.assert_array_equal(
        run(text, x, scale, zero), np.round(x / scale[:, None] + zero[:, None]).astype(np.int32)
    )


def test_the_emitted_program_computes_it_too(tmp_path: Path) -> None:
    name = kind("i8", [0.5], [3], None)
    text = function("ttir.quantize", "tensor<32x32xf32>", f"tensor<32x32x{name}>")
    x = RNG.uniform(-80, 80, (32, 32)).astype(np.float32)
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower()
    np.testing.assert_array_equal(lowered.compile()(x), np.clip(np.round(x / 0.5 + 3), -128, 127))
    lowered.export(tmp_path / "out", x, languages=["python"])
    assert main(["run", str(tmp_path / "out"), "--check"]) in (0, None)


@pytest.mark.parametrize(
    ("op", "given", "made", "said"),
    [
        ("quantize", "3x4xi32", "3x4x!quant.uniform<i8:f32,0.5>", "Input element type must be float, but got 'i32'"),
        ("quantize", "3x4xf32", "3x4xi8", "Output element type must be UniformQuantizedType .*, but got 'i8'"),
        ("dequantize", "3x4xf32", "3x4xf32", "Input element type must be UniformQuantizedType .*, but got 'f32'"),
        ("dequantize", "3x4x!quant.uniform<i8:f32,0.5>", "3x4xi32", "Output element type must be float, but got 'i32'"),
        ("quantize", "3x4xf32", "1x3x4x!quant.uniform<i8:f32,0.5>", "rank of 2 does not match .* rank of 3"),
        ("quantize", "3x4xf32", "3x5x!quant.uniform<i8:f32,0.5>", r"shape \(3,5\) must match .*\(3,4\)"),
        ("quantize", "3x4xf32", "3x4x!quant.uniform<i8:f32:0,{0.5,0.5}>", r"scales \(2\) does not match .* axis \(3\)"),
        ("quantize", "3x4xf32", "3x4x!quant.uniform<i8:f32:2,{0.5,0.5}>", r"axis 2 is out of the range \[0, 2\)"),
        ("quantize", "3x4xf32", "3x4x!quant.uniform<i8:f32,0.5:200>", "Zero point 200 is out of the range .*'i8'"),
        ("quantize", "3x4xf32", "3x4x!quant.uniform<i8:f32,scale>", "scales that are not numbers"),
        ("quantize", "3x4xf32", "3x4x!quant.uniform<i64:f32,0.5>", "stores i64; int32 has to hold it"),
        ("add", "3x4x!quant.uniform<i8:f32,0.5>", "3x4x!quant.uniform<i8:f32,0.5>", "put a ttir.dequantize in front"),
    ],
)  # fmt: skip
def test_types_that_do_not_fit(op: str, given: str, made: str, said: str) -> None:
    text = function(f"ttir.{op}", f"tensor<{given}>", f"tensor<{made}>")
    with pytest.raises((jm.VerifyError, jm.UnsupportedError), match=f"^line 2: ttir.{op}.*{said}"):
        jm.from_mlir(text, jm.make_mesh((1, 1)))


def test_quantized_tensors_are_moved_as_they_are() -> None:
    name = "!quant.uniform<i8:f32, 0.5>"
    text = function("ttir.permute", f"tensor<2x3x{name}>", f"tensor<3x2x{name}>").replace(
        "(%x)", "(%x) <{permutation = array<i64: 1, 0>}>"
    )
    x = RNG.integers(-9, 9, (2, 3)).astype(np.int32)
    np.testing.assert_array_equal(run(text, x), x.T)


def test_a_spelling_is_no_other_type() -> None:
    assert quantized("!quant.uniform<i8:f32:1, {0.5:1, 2.5e-01}>") == quantized(
        "!quant.uniform<i8:f32:1,{0.5:1,0.25:0}>"
    )
    assert quantized("f32") is None
