"""Layouts that a text names: those of host memory and DRAM add nothing to a type, others stay."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.program import Type
from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.mlir.text import with_element_types, with_layouts_obeyed
from jaxmesh.stages.read_mlir import decode_function

LAYOUT = "#ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<64x32xf32, #ttnn.buffer_type<{}>>, <interleaved>>"


def types_of(text: str, dialect: str) -> list[Type]:
    traced: Any = jm.from_mlir(text)
    program = traced.imported.program(dialect)
    return program.types


def test_plain_layouts_add_nothing() -> None:
    def program(x: Any) -> Any:
        y = jnp.tanh(jm.full_to_shard(x, P("y")))
        return jm.shard_to_full(jnp.argmax(y @ y.T, axis=1), P("y"))

    lowered = jm.jit(program, mesh=jm.make_mesh((1, 2), ("x", "y"))).lower(jnp.ones((64, 32)))
    assert "#ttnn_layout" in lowered.as_text(layouts=True)
    assert types_of(lowered.as_text(layouts=True), "ttnn") == types_of(lowered.as_text(), "ttnn")


@pytest.mark.parametrize("dialect", ["ttnn", "ttir"])
def test_layouts_in_l1_stay_in_ttnn_alone(dialect: str) -> None:
    kind = "tensor<64x32xf32, #l>"
    text = f"""#l = {LAYOUT.format("l1")}
func.func @main(%a: {kind}) -> {kind} {{
%0 = "{dialect}.neg"(%a) : ({kind}) -> {kind}
return %0 : {kind} }}"""
    for found in types_of(text, dialect):
        assert found.layout == (LAYOUT.format("l1") if dialect == "ttnn" else "")


def test_an_argument_of_another_element_type_has_no_layout() -> None:
    kind = "tensor<64x32xf32, #l>"
    file = load_text(f"#l = {LAYOUT.format('l1')}\nfunc.func @main(%a: {kind}) -> {kind} {{ return %a : {kind} }}")
    text: Any = decode_function(file, choose(file, None))
    for dtype, layout, status in (("f4", LAYOUT.format("l1"), "presharded"), ("u1", "", None)):
        made = with_layouts_obeyed(with_element_types(text, [np.dtype(dtype)]))
        (argument,) = made.program.arguments
        assert made.program.types[argument.value] == Type((64, 32), np.dtype(dtype), layout=layout)
        # With a layout, an argument is on the devices; without one, it is a whole array.
        assert made.arguments[0].status == status
