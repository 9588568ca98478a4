"""The calls of operations without a meaning, in Python and C++."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.dialects.attributes import Attribute
from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.dialects.textual import OPS
from jaxmesh.dialects.ttnn.op import SPELLINGS, TtnnOp
from jaxmesh.emit.targets import emit
from jaxmesh.errors import MissingRuleError

CALLS = {n: op for n, op in OPS.items() if isinstance(op, TtnnOp) and (op.python.params or op.cpp.params)}
"""By full name."""
KIND = Type((1, 1, 32, 32), np.dtype("float32"), tile=True)
VALUES = {"int": 3, "number": 2.0, "float": 0.5, "bool": True, "str": "zeros", "ints": (1, 2)}


def value_of(name: str, attribute: Attribute) -> Any:
    """A value of an attribute's kind; of an enum its first."""
    if attribute.kind != "enum":
        return VALUES.get(attribute.kind, 1)
    calls = CALLS.get(name)
    params = [] if calls is None else [*calls.python.params, *calls.cpp.params]
    forms = [p.form.rpartition(":")[2] for p in params if p.key == attribute.name and ":" in p.form]
    return next(iter(SPELLINGS[forms[0].rpartition(".")[2]])) if forms else "causal"


def program(name: str) -> Program:
    """A program with one op, with all its operands and attributes."""
    row = DEFINITIONS[name]
    made = Program("f", {"x": 1, "y": 1})
    count = row.operands[1]
    assert count is not None
    given = [made.new(KIND) for _ in range(count)]
    made.arguments = [Port(v, True) for v in given]
    device = made.new(Type((), np.dtype("int32"), kind="device"))
    made.ops.append(Op("ttnn.get_device", (), (device,), {"mesh_shape": (1, 1)}))
    results = tuple(made.new(KIND) for _ in range(row.results[0]))
    attributes = {a.name: value_of(name, a) for a in row.attributes if a.form != "text"}
    if "input_memory_config" in row.by_name:
        attributes["input_memory_config"] = "#ttnn.memory_config<#ttnn.buffer_type<l1>, <interleaved>>"
    made.ops.append(Op(name, (*given, device), results, attributes))
    made.results = [Port(v, True) for v in results]
    return made


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_has_all_arguments(name: str) -> None:
    row = CALLS[name]
    if row.cpp.params:
        cpp = emit("cpp", program(name))
        arguments = cpp.split(f"{row.cpp.callee}(")[1].split(");")[0]
        assert arguments.count(",") >= len(row.cpp.params) - 1
    else:
        with pytest.raises(MissingRuleError, match=name):
            emit("cpp", program(name))
    if not row.python.params:
        with pytest.raises(MissingRuleError, match=name):
            emit("python", program(name))
        return
    text = emit("python", program(name))
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    (call,) = [c for c in calls if ast.unparse(c.func) == row.python.callee]
    assert [k.arg for k in call.keywords] == [p.name for p in row.python.params if p.keyword]
    assert len(call.args) == sum(not p.keyword for p in row.python.params)


@pytest.mark.parametrize("language", ["python", "cpp"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conv2d_config", "#ttnn.conv2d_config<shard_layout = block_sharded>"),
        ("input_memory_config", "#ttnn.memory_config<#ttnn.buffer_type<l1>, <height_sharded>>"),
    ],
)
def test_no_part_of_a_config_is_dropped(name: str, text: str, language: str) -> None:
    made = program("ttnn.prepare_conv2d_bias")
    *_, op = made.ops
    made.ops[-1] = replace(op, attributes={**op.attributes, name: text})
    with pytest.raises(MissingRuleError, match="has no call"):
        emit(language, made)
    if name == "conv2d_config":
        made.ops[-1] = replace(op, attributes={**op.attributes, name: "#ttnn.conv2d_config<weights_dtype = bf16>"})
        assert "BFLOAT16" in emit(language, made)


def test_a_tensor_that_is_spread_over_cores_has_no_call() -> None:
    made = program("ttnn.pow_scalar")
    kind = Type((1, 1, 32, 32), np.dtype("float32"), tile=True, layout="#ttnn.ttnn_layout<..., <height_sharded>>")
    made.types[made.results[0].value] = kind
    for language in ("python", "cpp"):
        with pytest.raises(jm.UnsupportedError, match="to_memory_config"):
            emit(language, made)
    made.types[made.results[0].value] = Type(
        KIND.shape, KIND.dtype, tile=True, layout="#ttnn.ttnn_layout<#ttnn.buffer_type<l1>, <interleaved>>"
    )
    assert "ttnn.BufferType.L1" in emit("python", made)
    assert "BufferType::L1" in emit("cpp", made)
