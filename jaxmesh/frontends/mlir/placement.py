"""Decides which arguments and results of a text are on the devices, where its attributes leave it open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Value
from jaxmesh.frontends.mlir.module import BoundaryAttributes
from jaxmesh.frontends.mlir.text import Text


def _on_devices(attributes: BoundaryAttributes) -> BoundaryAttributes:
    return replace(attributes, status="presharded", local=None, varying=())


def with_layouts_obeyed(text: Text) -> Text:
    """Returns the text with the values on the devices that its types place there, unless it has transfers."""
    program = text.program
    if not any(program.types[port.value].layout for port in program.arguments) or _has_transfers(text):
        return text
    there = {v for v, known in enumerate(program.types) if known.layout and not known.host}
    arguments, results = (
        tuple(
            _on_devices(a) if a.status is None and p.value in there else a
            for a, p in zip(attributes, ports, strict=True)
        )
        for attributes, ports in ((text.arguments, program.arguments), (text.results, program.results))
    )
    return replace(text, arguments=arguments, results=results)


def results_to_copy(text: Text) -> list[bool]:
    """Returns True for each result that is declared presharded, but is computed from no argument and no transfer."""
    constant = set[Value]()
    for op in text.program.ops:
        depends_on_none = constant.issuperset(op.used) or has_trait(op.name, Trait.CREATES)
        if depends_on_none and not has_trait(op.name, Trait.TRANSFERS):
            constant.update(op.results)
    rows = zip(text.program.results, text.results, strict=True)
    return [port.value in constant and declared.status == "presharded" for port, declared in rows]


def with_element_types(text: Text, dtypes: Sequence[np.dtype[Any]]) -> Text:
    """Returns the text with arguments of other element types, which it converts to its own first.

    Upstream's runtime converts arguments to the types that devices hold: truth values to bfloat16, for one.
    """
    program, made = text.program, list[Op]()
    for number, dtype in enumerate(dtypes):
        own = program.types[number]
        if dtype != own.dtype:
            inside = program.new(own)
            program.types[number] = replace(own, dtype=dtype, layout="")
            for op in program.ops:
                op.operands = tuple([inside if v == number else v for v in op.operands])
            program.results = [replace(p, value=inside) if p.value == number else p for p in program.results]
            made.append(Op("ttnn.to_layout", (number,), (inside,), NO_ATTRIBUTES))
    if not made:
        return text
    program.ops[:0] = made
    lines, names = [text.function.line] * len(made), [op.name for op in made]
    return replace(text, lines=[*lines, *text.lines], names=[*names, *text.names], is_current=False)


def _has_transfers(text: Text) -> bool:
    return any(has_trait(op.name, Trait.TRANSFERS) for op in text.program.ops)
