"""The definitions of both dialects are upstream's: names, operands, attributes and their kinds, results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.op import Arity, OpDef, Trait
from jaxmesh.emit.mlir.printer import DISCARDABLE
from tests.generators.upstream_definitions import bare, check_text, read_table

KNOWN = read_table()
OURS = {name: op for name, op in DEFINITIONS.items() if Trait.CALL not in op.traits}
FORMS = {
    "si8": "SI8Attr", "si32": "SI32Attr", "ui32": "UI32Attr", "i32": "I32Attr", "i64": "I64Attr", "si64": "SI64Attr",
    "f32": "F32Attr", "number": "F32Attr|I32Attr", "bool": "BoolAttr", "string": "StrAttr", "i32s": "I32ArrayAttr",
    "i64s": "DenseI64ArrayAttr", "i32a": "DenseI32ArrayAttr", "edges": "DenseI32ArrayAttr",
    "dense": "ElementsAttr", "dense_i64": "I64ElementsAttr",
    "shape": "TTNN_ShapeAttr", "#ttcore.reduce_type": "TTCore_ReduceTypeAttr",
    "#ttcore.shard_type": "TTCore_MeshShardTypeAttr", "#ttcore.shard_direction": "TTCore_MeshShardDirectionAttr",
    "mesh_shape": "TTNN_MeshShapeAttr", "mesh_offset": "TTNN_MeshOffsetAttr",
    "mapper_config": "TTNN_MeshMapperConfigAttr", "composer_config": "TTNN_MeshComposerConfigAttr",
    "#ttcore.supportedDataTypes": "TTCore_DataTypeAttr", "#ttcore.topology": "TTCore_TopologyAttr",
    "#ttcore.attention_mask_type": "TTCore_AttentionMaskTypeAttr", "#ttcore.memory_space": "TTCore_MemorySpaceAttr",
    "#ttcore.moe_activation_function": "TTCore_MoEActivationFunctionAttr", "#ttnn.buffer_type": "TTNN_BufferTypeAttr",
    "#ttnn.layout": "TTNN_LayoutAttr", "#ttnn.tensor_memory_layout": "TTNN_TensorMemoryLayoutAttr",
}  # fmt: skip


def kind_of(form: str, kind: str, wanted: str) -> str:
    if form == "string" and wanted == "Builtin_StringAttr":
        return wanted
    if form == "text":
        # As the text has it, whatever it is: no attribute that has a form of its own.
        return wanted if wanted not in FORMS.values() else "text"
    if form == "any":
        return "I32Attr|DenseI32ArrayAttr"
    return f"{FORMS[form]}|DenseI32ArrayAttr" if kind == "any" and form in ("i32", "si32") else FORMS[form]


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_definition_is_upstreams(name: str) -> None:
    own = OURS[name]
    if Trait.NOT_UPSTREAM in own.traits:
        assert name not in KNOWN
        return
    row = KNOWN[name]
    attributes = {n.rstrip("?"): (not n.endswith("?"), kind) for n, kind in row["attributes"].items()}
    own_attributes = [a for a in own.attributes if a.name not in DISCARDABLE or Trait.OPAQUE in own.traits]
    # Later versions have them.
    own_attributes = [a for a in own_attributes if not a.must_be_empty and not a.later]
    kinds = {a.name: kind_of(a.form, a.kind, attributes.get(a.name, (False, ""))[1]) for a in own_attributes}
    written = {a.name: (a.required, kinds[a.name]) for a in own_attributes}
    assert written == {n: v for n, v in attributes.items() if n in written}
    assert attributes.keys() - written.keys() == own.options
    assert not any(attributes[n][0] for n in own.options)
    check_operands(name, own, row)
    assert own.overwritten is None or (row["results"] == [] and own.results == (1, 1))
    assert own.overwritten is not None or own.results == arity(row["results"])


def check_operands(name: str, own: OpDef, row: dict[str, Any]) -> None:
    handles = [n for n in row["operands"] if re.match(r"(mesh_)?device\??$|.*semaphore", n)]
    tensors = [n for n in row["operands"] if n not in handles]
    # No one concatenates nothing.
    assert own.operands == ((1, None) if name.endswith(".concat") else arity(tensors))
    assert own.handles == arity(handles)
    counted = row["operands"] if Trait.OPAQUE in own.traits else tensors
    assert own.groups == (len(counted) if "segments" in row else None)


def arity(names: list[str]) -> Arity:
    most = None if any(n.endswith("*") for n in names) else len(names)
    return len(names) - len(bare(names, "?", "*")), most


def test_every_op_is_defined() -> None:
    """All 176 operations of TTIR and 190 of TTNN."""
    upstreams = {name for name, op in OURS.items() if Trait.NOT_UPSTREAM not in op.traits}
    assert upstreams == KNOWN.keys()
    assert [sum(n.startswith(d) for n in KNOWN) for d in ("ttir.", "ttnn.")] == [176, 190]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('%0 = "ttir.add"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>', []),
        ('%0 = "ttir.add"(%a) : (tensor<4xf32>) -> tensor<4xf32>', ["1 operands, of ['lhs', 'rhs']"]),
        ('%0 = "ttir.sinh"(%a) : (tensor<4xf32>) -> tensor<4xf32>', ["no such op"]),
        ('%0 = "ttir.cumsum"(%a) <{dim = 0 : si32}> : (tensor<4xf32>) -> tensor<4xf32>',
         ["attribute dim is a I64Attr, not 0 : si32"]),
        ('%0 = "ttir.cumsum"(%a) <{axis = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>',
         ["no attribute axis", "attribute dim is missing"]),
        ('%0 = "ttir.fill_cache"(%a, %b) <{batch_offset = 0 : i32}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>',
         ["1 results, of []"]),
        ('%0 = "ttir.rms_norm"(%a) <{normalized_shape = array<i64: 4>}> : (tensor<4xf32>) -> tensor<4xf32>',
         ["operandSegmentSizes is missing"]),
    ],
)  # fmt: skip
def test_what_deviates_is_found(line: str, wrong: list[str]) -> None:
    name = line.split('"')[1]
    assert check_text(line, KNOWN) == (1, [f"{name}: {w}" for w in wrong])
