"""The rules that follow from the definitions of ops: element types of operands, and the types of results.

A definition also states the layout that a program uses. The library mostly takes both layouts; a rule says where it
needs tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from jaxmesh.dialects import textual, ttnn
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Type
from jaxmesh.dialects.ttnn.elementwise import OPS as ELEMENTWISE
from jaxmesh.dialects.ttnn.forms import BF16, BLOCKS, F32, REALS, Gives, Occurrence, as_dtype
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.ttnn.rules.facts import adds_any
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, checked

_CUMPROD = textual.OPS["ttnn.cumprod"]
assert isinstance(_CUMPROD, TtnnOp)
DEFINITIONS: Mapping[str, TtnnOp] = {op.python.callee: op for op in (*ttnn.OPS.values(), _CUMPROD)}
"""By the dotted name of the function."""


def defined(given: Given) -> list[Result]:
    """Returns the results by the definition of the function's op, after the checks of its operands.

    A function takes tiles only where its definition has them and the op computes, and not element by element. Operands
    whose layout is free have the same.
    """
    op = DEFINITIONS[given.callee]
    operands = _operands(given, op)
    forms = op.forms_of(_occurrence(given, op, operands))
    rank, dim = max(1, len(given.tensors()[0].shape)) if given.tensors() else 1, given["dim"]
    good = Trait.MOVES in op.traits or not isinstance(dim, int) or -rank <= dim < rank
    given.require(good, f"has no dim {dim}", "Dimension out of range")
    any_type = adds_any(given)
    free = op.name in ELEMENTWISE or not op.traits.isdisjoint((Trait.MOVES, Trait.COLLECTIVE))
    for number, form in enumerate(operands):
        if form is not None:
            given.on_devices(form)
            given.require(bool(forms.operand(number).types), f"refuses it: {forms.remedy}", "an error by shape")
            # The library returns tensors without dims or elements before it looks at the layout.
            if not free and forms.operand(number).layout == "tile" and form.shape and not form.is_empty:
                given.tiles(form)
            if not any_type and (free or not form.is_empty):
                types = forms.operand(number).types
                given.types(form, types | BLOCKS if BF16 in types else types)
    layouts = {form.layout for i, form in enumerate(operands) if form and forms.operand(i).layout == "either"}
    given.require(len(layouts) < 2, "takes its operands in one layout", "must have the same layout")
    there = [form for form in operands if form is not None]
    # Operands of unlike element types are computed in one.
    mixed = forms.alike and len({form.dtype for form in there}) > 1
    computed = F32 if mixed and all(form.dtype in REALS for form in there) else None
    gives = [forms.gives[min(i, len(forms.gives) - 1)] for i in range(op.results[0])]
    return checked(given, [_result(given, g, there[0] if there else None, operands, computed) for g in gives])


def _operands(given: Given, op: TtnnOp) -> list[Form | None]:
    params = {int(p.key): p.name for p in op.python.params if p.source == "operand"}
    values = [given[params[number]] for number in sorted(params)]
    return [value if isinstance(value, Form) else None for value in values]


def _occurrence(given: Given, op: TtnnOp, operands: Sequence[Form | None]) -> Occurrence:
    attributes = {str(p.key): given[p.name] for p in op.python.params if p.source == "attribute"}
    return Occurrence(
        {name: value for name, value in attributes.items() if value is not None},
        tuple(None if f is None else _type(f) for f in operands),
        (),
        all(f is None or prod(f.mesh) == 1 for f in operands),
    )


def _type(form: Form) -> Type:
    return Type(form.shape, as_dtype(F32 if form.dtype in BLOCKS else form.dtype), tile=form.is_tile)


def _result(
    given: Given, gives: Gives, first: Form | None, operands: Sequence[Form | None], computed: str | None
) -> Result:
    layout = ROWS if first is None else first.layout
    if gives.layout != "either":
        layout = TILE if gives.layout == "tile" else ROWS
    asked = BF16 if first is None else first.dtype
    if gives.type == "asked":
        return Result(given["dtype"] or asked, given["layout"] or layout, computed)
    source = operands[gives.operand] if gives.type == "operand" else None
    return Result(gives.type if source is None else source.dtype, layout, computed)
