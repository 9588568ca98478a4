"""Emitted Python: its text, and that it runs on the emulated ttnn and gives the program's own result."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects import ttnn as ttnn_ops  # noqa: F401
from jaxmesh.dialects.attributes import Attribute, attributes_of
from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.program import Op, Program, Type
from jaxmesh.dialects.ttnn import OPS, memory
from jaxmesh.dialects.ttnn.op import Param
from jaxmesh.emit.cpp import printer as cpp_printer
from jaxmesh.emit.languages import LOWERED, TRACED
from jaxmesh.emit.names import Variables, comment, identifier
from jaxmesh.emit.python import calls as python_calls, values as python_values
from jaxmesh.emit.python.printer import function_name, python_source, python_text
from jaxmesh.emit.targets import emit
from jaxmesh.sharding.configs import MeshMapperConfig, PlacementReplicate, PlacementShard
from jaxmesh.ttnn.signatures import signatures
from tests import GOLDEN, ROOT
from tests.generators.oracles import calls_made
from tests.generators.python_programs import Make, mixed, products, shard_1x2

F32 = np.dtype("float32")


# --- text ---


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("JAXMESH_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_text_of_upstreams_example() -> None:
    check_golden("mesh_shard_1x2.py.txt", python_text(shard_1x2()))


def test_the_exported_text_of_upstreams_example() -> None:
    check_golden("mesh_shard_1x2_exported.py.txt", python_source(shard_1x2(), load=True, exact=True)[0])


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("make", [mixed, products])
def test_every_line_of_an_op_and_of_an_argument_has_its_place(make: Any, load: bool) -> None:
    program = make()
    for number, op in enumerate(program.ops):
        op.line = "" if op.name == "ttnn.deallocate" else f"model.py:{number} ({op.name})"
    text, places = python_source(program, load=load)
    lines = text.splitlines()
    named = [(lines[n - 1], place) for n, place in places.items() if place.startswith("model.py")]
    assert {place for _, place in named} == {op.line for op in program.ops if op.line}
    for line, place in named:
        op = place.partition("(")[2].removesuffix(")").removeprefix("ttnn.")
        assert op in line or line.strip().startswith(("ttnn_Mesh", "ttnn_create_mesh", "utils_DeviceGetter")), line
    inputs = [lines[n - 1] for n, place in places.items() if place.startswith("argument")]
    assert len(inputs) == len(program.arguments)
    assert all(("load_" in line) if load else ("ttnn.ones(" in line) for line in inputs)
    without = [line for n, line in enumerate(lines, 1) if n not in places and " = ttnn" in line]
    assert without == []


@pytest.mark.parametrize("load", [False, True])
def test_the_text_of_a_mixed_program(load: bool) -> None:
    check_golden(f"mixed{'_exported' if load else ''}.py.txt", python_source(mixed(), load=load)[0])


def test_the_text_of_a_product() -> None:
    check_golden("products.py.txt", python_text(products()))


@pytest.mark.parametrize("load", [False, True])
def test_no_arguments_and_no_results(load: bool) -> None:
    text = python_source(Make.on("nothing").returns(), load=load)[0]
    assert "def nothing(): \n  return []" in text
    assert "inputs_for" not in text
    assert "nothing_0 = nothing()" in text
    ast.parse(text)


@pytest.mark.parametrize(("mesh", "shown"), [((8,), "(8,)"), ((2, 2, 2), "(2, 2, 2)"), ((1, 2), "(1, 2)")])
def test_the_device_of_a_mesh(mesh: tuple[int, ...], shown: str) -> None:
    make = Make.on("f", **{f"a{i}": n for i, n in enumerate(mesh)})
    x = make.argument(8)
    text = python_text(make.returns(make.distribute(x, [None] * len(mesh)), presharded=True))
    assert f"utils.DeviceGetter.get_device({shown}, fabric_config=ttnn.FabricConfig.FABRIC_1D)" in text
    assert f"ttnn.MeshShape({list(mesh)})" in text


def test_one_chip_has_no_fabric() -> None:
    make = Make.on("f", y=1, x=1)
    x = make.argument(8)
    text = python_text(make.returns(make.distribute(x, (None, None)), presharded=True))
    assert "get_device((1, 1), fabric_config=ttnn.FabricConfig.DISABLED)" in text


def test_no_override_prints_none() -> None:
    make = Make.on("f", y=1, x=2)
    x = make.argument(8)
    config = MeshMapperConfig([PlacementReplicate(), PlacementShard(0)])
    made = make.op("distribute_tensor", (x, make.open()), Type((4,), F32, host=True), mapper_config=config)
    text = python_text(make.returns(made, presharded=True))
    assert "ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(0)])" in text


def test_an_element_used_once_is_no_variable() -> None:
    make = Make.on("f")
    x, y = make.argument(8), make.argument(8)
    text = python_text(make.returns(y, y, x))
    assert "  arg_1 = arg[1]\n  return [arg_1, arg_1, arg[0]]" in text
    assert "arg_0" not in text


def test_every_argument_of_a_call_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = OPS["add"]
    params = (
        Param("a", "operand", 0),
        Param("b", "operand", 1, keyword=True),
        Param("c", "operands"),
        Param("d", "attribute", "dims"),
        Param("e", "attribute", "shape", "shape"),
        Param("f", "attribute", "place", "coordinate"),
        Param("g", "attribute", "kind", "enum:ttnn.ReduceType", keyword=True),
        Param("h", "attribute", "low", "float"),
        Param("i", "attribute", "unset", keyword=True),
        Param("j", "dtype", keyword=True),
        Param("k", "layout"),
        Param("l", "shape"),
        Param("l2", "shape", form="shape"),
        Param("l3", "attribute", "padding", "pairs"),
        Param("l4", "attribute", "kind", "string:ScatterReduction"),
        Param("l5", "attribute", "numbers", "array"),
        Param("m", "device"),
        Param("n", "text", "ttnn.Topology.Linear"),
        Param("o", "none"),
    )
    signature = replace(row.python, callee="ttnn.deep.add", params=params)
    changed = replace(row, python=signature, operands=(1, 2), attributes=attributes_of("unset?: f32 = 0.0"))
    monkeypatch.setitem(DEFINITIONS, "ttnn.add", changed)
    make = Make.on("f")
    x = make.argument(8)
    there = make.distribute(x, (None, None))
    kind = Type((8,), np.dtype(ml_dtypes.bfloat16), tile=True)
    said: dict[str, Any] = {"dims": (1, -2), "shape": (2, 1), "place": (0, 1), "kind": "sum", "low": 1}
    said["padding"], said["numbers"] = (0, 1, 2, 3), np.array([[0.5], [2]])
    text = python_text(make.returns(make.op("add", (there, None, make.device), kind, **said), presharded=True))
    assert (
        "ttnn_deep_add_0 = ttnn.deep.add(ttnn_to_layout_0, b=None, [ttnn_to_layout_0], [1, -2], ttnn.Shape([2, 1]), "
        "ttnn.MeshCoordinate((0, 1)), g=ttnn.ReduceType.Sum, 1.0, i=0.0, j=ttnn.DataType.BFLOAT16, ttnn.Layout.TILE, "
        '[8], ttnn.Shape([8]), [[0, 1], [2, 3]], "add", [0.5, 2.0], utils_DeviceGetter_get_device_0, '
        "ttnn.Topology.Linear, None)"
    ) in text


def test_an_op_with_several_results_gives_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    row = OPS["relu"]
    monkeypatch.setitem(DEFINITIONS, "ttnn.two", replace(row, python=replace(row.python, callee="ttnn.two")))
    make = Make.on("f")
    x = make.argument(8, presharded=True)
    a, b = make.program.new(make.type(x)), make.program.new(make.type(x))
    make.program.ops.append(Op("ttnn.two", (x,), (a, b)))
    make.free(a)
    text = python_text(make.returns(a, b, presharded=True))
    assert "  ttnn_two_0_0 = ttnn_two_0[0]\n  ttnn.deallocate(ttnn_two_0_0, False)\n" in text
    assert "return [ttnn_two_0_0, ttnn_two_0[1]]" in text


def test_an_op_without_a_row_is_named() -> None:
    make = Make.on("f")
    x = make.argument(8)
    make.program.ops.append(Op("ttnn.frobnicate", (x,), (make.program.new(make.type(x)),), line="model.py:7 (f)"))
    with pytest.raises(jm.MissingRuleError, match=r"ttnn\.frobnicate \(model\.py:7 \(f\)\).*jaxmesh/dialects/ttnn/"):
        python_text(make.returns(1))


def test_an_op_of_another_dialect_is_named() -> None:
    make = Make.on("f")
    x = make.argument(8)
    make.program.ops.append(Op("ttir.add", (x, x), (make.program.new(make.type(x)),)))
    with pytest.raises(jm.MissingRuleError, match=r"ttir\.add"):
        python_text(make.returns(1))


def test_a_missing_attribute_is_named() -> None:
    names = [n for n, r in OPS.items() if any(a.required for a in r.attributes)]
    for name in names:
        row = OPS[name]
        needed = next(a.name for a in row.attributes if a.required)
        if not any(p.source == "attribute" and p.key == needed for p in row.python.params):
            continue
        make = Make.on("f")
        xs = [make.argument(8, presharded=True) for _ in range(row.operands[0])]
        attributes = {a.name: _sample(a) for a in row.attributes if a.name != needed}
        made = make.op(name, xs, Type((8,), F32, tile=True), **attributes)
        with pytest.raises(jm.VerifyError, match=f"{name} needs the attribute '{needed}'"):
            python_text(make.returns(made, presharded=True))


_SAMPLES: dict[str, Any] = {
    "int": 1, "float": 0.5, "number": 2, "bool": True, "str": "a'b", "ints": (0, 1), "bools": (True, False),
    "array": np.arange(6, dtype=np.float32).reshape(2, 3), "enum": "sum", "any": (1, 2),
}  # fmt: skip


def _sample(attribute: Attribute) -> Any:
    return "tanh" if attribute.name == "approximate" else _SAMPLES[attribute.kind]


@pytest.mark.parametrize("hosted", [False, True])
def test_every_row_prints_a_call_with_its_parameters(hosted: bool) -> None:
    for name, row in OPS.items():
        make = Make.on("f")
        least, most = row.operands
        xs: list[int | None] = [make.argument(8, presharded=True) for _ in range(least)]
        xs += [None] * ((most or least) - least)
        attributes = {a.name: _sample(a) for a in row.attributes}
        if row.on_device and not hosted:
            xs.append(make.open())
        kind = Type((2, 3), F32, tile=not hosted, host=hosted)
        count = max(row.results[0], 1)
        results = tuple(make.program.new(kind) for _ in range(count))
        make.program.ops.append(Op(f"ttnn.{name}", tuple(xs), results, attributes))
        text = python_text(make.returns(*results, presharded=not hosted))
        call = _call(text, row.python.callee)
        keywords = {p.name for p in row.python.params if p.keyword}
        assert {k.arg for k in call.keywords} <= keywords, name
        assert len(call.args) <= len([p for p in row.python.params if not p.keyword]), name
        needed = {p.name for p in row.python.params if p.keyword and p.on_host and not p.if_set}
        assert needed <= {k.arg for k in call.keywords}, name


def _call(text: str, callee: str) -> ast.Call:
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == callee]
    assert found, callee
    return found[0]


def test_every_printed_call_is_one_of_the_emulated_api() -> None:
    for name, row in OPS.items():
        make = Make.on("f")
        xs = [make.argument(8, presharded=True) for _ in range(row.operands[0])]
        attributes = {a.name: _sample(a) for a in row.attributes}
        if row.on_device:
            xs.append(make.open())
        kind = Type((2, 3), F32, tile=True)
        results = tuple(make.program.new(kind) for _ in range(max(row.results[0], 1)))
        make.program.ops.append(Op(f"ttnn.{name}", tuple(xs), results, attributes))
        call = _call(python_text(make.returns(*results, presharded=True)), row.python.callee)
        function: Any = ttnn
        for part in row.python.callee.split(".")[1:]:
            function = getattr(function, part)
        assert callable(function), name
        given = {k.arg for k in call.keywords}
        fits = [
            given <= {p.name for p in overload} and len(call.args) <= sum(not p.keyword for p in overload)
            for overload in signatures(row.python.callee)
        ]
        assert any(fits), name


MC = "ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None)"
CFG = (
    "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, "
    "fp32_dest_acc_en=True)"
)
SCATTER = (
    "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, "
    "fp32_dest_acc_en=True, packer_l1_acc=False)"
)
BF16, TILE = "ttnn.DataType.BFLOAT16", "ttnn.Layout.TILE"
UPSTREAM: list[tuple[str, int, dict[str, Any], str]] = [
    ("all_gather", 1, {"all_gather_dim": 3, "cluster_axis": 1},
     f"ttnn.all_gather(input_tensor=x, dim=3, cluster_axis=1, memory_config={MC}, subdevice_id=None, num_links=None, "
     "topology=None)"),
    ("all_reduce", 1, {"cluster_axis": 1, "reduce_type": "sum"},
     f"ttnn.all_reduce(input_tensor=x, cluster_axis=1, subdevice_id=None, memory_config={MC}, num_links=None, "
     "topology=None)"),
    ("all_reduce_async", 1, {"cluster_axis": 1, "reduce_type": "sum"},
     "ttnn.experimental.all_reduce_async(input_tensor=x, cluster_axis=1, mesh_device=x.device(), "
     f"math_op=ttnn.ReduceType.Sum, subdevice_id=None, memory_config={MC}, num_links=None, topology=None)"),
    ("reduce_scatter", 1, {"cluster_axis": 1, "reduce_type": "sum", "scatter_dim": 3},
     f"ttnn.reduce_scatter(input_tensor=x, dim=3, cluster_axis=1, subdevice_id=None, memory_config={MC}, "
     f"num_links=None, topology=None, compute_kernel_config={SCATTER})"),
    ("mesh_partition", 1, {"dim": 0, "cluster_axis": 1},
     f"ttnn.mesh_partition(input_tensor=x, dim=0, cluster_axis=1, memory_config={MC})"),
    ("point_to_point", 2, {"sender_coord": (0, 0), "receiver_coord": (0, 1)},
     "ttnn.point_to_point(x, sender_coord=ttnn.MeshCoordinate((0, 0)), receiver_coord=ttnn.MeshCoordinate((0, 1)), "
     "topology=ttnn.Topology.Linear, output_tensor=y)"),
    ("assign", 1, {}, f"ttnn.assign(x, dtype={BF16}, memory_config={MC})"),
    ("clamp_scalar", 1, {"min": 0.0, "max": 0.0}, f"ttnn.clamp(x, 0.0, 0.0, memory_config={MC})"),
    ("add", 2, {}, f"ttnn.add(x, y, dtype={BF16}, memory_config={MC})"),
    ("logical_and", 2, {}, f"ttnn.logical_and(x, y, dtype={BF16}, memory_config={MC})"),
    ("remainder", 2, {}, f"ttnn.remainder(x, y, dtype=None, memory_config={MC})"),
    ("relu", 1, {}, f"ttnn.relu(x, memory_config={MC})"),
    ("exp", 1, {}, f"ttnn.exp(x, fast_and_approximate_mode=False, memory_config={MC})"),
    ("sigmoid", 1, {}, f"ttnn.sigmoid(x, vector_mode=4, mode=ttnn.SigmoidMode.Accurate, memory_config={MC})"),
    ("matmul", 2, {"transpose_a": False, "transpose_b": False},
     f"ttnn.matmul(x, y, transpose_a=False, transpose_b=False, memory_config={MC}, dtype={BF16}, program_config=None, "
     f"activation=None, compute_kernel_config={CFG})"),
    ("linear", 3, {"transpose_a": False, "transpose_b": True},
     f"ttnn.linear(x, y, bias=z, transpose_a=False, transpose_b=True, memory_config={MC}, dtype={BF16}, "
     f"program_config=None, activation=None, compute_kernel_config={CFG})"),
    ("sum", 1, {"dim_arg": (1,), "keep_dim": True},
     f"ttnn.sum(x, [1], True, memory_config={MC}, compute_kernel_config={CFG})"),
    ("max", 1, {"keep_dim": False}, f"ttnn.max(x, None, False, memory_config={MC}, compute_kernel_config={CFG})"),
    ("softmax", 1, {"dimension": 1, "numericStable": False},
     f"ttnn.softmax(x, 1, memory_config={MC}, compute_kernel_config={CFG}, numeric_stable=False)"),
    ("reshape", 1, {"shape": (64, 16)}, f"ttnn.reshape(x, [64, 16], memory_config={MC})"),
    ("permute", 1, {"permutation": (0, 2, 1)}, f"ttnn.permute(x, [0, 2, 1], memory_config={MC}, pad_value=0.0)"),
    ("concat", 2, {"dim": 1}, f"ttnn.concat([x, y], 1, memory_config={MC})"),
    ("slice_static", 1, {"begins": (0, 0), "ends": (16, 32), "step": (1, 1)},
     f"ttnn.slice(x, [0, 0], [16, 32], [1, 1], memory_config={MC})"),
    ("typecast", 1, {}, f"ttnn.typecast(x, {BF16}, memory_config={MC})"),
    ("where", 3, {}, f"ttnn.where(x, y, z, memory_config={MC})"),
    ("full", 0, {"shape": (32, 32), "fill_value": 1.0},
     f"ttnn.full(shape=ttnn.Shape([32, 32]), fill_value=1.0, dtype={BF16}, layout={TILE}, device=dev, "
     f"memory_config={MC})"),
    ("ones", 0, {"shape": (32, 32)},
     f"ttnn.ones(shape=ttnn.Shape([32, 32]), dtype={BF16}, layout={TILE}, device=dev, memory_config={MC})"),
    ("constant", 0, {"value": np.array([1, 2], np.float32)},
     f"ttnn.Tensor([1.0, 2.0], [2], {BF16}, {TILE}, dev, memory_config={MC})"),
    ("embedding", 2, {}, f"ttnn.embedding(x, y, padding_idx=None, layout={TILE}, dtype={BF16}, memory_config={MC})"),
    ("repeat", 1, {"repeat_dims": (2, 1)}, f"ttnn.repeat(x, ttnn.Shape([2, 1]), memory_config={MC})"),
    ("arange", 0, {"start": 0, "end": 32, "step": 1},
     f"ttnn.arange(0, 32, 1, dtype={BF16}, device=dev, layout={TILE}, memory_config={MC})"),
    ("empty", 0, {"shape": (4,)}, f"ttnn.empty(ttnn.Shape([4]), {BF16}, {TILE}, dev, {MC})"),
]  # fmt: skip


# The row of all_gather calls its parameter `all_gather_dim`.


@pytest.mark.parametrize(
    ("name", "count", "attributes", "want"),
    [pytest.param(*u, id=u[0]) for u in UPSTREAM],
)
def test_a_call_is_upstreams(name: str, count: int, attributes: dict[str, Any], want: str) -> None:
    make = Make.on("f")
    xs = [make.argument(2, presharded=True) for _ in range(count)]
    xs += [make.open()] if OPS[name].on_device else []
    kind = Type((2,), np.dtype(ml_dtypes.bfloat16), tile=True)
    made = make.op(name, xs, kind, **attributes)
    (line,) = [
        n for n in python_text(make.returns(made, presharded=True)).splitlines() if f" = {want.split('(')[0]}(" in n
    ]
    for i, letter in enumerate("xyz"):
        line = line.replace(f"arg[{i}]", letter)
    assert line.split(" = ", 1)[1].replace("utils_DeviceGetter_get_device_0", "dev") == want


def test_a_constant_on_the_host_has_four_arguments() -> None:
    make = Make.on("f")
    made = make.op("constant", (), Type((2,), np.dtype("int32"), host=True), value=np.array([1, -2], np.int32))
    text = python_text(make.returns(made))
    assert "ttnn.Tensor([1, -2], [2], ttnn.DataType.INT32, ttnn.Layout.ROW_MAJOR)\n" in text


# --- values ---


@pytest.mark.parametrize(
    "number", [0.0, -0.0, 1.0, 0.1, 1e-45, 3.4028234663852886e38, 1e16, 5e-324, math.inf, -math.inf, math.nan]
)
def test_floats_read_back_as_they_are(number: float) -> None:
    text = python_values.floating(number)
    again = eval(text)
    assert np.float64(again).tobytes() == np.float64(number).tobytes()
    assert "." in text or "e" in text or text.startswith("float(")


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint64", "uint8", "int8", "bool", "complex64",
     "float8_e4m3fn", "int4"],
)  # fmt: skip
def test_constants_read_back_as_they_are(dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = rng.integers(-8, 8, (3, 4)).astype(np.float64)
    made = (values % 2 == 0) if dtype == "bool" else np.abs(values).astype(kind) if dtype[0] == "u" else None
    wanted: np.ndarray[Any, Any] = (values * (1 if "int" in dtype else 0.3)).astype(kind) if made is None else made
    if kind.kind == "f":
        wanted[0, :3] = [np.inf, -np.inf, np.nan]
    if dtype in ("int64", "uint64"):
        wanted[0, 0] = np.iinfo(kind).max
    read = np.array(eval(python_values.array(wanted)), dtype=object).astype(kind).reshape(3, 4)
    assert read.tobytes() == wanted.tobytes()


def test_element_types_have_their_own_names() -> None:
    names = {d: python_values.data_type(np.dtype(getattr(ml_dtypes, d, d))) for d in ("float32", "bfloat16", "bool")}
    assert names == {
        "float32": "ttnn.DataType.FLOAT32",
        "bfloat16": "ttnn.DataType.BFLOAT16",
        "bool": "ttnn.DataType.BOOL",
    }


def test_a_value_of_no_form_is_refused() -> None:
    with pytest.raises(jm.VerifyError, match="got object"):
        python_values.plain(object())
    with pytest.raises(jm.VerifyError, match="has the values"):
        python_values.attribute("sum); evil(", "enum:ttnn.ReduceType")


# --- names ---

HOSTILE = [
    "",
    "main",
    "_main",
    "__main__",
    "arg",
    "arg_0",
    "ttnn",
    "utils",
    "for",
    "match",
    "None",
    "print",
    "float",
    "1st",
    "<lambda>",
    "f(): \n  import os\ndef g",
    "x'''\nimport os\n'''",
    "a; import os",
    'a"b\\',
    "été.κλάση",
    "\x00\x1b[2J",
    "ttnn_add_0",
    "ttnn_to_layout_0",
    "utils_DeviceGetter_get_device_0",
    "mixed_0",
    "create_inputs_for_mixed",
    "load_inputs_for_main",
    "__class__",
    "x" * 5000,
    "a__b",
    "DataType",
    "\u202eevil",
    "{}",
    "%s",
    "\N{MATHEMATICAL BOLD SMALL A}",
]


def _shape_of(text: str) -> list[str]:
    return [type(n).__name__ for n in ast.walk(ast.parse(text))]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("load", [False, True])
def test_a_name_from_outside_changes_nothing_but_names(name: str, load: bool) -> None:
    program = mixed()
    want = _shape_of(python_source(program, load=load)[0])
    program.name = name
    program.arguments = [replace(a, path=name) for a in program.arguments]
    text = python_source(program, load=load)[0]
    assert text.isascii()
    assert _shape_of(text) == want
    tree = ast.parse(text)
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert len(set(functions)) == 3
    assert functions[-1] == "main"
    assert functions[0] not in {"arg", "ttnn", "utils", "float", "main"}
    assigned = [t.id for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    assert len(set(assigned)) == len(assigned)
    assert not set(assigned) & {*functions, "ttnn", "utils"}


def test_a_text_attribute_is_one_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    row = OPS["relu"]
    params = (*row.python.params, Param("mode", "attribute", "mode", keyword=True))
    monkeypatch.setitem(DEFINITIONS, "ttnn.relu", replace(row, python=replace(row.python, params=params)))
    evil = "'); import os; ('\n\u2028\x00{}"
    make = Make.on("f")
    x = make.argument(8, presharded=True)
    text = python_text(make.returns(make.compute("relu", x, mode=evil), presharded=True))
    (said,) = [k.value for k in _call(text, "ttnn.relu").keywords if k.arg == "mode"]
    assert ast.literal_eval(said) == evil


def test_identifiers() -> None:
    assert identifier("a__b--c") == "a_b_c"
    assert identifier("x", {"x", "x_0"}) == "x_1"
    assert len(identifier("ab" * 999)) <= 60
    assert function_name("main") == "_main"
    assert function_name("for") == "for_0"
    assert comment("a\\\n*/ b\\ \\") == "a\\ * / b"


def test_variables_never_meet() -> None:
    names = Variables({"a_1"})
    made = [names.fresh("a"), names.fresh("a"), names.take("a_1_0"), names.fresh("a.1")]
    assert len({*made, "a_1"}) == 5


# --- determinism and speed ---


@pytest.mark.slow
def test_same_bytes_in_every_process() -> None:
    code = "import tests.unit.emit.python.test_printer as t; print(t.python_source(t.mixed(), load=True)[0], end='')"
    root = ROOT
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True
        )
        assert done.stdout == python_source(mixed(), load=True)[0]


def _chain(length: int) -> Program:
    make = Make.on("chain")
    x = make.argument(8, presharded=True)
    for _ in range(length):
        y = make.compute("add", x, x)
        make.free(x)
        x = y
    return make.returns(x, presharded=True)


def test_emission_is_linear() -> None:
    def calls(length: int) -> int:
        program = _chain(length)
        python_text(program)
        return calls_made(lambda: python_text(program))

    assert calls(4_000) < 8 * 1.1 * calls(500)


def test_special_ops_are_all_written() -> None:
    special = {f"ttnn.{n}" for n, op in memory.OPS.items() if not op.python.params} - {"ttnn.to_tensor_spec"}
    assert special == set(python_calls._SPECIAL) == cpp_printer._SPECIAL.keys()
    assert all(bool(op.python.params) == bool(op.cpp.params) for op in memory.OPS.values())


def test_every_language_has_a_printer() -> None:
    starts = {"ttir": "module", "ttnn": "module", "python": "import ttnn", "cpp": "#include"}
    texts = {name: emit(name, Program("f", {"x": 1})) for name in (*TRACED, *LOWERED)}
    assert {name: text[: len(starts[name])] for name, text in texts.items()} == starts
