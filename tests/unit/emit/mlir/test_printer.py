"""MLIR text: jaxlib parses it and prints it back unchanged, and the importer reads what was written."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects import ttir, ttnn
from jaxmesh.dialects.attributes import Attribute
from jaxmesh.dialects.op import OpDef
from jaxmesh.dialects.program import Port, Program, Type
from jaxmesh.emit.mlir.attributes import attribute
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.mlir.spelling import Spelling
from jaxmesh.errors import MissingRuleError, UnsupportedError, VerifyError
from jaxmesh.frontends.mlir.module import load_text
from jaxmesh.frontends.mlir.text import Text
from jaxmesh.sharding.configs import MeshMapperConfig, PlacementReplicate
from tests import GOLDEN
from tests.generators.drafts import to_ttnn
from tests.generators.flat_programs import flat_of
from tests.generators.mlir_programs import (
    BOOL,
    F32,
    GOLDENS,
    HANDLE,
    I32,
    add,
    is_stable,
    long_program,
    printed,
    program,
    read,
    shard,
    tensor,
)
from tests.generators.oracles import calls_made, cases

pytestmark = pytest.mark.slow(but_one_in=2)


# --- every row -------------------------------------------------------------------------------------------------------


DTYPES = [np.dtype(t) for t in ("float32", "int32", "uint32", "bool", "float16", "uint8", "int8")] + [
    jnp.dtype(t) for t in ("bfloat16", "float8_e4m3fn", "int4", "float8_e5m2")
]
ROW_NAMES = [f"ttir.{n}" for n in sorted(ttir.OPS)] + [f"ttnn.{n}" for n in sorted(ttnn.OPS)]


def row_named(name: str) -> OpDef:
    dialect, _, short = name.partition(".")
    return ttir.OPS[short] if dialect == "ttir" else ttnn.OPS[short]


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.name in ("int4", "uint4"):
        return rng.integers(0, 7, shape).astype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape)


def random_value(rng: np.random.Generator, a: Attribute, kind: np.dtype[Any]) -> Any:
    """A value that an attribute may have, as the importer gives it."""
    numbers = tuple(int(n) for n in rng.integers(0, 99, rng.integers(0, 5)))
    match a.form:
        case "si32" | "i32" | "si64" | "i64":
            number = int(rng.integers(-9, 2**31))
            return numbers if a.kind == "any" and rng.integers(2) else number
        case "si8":
            return int(rng.integers(-128, 128))
        case "ui32":
            return int(rng.integers(0, 2**32))
        case "f32":
            return float(np.float32(rng.normal() * 10.0 ** rng.integers(-40, 38)))
        case "number":
            choices = [1, -7, 0.1, math.inf, -0.0, 2**31, -(2**31), 1e30]
            value = choices[rng.integers(len(choices))]
            return float(np.float32(value)) if isinstance(value, float) else value
        case "bool":
            return bool(rng.integers(2))
        case "string":
            return "".join(map(chr, rng.integers(1, 0x2FF, 5)))
        case "i32s" | "i64s" | "i32a" | "edges" | "any":
            return numbers
        case "shape":
            return numbers
        case "bools":
            return tuple(bool(n % 2) for n in numbers)
        case "dense":
            return random_array(rng, kind, tuple(rng.integers(1, 4, 2)) if rng.integers(2) else (37, 3))
        case "dense_i64":
            return rng.integers(-1, 8, (3, 2))
        case "convolution_layout":
            return "#ttir<convolution_layout input_batch = 0, input_spatial_dimensions = 2x3>"
        case enum:
            assert enum.startswith("#"), f"{a.name}: form {enum} is not known here"
            return "sum"


def random_op(rng: np.random.Generator, to: Program, name: str) -> None:
    row = row_named(name)
    least, most = row.operands
    count = int(rng.integers(least, (most if most is not None else least + 3) + 1))
    operands: list[int | None] = [int(rng.integers(len(to.arguments))) for _ in range(count)]
    if most is not None and most - least >= 2:
        operands = [v if i < least or rng.integers(2) else None for i, v in enumerate(operands)]
    low, high = row.results
    kinds = [tensor(3, 2, dtype=DTYPES[rng.integers(len(DTYPES))]) for _ in range(high if high is not None else low)]
    attributes = {
        a.name: random_value(rng, a, kinds[0].dtype if kinds else F32)
        for a in row.attributes
        if not a.must_be_empty and (a.required or rng.integers(2))
    }
    if name.endswith(".constant"):
        kinds = [Type(attributes["value"].shape, attributes["value"].dtype)]
    add(to, name, operands, *kinds, **attributes)


def same_value(got: Any, want: Any) -> bool:
    if not isinstance(want, np.ndarray):
        return type(got) is type(want) and got == want
    whole = np.broadcast_to(got, want.shape)
    return got.dtype == want.dtype and whole.tobytes() == want.tobytes()


def assert_read_back(wrote: Program, text: str) -> None:
    """The importer decodes the very ops, operands, attributes and types that were written."""
    decoded = read(text).program
    assert decoded.name == wrote.name
    assert len(decoded.ops) == len(wrote.ops)
    numbers = {a.value: i for i, a in enumerate(wrote.arguments)}
    for got, op in zip(decoded.ops, wrote.ops, strict=True):
        assert got.name == op.name
        assert got.used == tuple(numbers[v] for v in op.used)
        into = row_named(op.name).overwritten if op.name in ROW_NAMES else None
        if into is not None:
            # MLIR writes no result of it: the operand's name is the result from there on.
            numbers = {v: got.results[0] if n == got.used[into] else n for v, n in numbers.items()}
        numbers.update(zip(op.results, got.results, strict=True))
        if op.name != "ttnn.get_device":
            types = [wrote.types[v] for v in (op.results if into is None else op.used[into : into + 1])]
            read_types = [decoded.types[v] for v in got.results]
            assert [(t.shape, t.dtype) for t in read_types] == [(t.shape, t.dtype) for t in types]
        for key, want in op.attributes.items():
            number = got.attributes[key]
            if op.name.endswith(".pad") and key == "value" and decoded.types[got.results[0]].dtype.kind in "biu":
                # A whole number for whole numbers, although MLIR writes the numbers of all types as floats.
                assert isinstance(number, int) or not number.is_integer()
                number = float(number)
            assert same_value(number, want), (op.name, key, got, want)
    assert [r.value for r in decoded.results] == [numbers[r.value] for r in wrote.results]


@pytest.mark.slow(but_one_in=1)
@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
def test_every_row_prints_and_reads_back(dialect: str) -> None:
    made = program(tensor(2, 3), tensor(dtype=BOOL), tensor(4, dtype="bfloat16"))
    for name in ROW_NAMES:
        rng = np.random.default_rng(len(name))
        for _ in range(12 if name.startswith(dialect) else 0):
            random_op(rng, made, name)
    assert_read_back(made, is_stable(made))


def test_every_attribute_has_a_known_form() -> None:
    rng = np.random.default_rng(0)
    for name in ROW_NAMES:
        for a in row_named(name).attributes:
            # No program keeps what must be empty.
            assert a.must_be_empty or random_value(rng, a, F32) is not None


# --- numbers and constants -------------------------------------------------------------------------------------------

FLOATS = [
    0.0,
    -0.0,
    1.0,
    0.1,
    -2.5,
    1e-5,
    1e22,
    3.4028235e38,
    1e-45,
    123456.789,
    2.0**24,
    math.inf,
    -math.inf,
    math.nan,
]


def test_floats_print_as_mlir_does() -> None:
    made = program(tensor(2))
    for value in FLOATS:
        add(made, "ttir.full", [], tensor(2), shape=(2,), fill_value=value)
    text = is_stable(made)
    for spelled in ("1.000000e+00 : f32", "-0.000000e+00 : f32", "9.99999974E-6 : f32", "0x7F800000 : f32"):
        assert f"fill_value = {spelled}" in text
    got = [op.attributes["fill_value"] for op in read(text).program.ops]
    np.testing.assert_array_equal(np.array(got), np.array(FLOATS, np.float32).astype(np.float64))
    assert math.copysign(1, got[1]) == -1


def test_numbers_keep_their_value() -> None:
    made = program(tensor(2))
    for value in (0, -(2**31), 2**31 - 1, 2**32 - 1, -(2**40), 2**64 - 1):
        add(made, "ttir.full", [], tensor(2, dtype=I32), shape=(2,), fill_value=value)
    add(made, "ttir.full", [], tensor(2, dtype="float64"), shape=(2,), fill_value=0.1)
    add(made, "ttir.full", [], tensor(2, dtype="float64"), shape=(2,), fill_value=0.5)
    add(made, "ttir.pad", [0], tensor(2), padding=(0, 0), value=-7)
    add(made, "ttir.pad", [0], tensor(2), padding=(0, 0), value=2**24 + 1)
    text = is_stable(made)
    for spelled in ("-2147483648 : i32", "4294967295 : i64", "18446744073709551615 : ui64", "1.000000e-01 : f64",
                    "5.000000e-01 : f32", "-7.000000e+00 : f32", "16777217 : i32"):  # fmt: skip
        assert f"= {spelled}" in text


ELEMENTS = [*DTYPES, *map(np.dtype, ("float64", "int64", "uint64", "int16", "uint16"))] + [
    jnp.dtype(t) for t in ("uint4", "int2", "uint2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float4_e2m1fn")
]


@pytest.mark.parametrize("dtype", ELEMENTS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5,), (2, 3, 2), (10, 10), (101,), (7, 33)], ids=str)
def test_constants_keep_every_bit(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(dtype.name) + math.prod(shape))
    if dtype.name in ("int2", "int4", "uint2", "uint4"):
        low, high = (-2, 2) if dtype.name == "int2" else (-8, 8) if dtype.name == "int4" else (0, 4)
        value = rng.integers(low, high, shape).astype(dtype)
    elif dtype.name == "float4_e2m1fn":
        value = rng.integers(0, 16, shape).astype(np.uint8).view(dtype)
    else:
        value = random_array(rng, dtype, shape)
    splat = np.broadcast_to(value.reshape(-1)[0], shape) if value.size else value
    made = program()
    for one in (value, splat):
        made.results.append(Port(add(made, "ttir.constant", [], Type(shape, dtype), value=one), False))
    text = is_stable(made)
    assert ('"0x' in text) == (value.size > 100)
    for op, want in zip(read_wide(text).program.ops, (value, splat), strict=True):
        assert same_value(op.attributes["value"], want)


def read_wide(text: str) -> Text:
    with jax.enable_x64(True):
        return read(text)


def test_what_cannot_be_said() -> None:
    def refused(error: type[Exception], match: str, name: str, /, dtype: Any = F32, **attributes: Any) -> None:
        made = program(tensor(2))
        add(made, name, [0], tensor(2, dtype=dtype), **attributes)
        with pytest.raises(error, match=match):
            mlir_text(made)

    refused(MissingRuleError, r"ttir\.nothing.*has no definition", "ttir.nothing")
    refused(MissingRuleError, r"stablehlo\.add", "stablehlo.add")
    refused(VerifyError, r"ttir\.relu has no attribute 'alpha'; it has no attributes\.", "ttir.relu", alpha=1.0)
    refused(VerifyError, r"ttir\.concat: attribute 'dim': 4294967296 does not fit si32", "ttir.concat", dim=2**32)
    refused(VerifyError, r"'cluster_axis': -1 does not fit ui32, whose range is 0 to", "ttir.mesh_partition", dim=0,
            cluster_axis=-1)  # fmt: skip
    refused(VerifyError, r"'keep_dim': 1 is not a truth value", "ttir.sum", keep_dim=1)
    refused(
        VerifyError,
        r"'reduce_type': 'a> b' is not an identifier",
        "ttir.all_reduce",
        reduce_type="a> b",
        cluster_axis=0,
    )
    rows: dict[str, Any] = dict.fromkeys(("window_strides", "padding", "input_dilation", "weight_dilation"), (1, 1))
    refused(VerifyError, r"is not a #ttir<convolution_layout", "ttir.convolution", convolution_layout='#ttir<"}',
            **rows, window_reversal=(False, False))  # fmt: skip
    refused(VerifyError, r"ttir\.full needs the attribute 'shape'; it is missing", "ttir.full", fill_value=1.0)
    refused(VerifyError, r"True is a truth value", "ttir.full", shape=(2,), fill_value=True)
    refused(UnsupportedError, r"complex64 has no text: TTIR", "ttir.relu", dtype="complex64")
    made = program(tensor(2))
    add(made, "ttir.rms_norm", [None], tensor(2), normalized_shape=(2,))
    with pytest.raises(VerifyError, match=r"ttir\.rms_norm takes 1 operands and up to 2 more"):
        mlir_text(made)


# --- optional operands -----------------------------------------------------------------------------------------------


def test_segments_are_written_where_two_operands_may_be_left_out() -> None:
    made = program(*[tensor(4, 8)] + [tensor(8)] * 2)
    for operands in ((0, 1, 2), (0, 1), (0, None, 2), (0,), (0, None, None)):
        add(made, "ttir.layer_norm", operands, tensor(4, 8), normalized_shape=(8,), epsilon=1e-5)
    add(made, "ttir.linear", (0, 0, None), tensor(4, 4), transpose_a=False, transpose_b=True)
    add(made, "ttir.linear", (0, 0, 1), tensor(4, 4), transpose_b=True)
    lines = is_stable(made).splitlines()[2:]
    found = [line.split("operandSegmentSizes = ")[1].split(">")[0] for line in lines[:5]]
    assert found == [f"array<i32: {s}" for s in ("1, 1, 1", "1, 1, 0", "1, 0, 1", "1, 0, 0", "1, 0, 0")]
    assert "Segment" not in "".join(lines[5:])
    assert '"ttir.linear"(%arg0, %arg0) <{transpose_a = false, transpose_b = true}> :' in lines[5]


# --- meshes and boundaries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "said"), [((8,), "8"), ((2, 4), "2x4"), ((2, 2, 2), "2x2x2"), ((1, 2, 2, 1), "1x2x2x1")]
)
def test_meshes(sizes: tuple[int, ...], said: str) -> None:
    made = program(tensor(8), mesh={f"a{i}": n for i, n in enumerate(sizes)})
    device = add(made, "ttnn.get_device", [], HANDLE, mesh_shape=sizes)
    config = MeshMapperConfig([PlacementReplicate()] * len(sizes), sizes)
    add(made, "ttnn.distribute_tensor", [0, device], tensor(8), mapper_config=config)
    text = is_stable(made)
    assert text.startswith(f'module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = {said}>]>}} {{\n')
    offset = "x".join("0" * len(sizes))
    assert (
        f"<{{mesh_offset = #ttnn<mesh_offset {offset}>, mesh_shape = #ttnn<mesh_shape {said}>}}> : () -> !ttnn.device"
        in text
    )
    assert tuple(jm.from_mlir(text)._boundary.sizes.values()) == sizes


def test_statuses() -> None:
    made = program(tensor(8), tensor(2, 4))
    made.arguments[1] = Port(1, True)
    made.results = [Port(1, True), Port(0, False), Port(1, True)]
    text = is_stable(made)
    unsharded, presharded = (
        f"{{ttcore.shard_status = #ttcore.shard_status<{s}>}}" for s in ("unsharded", "presharded")
    )
    assert f"@main(%arg0: tensor<8xf32> {unsharded}, %arg1: tensor<2x4xf32> {presharded}) -> (" in text
    assert f"-> (tensor<2x4xf32> {presharded}, tensor<8xf32> {unsharded}, tensor<2x4xf32> {presharded}) {{" in text
    assert read(text).presharded == (False, True)
    assert [r.status for r in read(text).results] == ["presharded", "unsharded", "presharded"]


def test_a_program_without_arguments_or_results() -> None:
    made = program()
    text = is_stable(made)
    assert "  func.func @main() {\n    return\n  }\n" in text


# --- names from outside ----------------------------------------------------------------------------------------------

HOSTILE = [
    'a"b', "a\nb", "}", ") -> () {", "loc(", "é", "名前", "\0", "a\0b", "\\", '\\22', "// -----", "/*", "-->", "#-}",
    "{-#", "dense_resource<x>", "%0", "@main", "a b", "<lambda>", "f.g$h_1", "1st",
    'x" } func.func @evil() { return } "',
    "\n// -----\n", "// RUN: mesh-shape=4,4", "x" * 3000, "\u2028", "\x7f", "\r\n", "\ud800", "", "loc(unknown)",
    "f.py:1", "f.py:3 (g)", 'f".py:3 (g)', "a:b:c:1:2 (<lambda>)", "f\n.py:2 (g)", ":5 (f)",
]  # fmt: skip


@pytest.mark.slow(but_one_in=8)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_inject_nothing(name: str) -> None:
    made = program(tensor(4), tensor(2), name=name)
    made.arguments = [Port(0, False, name), Port(1, False, name + "'")]
    made.results = [Port(add(made, "ttir.relu", [0], tensor(4), line=name), False, name)]
    add(made, "ttir.relu", [1], tensor(2), line=f"{name}:7 (f)")
    text = is_stable(made)
    assert text.isascii()
    assert text.isprintable() or set(text) - set(map(chr, range(32, 127))) == {"\n"}
    kept = name.encode("utf-8", "replace").decode() or "main"
    located = mlir_text(made, locations=True)
    for written in (text, located):
        file = load_text(written)
        assert [(f.name, f.public) for f in file.functions] == [(kept, True)]
        assert [op.name for op in read(written).program.ops] == ["ttir.relu"] * 2
        assert not file.run_lines
    traced = jm.from_mlir(located)
    np.testing.assert_array_equal(
        traced.lower().compile()(np.arange(-2, 2, dtype=np.float32), np.ones(2, np.float32)), [0, 0, 0, 1]
    )


@cases(60)
@given(st.text(), st.text())
def test_any_name_prints_back(name: str, line: str) -> None:
    made = program(tensor(4), name=name)
    made.arguments = [Port(0, False, line)]
    made.results = [Port(add(made, "ttir.relu", [0], tensor(4), line=line), False)]
    assert read(is_stable(made)).program.name == (name.encode("utf-8", "replace").decode() or "main")


def test_locations() -> None:
    made = program(tensor(4))
    made.arguments = [Port(0, False, "params['w']")]
    value = add(made, "ttir.relu", [0], tensor(4), line="/model.py:12 (layer)")
    value = add(made, "ttir.relu", [value], tensor(4), line="/model.py:12 (layer)")
    made.results = [Port(add(made, "ttir.relu", [value], tensor(4), line="/model.py:14:5 (layer)"), False)]
    text = mlir_text(made, locations=True)
    assert text.count('loc("/model.py":12:0)') == 1
    assert text.count('loc("/model.py":14:5)') == 1
    assert "tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>} loc(\"params['w']\")" in text
    assert "loc(" not in mlir_text(made)


# --- TTIR ------------------------------------------------------------------------------------------------------------


def test_mesh_shard() -> None:
    made = program(tensor(8, 8))
    y = shard(made, 0, tensor(4, 2), "full_to_shard", "devices", (2, 4), (0, 1))
    y = add(made, "ttir.relu", [y], tensor(4, 2))
    made.results = [Port(shard(made, y, tensor(8, 8), "shard_to_full", "devices", (2, 4), (0, 1)), False)]
    text = is_stable(made)
    assert (
        '%0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = '
        "#ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = "
        "#ttcore.shard_type<devices>}> : (tensor<8x8xf32>) -> tensor<4x2xf32>\n"
    ) in text
    x = np.arange(-32, 32, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(jm.from_mlir(text).lower().compile()(x), np.maximum(x, 0))


@pytest.mark.usefixtures("unequal_copies")
def test_an_assumption_is_kept() -> None:
    """Coordinate 0 of what differs is taken because the caller said so, without a word."""
    made = program(tensor(8, 8))
    y = shard(made, 0, tensor(4, 2), "full_to_shard", "devices", (2, 4), (0, 1))
    z = shard(made, y, tensor(8, 2), "shard_to_full", "devices", (2, 1), (0, -1), assume_replicated=True)
    made.results = [Port(z, False)]
    text = is_stable(made)
    assert "shard_type = #ttcore.shard_type<devices>}> {jaxmesh.assume_replicated} : (tensor<4x2xf32>)" in text
    traced = jm.from_mlir(text)
    assert not traced.assumptions
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(traced.lower().compile()(x), x[:, :2])
    with pytest.raises(jm.ReplicationError):
        jm.from_mlir(text.replace(" {jaxmesh.assume_replicated}", ""))


# --- text of lowered programs ----------------------------------------------------------------------------------------


def ttnn_text(traced: Any) -> str:
    return is_stable(to_ttnn(flat_of(traced.lower(), "ttnn")))


REWRITTEN: dict[str, tuple[Any, ...]] = {
    "a number": (lambda x: 2 * x - 1, (4, 8)),
    "a row": (lambda x, b: x + b, (4, 8), (8,)),
    "rows and columns": (lambda x, y: jnp.maximum(x[:, None], y), (4,), (1, 8)),
    "a batch of products": (lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), (1, 3, 4, 5), (1, 3, 6, 5)),
    "a product and its turn": (lambda x, w: jnp.tanh(x @ w) @ w.T, (4, 8), (8, 6)),
    "gelu": (jax.nn.gelu, (4, 8)),
    "layer_norm": (lambda x: jax.nn.standardize(x, axis=-1), (4, 8)),
    "positions": (lambda x: x * jnp.arange(8.0), (4, 8)),
    "many positions": (lambda x: x + jnp.arange(8), (4, 8)),
    "top_k": (lambda x: lax.top_k(x, 3), (4, 8)),
    "sort": (lambda x: jnp.sort(x, 0), (4, 8)),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_is_read_is_written_again(name: str) -> None:
    """The text of a program that was read is the text that was read, op by op."""
    f, *shapes = REWRITTEN[name]

    def everywhere(*xs: Any) -> Any:
        made = f(*[jm.full_to_shard(x, P()) for x in xs])
        return jax.tree.map(lambda y: jm.shard_to_full(y, P()), made)

    mesh = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    text = jm.jit(everywhere, mesh=mesh).trace(*(jnp.ones(s) for s in shapes)).as_text()
    assert jm.from_mlir(text).as_text() == text


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_texts(name: str) -> None:
    """Set JAXMESH_GOLDEN=write to write them anew."""
    text = GOLDENS[name]()
    assert printed(text, locations="locations" in name) == text
    jm.from_mlir(text).lower()
    if os.environ.get("JAXMESH_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert (GOLDEN / name).read_text() == text


@pytest.mark.slow
def test_texts_are_the_same_in_every_process() -> None:
    code = "import tests.generators.mlir_programs as p; print(*[make() for make in p.GOLDENS.values()], sep='', end='')"
    texts = []
    for seed in ("0", "1234"):
        paths = {"PYTHONPATH": str(Path(jm.__file__).parents[1])}
        env = {**os.environ, **paths, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent, env=env)
        texts.append(done.stdout)
    assert texts[0] == texts[1] == "".join((GOLDEN / name).read_text() for name in GOLDENS)


def test_long_programs_take_linear_time() -> None:
    def calls(count: int) -> int:
        made = long_program(count)
        mlir_text(made, locations=True)
        return calls_made(lambda: mlir_text(made, locations=True))

    assert calls(4_000) < 8 * 1.1 * calls(500)


@pytest.mark.parametrize(
    "text", ["plain", "#a, b", "#a<1>, b", '#a<1>}> : () -> ()\n "b"()', "#a>", "#a<", "[1], b", '"x"']
)
def test_a_string_in_the_place_of_an_attribute_is_no_code(text: str) -> None:
    with pytest.raises(VerifyError, match="is not one attribute of a dialect"):
        attribute("text", text, Spelling())
    for right in ("#a", '@"a b"', "[@a, #b<1>]", '#a<"}>", <() -> ()>>'):
        assert attribute("text", right, Spelling()) == right
