"""Ops in forms that upstream's texts have: values equal NumPy's, and what is left out is said."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.cli.main import main
from jaxmesh.emit.languages import LOWERED
from jaxmesh.errors import DeviationWarning

RNG = np.random.default_rng(3)


def function(types: str, lines: str, result: str) -> str:
    arguments = ", ".join(f"%{name}: tensor<{kind}>" for name, kind in zip("abcd", types.split(), strict=False))
    return f"func.func @f({arguments}) -> tensor<{result}> {{\n{lines}\n  return %r : tensor<{result}>\n}}\n"


def run(text: str, *arguments: np.ndarray) -> np.ndarray:
    return np.asarray(jm.from_mlir(text, jm.make_mesh((1, 1))).lower().compile()(*arguments))


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# --- attributes beside those of an op --------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ['(%a) {approximate = "tanh"}', "(%a) <{}> {channel_last = 1 : si32}"])
def test_an_attribute_that_upstream_carries_along_is_left_out_with_a_warning(written: str) -> None:
    text = function("4x8xf32", f'  %r = "ttir.gelu"{written} : (tensor<4x8xf32>) -> tensor<4x8xf32>', "4x8xf32")
    x = normal(4, 8)
    with pytest.warns(DeviationWarning, match=r"line 2: ttir.gelu has no attribute '\w+' .*; '\w+' is left out"):
        got = run(text, x)
    np.testing.assert_allclose(got, [[v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in row] for row in x], atol=1e-6)
    with pytest.raises(jm.VerifyError, match="is left out; that is an error when strict"):
        jm.from_mlir(text, jm.make_mesh((1, 1)), strict=True)


@pytest.mark.parametrize("written", ["<{dims = 1 : i32, dim = 0 : si32}>", "{dims = 1 : i32, dim = 0 : si32}"])
def test_a_misspelled_attribute_is_an_error(written: str) -> None:
    line = f'  %r = "ttir.concat"(%a, %a) {written} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>'
    with pytest.raises(
        jm.VerifyError,
        match=r"^line 2: ttir.concat has no attribute 'dims' in tt-mlir 19c86fca; its attributes are: dim",
    ):
        jm.from_mlir(function("4xf32", line, "8xf32"), jm.make_mesh((1, 1)))


# --- images whose batch, height and width are one dim ----------------------------------------------------------------

_WINDOWS = "dilation = array<i32: 1, 1>, padding = array<i32: 1, 1, 1, 1>, stride = array<i32: 2, 1>"
_FLAT = "flattened_compat_info = #ttir<flattened_compat batch_size = 2, input_height = 6, input_width = 5>"
_IMAGES = {
    "conv2d": ("4x3x3x3xf32", f"{_WINDOWS}, groups = 1 : i32", (3, 5, 4)),
    "max_pool2d": ("", f"{_WINDOWS}, kernel = array<i32: 3, 3>, ceil_mode = false", (3, 5, 3)),
    "avg_pool2d": (
        "", f"{_WINDOWS}, kernel = array<i32: 3, 3>, ceil_mode = false, count_include_pad = true", (3, 5, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _IMAGES)
def test_flattened_images_are_images(name: str) -> None:
    weight, attributes, (height, width, channels) = _IMAGES[name]
    operands, more = ("(%a, %b)", f", tensor<{weight}>") if weight else ("(%a)", "")

    def text(given: str, made: str, extra: str) -> str:
        kinds = f"(tensor<{given}>{more}) -> tensor<{made}>"
        line = f'  %r = "ttir.{name}"{operands} <{{{attributes}{extra}}}> : {kinds}'
        return function(f"{given} {weight}", line, made)

    x, values = normal(2, 6, 5, 3), [normal(4, 3, 3, 3)] if weight else []
    flat = f"1x1x{2 * height * width}x{channels}xf32"
    want = run(text("2x6x5x3xf32", f"2x{height}x{width}x{channels}xf32", ""), x, *values)
    got = run(text("1x1x60x3xf32", flat, f", {_FLAT}"), x.reshape(1, 1, 60, 3), *values)
    np.testing.assert_array_equal(got, want.reshape(got.shape))
    with pytest.raises(jm.VerifyError, match=r"flattened_compat_info says images of \[2, 6, 5\], but the operand is"):
        jm.from_mlir(text("1x1x40x3xf32", flat, f", {_FLAT}"), jm.make_mesh((1, 1)))
    with pytest.raises(jm.VerifyError, match=r"but the declared type is \[1, 1, 7, "):
        jm.from_mlir(text("1x1x60x3xf32", f"1x1x7x{channels}xf32", f", {_FLAT}"), jm.make_mesh((1, 1)))


# --- products with a function of their result ------------------------------------------------------------------------


def test_a_product_applies_its_activation() -> None:
    kinds = "(tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>"
    line = '  %r = "ttnn.matmul"(%a, %b) <{activation = "{NAME}", transpose_a = false, transpose_b = false}> : ' + kinds
    text = function("4x8xf32 8x2xf32", line, "4x2xf32")
    a, b = normal(4, 8), normal(8, 2)
    np.testing.assert_allclose(run(text.replace("{NAME}", "relu"), a, b), np.maximum(a @ b, 0), atol=1e-5)
    with pytest.raises(jm.UnsupportedError, match=r"^line 2: ttnn.matmul: activation = 'pad' is not a function of one"):
        jm.from_mlir(text.replace("{NAME}", "pad"), jm.make_mesh((1, 1)))


# --- attributes that must be empty -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "subtract", "maximum", "eq", "bitwise_and", "atan2", "divide", "pow_tensor"])
def test_an_empty_list_of_activations_is_read_and_not_kept(name: str) -> None:
    kind = "4x4xi32" if name == "bitwise_and" else "4x4xf32"
    line = f'  %r = "ttnn.{name}"(%a, %b) <{{activations = []}}> : (tensor<{kind}>, tensor<{kind}>) -> tensor<{kind}>'
    text = function(f"{kind} {kind}", line, kind)
    traced, without = (jm.from_mlir(t, jm.make_mesh((1, 1))) for t in (text, text.replace(" <{activations = []}>", "")))
    assert [traced.lower().as_text(t) for t in LOWERED] == [without.lower().as_text(t) for t in LOWERED]


LATER = "<{{activations = [{0}], input_tensor_a_activations = [{1}], input_tensor_b_activations = [{2}]}}>"


def fused(after: str, first: str, second: str) -> str:
    names = [", ".join(f"#ttnn.unary_with_param<{f}>" for f in row.split(" + ") if f) for row in (after, first, second)]
    line = f'  %r = "ttnn.subtract"(%a, %b) {LATER.format(*names)} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>'
    return function("4xf32 4xf32", line, "4xf32")


def test_functions_of_operands_and_of_the_result_are_applied() -> None:
    x, y = np.array([1.4, -2.6, 3.5, 4.0], np.float32), np.array([0.5, 2.0, 3.0, 9.0], np.float32)
    text = fused("op_type = abs + op_type = log1p", "op_type = round, params = [0.000000e+00 : f32]", "op_type = rsqrt")
    want = np.log1p(np.abs(np.round(x) - 1 / np.sqrt(y)))
    np.testing.assert_allclose(jm.from_mlir(text, jm.make_mesh((1, 1))).lower().compile()(x, y), want, rtol=1e-6)


def test_functions_whose_ops_have_other_names_are_applied() -> None:
    x, y = np.array([0, 1, np.inf, 0], np.float32), np.array([0, 0, 1, 1], np.float32)
    names = [f"#ttnn.unary_with_param<op_type = {name}>" for name in ("is_finite", "logical_not_unary")]
    line = f'  %r = "ttnn.logical_and"(%a, %b) {LATER.format("", *names)} : '
    text = function("4xf32 4xf32", f"{line}(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>", "4xf32")
    found = jm.from_mlir(text, jm.make_mesh((1, 1))).lower().compile()(x, y)
    np.testing.assert_array_equal(found, np.isfinite(x) & (y == 0))


@pytest.mark.parametrize("function", ["op_type = pad", "op_type = relu_max, params = [6.000000e+00 : f32]"])
def test_a_function_of_another_kind_is_an_error(function: str) -> None:
    with pytest.raises(jm.UnsupportedError, match=r"^line 2: ttnn\.subtract: .*separate op"):
        jm.from_mlir(fused(function, "", ""), jm.make_mesh((1, 1)))


@pytest.mark.parametrize("blank", ["[]", "false", '""', '"none"', "{}"])
def test_an_unknown_attribute_that_asks_for_nothing_is_left_out(blank: str) -> None:
    line = f'  %r = "ttnn.add"(%a, %a) <{{foo = {blank}}}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>'
    x = np.arange(4, dtype=np.float32)
    traced = jm.from_mlir(function("4xf32", line, "4xf32"), jm.make_mesh((1, 1)), strict=True)
    np.testing.assert_array_equal(traced.lower().compile()(x), 2 * x)


def test_an_unknown_attribute_is_an_error_of_its_own_dialect() -> None:
    line = '  %r = "ttnn.add"(%a, %a) <{foo = 1 : i32}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>'
    with pytest.raises(
        jm.VerifyError, match=r"ttnn\.add has no attribute 'foo' in tt-mlir 19c86fca; it has no attributes\."
    ):
        jm.from_mlir(function("4xf32", line, "4xf32"), jm.make_mesh((1, 1)))


# --- element types that are declared ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "given", "made", "oracle"),
    [
        ("relu", "f32", "i32", lambda x: np.maximum(x, 0).astype(np.int32)),
        ("abs", "i32", "f32", lambda x: np.abs(x).astype(np.float32)),
        ("erf", "i32", "i32", lambda x: np.vectorize(math.erf)(x).astype(np.float32).astype(np.int32)),
    ],
)
def test_a_result_is_cast_to_its_declared_type_with_a_warning(
    op: str, given: str, made: str, oracle: Callable[..., Any]
) -> None:
    kinds = f"(tensor<4x8x{given}>) -> tensor<4x8x{made}>"
    text = function(f"4x8x{given}", f'  %r = "ttir.{op}"(%a) : {kinds}', f"4x8x{made}")
    x = (3 * normal(4, 8)).astype({"f32": np.float32, "i32": np.int32}[given])
    with pytest.warns(DeviationWarning, match=rf"line 2: ttir.{op}: the result is .*, and the declared type .*; it is"):
        got = run(text, x)
    np.testing.assert_array_equal(got, oracle(x))
    assert got.dtype == oracle(x).dtype
    with pytest.raises(jm.VerifyError, match="it is cast; that is an error when strict"):
        jm.from_mlir(text, jm.make_mesh((1, 1)), strict=True)


def test_a_constant_may_be_written_in_another_type() -> None:
    line = '  %r = "ttir.constant"() <{value = dense<[[1, 2], [3, 4]]> : tensor<2x2xsi32>}> : () -> tensor<2x2xf32>'
    text = function("", line, "2x2xf32")
    np.testing.assert_array_equal(run(text), np.array([[1, 2], [3, 4]], np.float32))
    assert "dense<[[1.000000e+00, 2.000000e+00]" in jm.from_mlir(text, jm.make_mesh((1, 1))).as_text()


# --- attention and argmax --------------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, scale: float, seen: Any, sink: Any) -> Any:
    out = np.zeros(q.shape, np.float64)
    for b, h, i in np.ndindex(q.shape[:3]):
        scores = {j: float(q[b, h, i] @ k[b, h, j]) * scale for j in range(k.shape[2]) if seen[i, j]}
        total = sum(math.exp(s) for s in scores.values()) + (0 if sink is None else math.exp(sink[0, h, 0, 0]))
        out[b, h, i] = sum(math.exp(s) / total * v[b, h, j].astype(np.float64) for j, s in scores.items())
    return out


@pytest.mark.parametrize(
    ("queries", "causal", "window", "sinks"),
    [(6, True, 3, False), (6, False, 3, False), (6, False, 4, True), (1, False, 4, False), (6, True, None, True)],
)
def test_attention_in_a_window_and_with_a_sink(queries: int, causal: bool, window: int | None, sinks: bool) -> None:
    q, k, v, sink = normal(1, 2, queries, 4), normal(1, 2, 6, 4), normal(1, 2, 6, 4), normal(1, 2, 1, 1)
    rows, columns = np.indices((queries, 6))
    near = np.abs(rows - columns) <= (window or 99) // 2
    seen = (rows >= columns) & (rows - columns < (window or 99)) if causal else near
    if queries == 1 and window:
        seen = columns >= 6 - window
    shapes = [f"1x2x{queries}x4xf32", "1x2x6x4xf32", "1x2x6x4xf32", "1x2x1x1xf32"][: 3 + sinks]
    sizes = f"operandSegmentSizes = array<i32: 1, 1, 1, 0, {int(sinks)}>"
    attributes = f"is_causal = {str(causal).lower()}, {sizes}, scale = 0.5 : f32"
    if window:
        attributes += f", sliding_window_size = {window} : ui32"
    kinds = f"({', '.join(f'tensor<{s}>' for s in shapes)}) -> tensor<{shapes[0]}>"
    names = "%a, %b, %c, %d"[: len(shapes) * 4 - 2]
    line = f'  %r = "ttir.scaled_dot_product_attention"({names}) <{{{attributes}}}> : {kinds}'
    got = run(function(" ".join(shapes), line, shapes[0]), *[q, k, v, sink][: len(shapes)])
    np.testing.assert_allclose(got, attention(q, k, v, 0.5, seen, sink if sinks else None), atol=1e-5)


@pytest.mark.parametrize(("dims", "keeps"), [((0, 2), False), ((-2, 2), True), ((0, 1, 2), False)])
def test_argmax_over_several_dims_counts_along_their_join(dims: tuple[int, ...], keeps: bool) -> None:
    x = normal(4, 5, 6)
    over = sorted(d % 3 for d in dims)
    kept = [d for d in range(3) if d not in over]
    want = np.argmax(x.transpose(*kept, *over).reshape(*[x.shape[d] for d in kept], -1), -1)
    want = np.expand_dims(want, tuple(over)) if keeps else want
    made = "x".join(map(str, (*want.shape, "i32")))
    listed = ", ".join(f"{d} : i32" for d in dims)
    attributes = f"dim_arg = [{listed}], keep_dim = {str(keeps).lower()}"
    line = f'  %r = "ttir.argmax"(%a) <{{{attributes}}}> : (tensor<4x5x6xf32>) -> tensor<{made}>'
    np.testing.assert_array_equal(run(function("4x5x6xf32", line, made), x), want)


def test_a_text_of_private_functions_alone_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = '  %r = "ttir.abs"(%a) : (tensor<4xf32>) -> tensor<4xf32>'
    text = function("4xf32", line, "4xf32").replace("@f", "private @{NAME}")
    (tmp_path / "two.mlir").write_text(text.replace("{NAME}", "f") + text.replace("{NAME}", "g"))
    assert main(["opt", str(tmp_path / "two.mlir")]) in (0, None)
    printed = capsys.readouterr().out
    assert "// @f (line 1)" in printed
    assert "// @g (line 5)" in printed


# --- windows of TTNN -------------------------------------------------------------------------------------------------


def test_the_padding_of_a_pool_has_one_order_in_mlir_and_another_in_calls() -> None:
    """MLIR has (top, left, bottom, right), as `runtime/lib/ttnn/operations/pool/pool2d.cpp` of tt-mlir reads it."""
    x = jnp.asarray(normal(2, 8, 9, 4), jnp.bfloat16)

    def pool(x: Any) -> Any:
        edges = ((0, 0), (0, 1), (1, 1), (0, 0))
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)

    lowered = jm.jit(pool, mesh=jm.make_mesh((1, 1))).lower(x)
    text = lowered.as_text("ttnn")
    assert "padding = array<i32: 0, 1, 1, 1>" in text
    assert "padding=[0, 1, 1, 1]" in lowered.as_text("python")
    np.testing.assert_array_equal(run(text, x), np.asarray(pool(x)))
    # Text and call differ where the edges of height and of width do.
    wider = text.replace("padding = array<i32: 0, 1, 1, 1>", "padding = array<i32: 1, 1, 0, 1>")
    assert "padding=[1, 0, 1, 1]" in jm.from_mlir(wider, jm.make_mesh((1, 1))).lower().as_text("python")


def test_the_padding_of_a_transposed_convolution_has_the_order_of_ttir() -> None:
    """Upstream's compiler prints it so: the declared shapes of its texts hold for (top, left, bottom, right) alone."""

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_transpose(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w = normal(2, 6, 5, 3), normal(3, 3, 3, 8)
    text = jm.jit(convolve, mesh=jm.make_mesh((1, 1))).lower(x, w).as_text("ttnn")
    # 13 rows of 11 columns, without one row at the top, one column at the left, and two at the right.
    padded = text.replace(" padding = array<i32: 0, 0>", " padding = array<i32: 1, 1, 0, 2>")
    padded = padded.replace("2x13x11x8", "2x12x8x8").replace("1x1x286x8", "1x1x192x8")
    padded = padded.replace("13 : i32, 11 : i32", "12 : i32, 8 : i32")
    np.testing.assert_allclose(run(padded, x, w), np.asarray(convolve(x, w))[:, 1:, 1:-2], rtol=1e-5, atol=1e-5)
    lowered = jm.from_mlir(padded, jm.make_mesh((1, 1))).lower()
    assert " padding = array<i32: 1, 1, 0, 2>" in lowered.as_text("ttnn")
    assert "padding=[1, 0, 1, 2]" in lowered.as_text("python")


@pytest.mark.parametrize("function", ["<op_type = relu>", '"relu"'])
def test_a_convolution_applies_the_activation_of_its_config(function: str) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w = normal(2, 6, 6, 3), normal(3, 3, 3, 8)
    text = jm.jit(convolve, mesh=jm.make_mesh((1, 1))).lower(x, w).as_text("ttnn")
    config = f"conv2d_config = #ttnn.conv2d_config<weights_dtype = f32, activation = {function}>, "
    fused = re.sub(r'("ttnn.conv2d"\(.*?<\{batch_size = \d+ : i32, )', rf"\1{config}", text)
    assert fused != text
    np.testing.assert_array_equal(run(fused, x, w), np.maximum(run(text, x, w), 0))
    with pytest.raises(jm.UnsupportedError, match=r"heaviside.* is not a function of one tensor"):
        run(fused.replace("relu", "heaviside"), x, w)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_a_convolution_along_one_dim(order: tuple[int, int, int], groups: int) -> None:
    batch, length, channels, outs, size, stride, dilation, (low, high) = 2, 9, 4, 6, 3, 2, 2, (1, 3)
    x, w, bias = normal(batch, length, channels), normal(outs, channels // groups, size), normal(1, 1, outs)
    count = (length + low + high - dilation * (size - 1) - 1) // stride + 1
    padded = np.pad(x, ((0, 0), (low, high), (0, 0)))
    want = np.zeros((batch, count, outs), np.float32) + bias
    for n, i, o, k in np.ndindex(batch, count, outs, size):
        first = o // (outs // groups) * (channels // groups)
        row = padded[n, i * stride + k * dilation, first : first + channels // groups]
        want[n, i, o] += row @ w[o, :, k]

    def kind(array: np.ndarray) -> str:
        return "x".join(map(str, array.shape)) + "xf32"

    turned = [np.transpose(a, order) for a in (x, bias, want)]
    dims = f"batch_dim = 0 : i64, length_dim = {order.index(1)} : i64, channel_dim = {order.index(2)} : i64"
    window = f"stride = {stride} : i32, padding = array<i32: {low}, {high}>, dilation = {dilation} : i32"
    kinds = [kind(a) for a in (turned[0], w, turned[1], turned[2])]
    text = function(
        " ".join(kinds[:3]),
        f'  %r = "ttir.conv1d"(%a, %b, %c) <{{{window}, groups = {groups} : i32, {dims}}}> : '
        f"({', '.join(f'tensor<{k}>' for k in kinds[:3])}) -> tensor<{kinds[3]}>",
        kinds[3],
    )
    np.testing.assert_allclose(run(text, turned[0], w, turned[1]), turned[2], atol=1e-5)
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower().as_text("ttnn")
    assert '"ttnn.conv1d"' in lowered
    np.testing.assert_allclose(run(lowered, turned[0], w, turned[1]), turned[2], atol=1e-5)
    with pytest.raises(jm.VerifyError, match="padding has 1 or 2 entries"):
        run(text.replace(f"array<i32: {low}, {high}>", "array<i32: 1, 2, 3>"), turned[0], w, turned[1])


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "mode"),
    [
        ((1, 1, 1), (0, 0, 0), (1, 1, 1), "constant"),
        ((1, 2, 1), (1, 0, 2), (2, 1, 1), "constant"),
        ((1, 2, 1), (1, 0, 2), (1, 1, 1), "edge"),
    ],
)
def test_a_convolution_along_three_dims(
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], mode: Any
) -> None:
    x, w = normal(2, 5, 6, 4, 3), normal(5, 3, 2, 3, 2)
    padded = np.pad(x, [(0, 0), *((n, n) for n in padding), (0, 0)], mode)
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(padded.shape[1:4], dilation, w.shape[2:], stride, strict=True)
    ]
    want = np.zeros((2, *sizes, 5), np.float32)
    for at in np.ndindex(*sizes):
        for offset in np.ndindex(*w.shape[2:]):
            place = tuple(i * s + k * d for i, s, k, d in zip(at, stride, offset, dilation, strict=True))
            want[:, *at] += padded[:, *place] @ w[:, :, *offset].T
    rows = [f"{k} = array<i32: {', '.join(map(str, v))}>" for k, v in
            {"stride": stride, "padding": padding, "dilation": dilation}.items()]  # fmt: skip
    rows += ['padding_mode = "replicate"'] if mode == "edge" else []
    kinds = ["x".join(map(str, a.shape)) + "xf32" for a in (x, w, want)]
    text = function(
        " ".join(kinds[:2]),
        f'  %r = "ttir.conv3d"(%a, %b) <{{{", ".join(rows)}, groups = 1 : i32}}> : '
        f"({', '.join(f'tensor<{k}>' for k in kinds[:2])}) -> tensor<{kinds[2]}>",
        kinds[2],
    )
    np.testing.assert_allclose(run(text, x, w), want, atol=1e-5)
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower().as_text("ttnn")
    # TTNN's operation has no dilation in the known version.
    assert ('"ttnn.prepare_conv3d_weights"' in lowered) is (dilation == (1, 1, 1))
    np.testing.assert_allclose(run(lowered, x, w), want, atol=1e-5)


def test_the_places_of_a_pool_are_of_the_first_largest_elements() -> None:
    x = np.random.default_rng(0).integers(0, 5, (2, 5, 6, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)), constant_values=-np.inf)
    want, places = np.zeros((2, 3, 3, 3), np.float32), np.zeros((2, 3, 3, 3), np.int32)
    for n, i, j, c in np.ndindex(want.shape):
        window = padded[n, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2, c]
        row, column = divmod(int(np.argmax(window)), 2)
        want[n, i, j, c], places[n, i, j, c] = window.max(), (2 * i + row - 1) * 6 + 2 * j + column
    window = "kernel = array<i32: 3, 2>, stride = array<i32: 2, 2>, dilation = array<i32: 1, 1>"
    image, small = "tensor<2x5x6x3xf32>", "tensor<2x3x3x3xf32>"
    text = function(
        "2x5x6x3xf32",
        f"  %0 = ttir.empty() : {small}\n  %1 = ttir.empty() : tensor<2x3x3x3xi32>\n"
        f'  %r, %k = "ttir.max_pool2d_with_indices"(%a, %0, %1) <{{{window}, padding = array<i32: 1, 0, 1, 0>, '
        f"ceil_mode = false}}> : ({image}, {small}, tensor<2x3x3x3xi32>) -> ({small}, tensor<2x3x3x3xi32>)",
        "2x3x3x3xf32",
    )
    np.testing.assert_array_equal(run(text, x), want)
    numbers = text.replace("return %r", "return %k").replace("-> tensor<2x3x3x3xf32> {", "-> tensor<2x3x3x3xi32> {")
    numbers = numbers.replace("return %k : tensor<2x3x3x3xf32>", "return %k : tensor<2x3x3x3xi32>")
    np.testing.assert_array_equal(run(numbers, x), places)
    lowered = jm.from_mlir(numbers, jm.make_mesh((1, 1))).lower().as_text("ttnn")
    assert '"ttnn.max_pool2d_with_indices"' in lowered
    np.testing.assert_array_equal(run(lowered, x), places)


def test_an_optimization_barrier_gives_its_operands() -> None:
    x, y = normal(4), normal(4)
    kind = "tensor<4xf32>"
    text = function(
        "4xf32 4xf32",
        f'  %p:2 = "ttcore.optimization_barrier"(%a, %b) : ({kind}, {kind}) -> ({kind}, {kind})\n'
        f'  %r = "ttir.subtract"(%p#0, %p#1) : ({kind}, {kind}) -> {kind}',
        "4xf32",
    )
    np.testing.assert_array_equal(run(text, x, y), x - y)


def test_an_argument_of_64_unsigned_bits_is_read_as_pairs_of_32() -> None:
    local = "ttcore.local_shape = #ttcore<local_shape local_shape = tensor<4xui64>>"
    status = "ttcore.shard_status = #ttcore.shard_status<presharded>"
    text = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>}} {{
  func.func @main(%a: tensor<4x2xui32> {{{local}, {status}}}) -> tensor<4x2xui32> {{
    return %a : tensor<4x2xui32>
  }}
}}"""
    (pairs,) = jm.from_mlir(text).in_avals
    assert (pairs.shape, pairs.dtype) == ((4, 2), np.uint32)


def test_an_integer_power_and_indices_of_floats_are_converted() -> None:
    """As tt-mlir's workarounds do: the library mixes no types in a power, and takes indices of UINT32."""
    text = function(
        "4x32xf32 4x32xi32",
        '  %r = "ttir.pow"(%a, %b) : (tensor<4x32xf32>, tensor<4x32xi32>) -> tensor<4x32xf32>',
        "4x32xf32",
    )
    x, n = np.linspace(-2, 2, 128, dtype=np.float32).reshape(4, 32), np.arange(128, dtype=np.int32).reshape(4, 32) % 5
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower().as_text("ttnn")
    np.testing.assert_allclose(run(lowered, x, n), x**n, rtol=1e-5)

    kinds = "1x32xbf16 8x32xbf16 1x32x32xbf16"
    tensors = ", ".join(f"tensor<{kind}>" for kind in kinds.split())
    text = function(
        kinds, f'  %r = "ttir.embedding_backward"(%a, %b, %c) : ({tensors}) -> tensor<8x32xbf16>', "8x32xbf16"
    )
    ids = np.arange(32).reshape(1, 32) % 8
    gradient = np.arange(32 * 32).reshape(1, 32, 32) % 7
    want = np.zeros((8, 32))
    np.add.at(want, ids[0], gradient[0])
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower().as_text("ttnn")
    arrays = [a.astype(jnp.bfloat16) for a in (ids, np.zeros((8, 32)), gradient)]
    np.testing.assert_array_equal(np.asarray(run(lowered, *arrays), np.float64), want)
