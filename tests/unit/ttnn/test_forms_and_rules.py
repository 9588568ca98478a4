"""The forms that a program uses are among those that the real functions accept, and the results have the same types.

`dialects/ttnn/forms.py` says which forms a program uses, `ttnn/rules` which ones the library accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects.program import Op, Port, Program, Type, Value
from jaxmesh.dialects.ttnn import OPS
from jaxmesh.dialects.ttnn.forms import stored_as
from jaxmesh.emit.python.calls import arguments
from jaxmesh.errors import UnsupportedError
from jaxmesh.passes.layouts.decide_layouts import _Decider
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.ttnn import functions, refusals
from jaxmesh.ttnn.rules import RULES
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form
from tests.generators.real_ttnn.sweep_calls import DTYPES, MESH, chosen, groups_of, sizes_of
from tests.generators.ttnn_cases import BOOL, I32, Case

DEVICE = jm.make_mesh(MESH)


class Described(TensorBase):
    """Stands for a tensor of a form."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def device(self) -> Any:
        return DEVICE


def programs(case: Case) -> Iterator[tuple[Program, bool]]:
    """The program of one occurrence for each element type, its operands in tiles and in rows."""
    groups, shapes = groups_of(case), sizes_of(case)
    indices = [g for g in groups if case.operands[g[0]].dtype == I32 and case.op not in ("where", "all_reduce")]
    for kind in (*DTYPES, BOOL):
        for tile in (True, False):
            for apart in dict.fromkeys(((), tuple(indices[0]) if len(groups) > 1 and indices else ())):
                program = Program("f", dict(zip("yx", MESH, strict=True)))
                operands: list[Value | None] = []
                for i, shape in enumerate(shapes):
                    if shape is None:
                        operands.append(None)
                        continue
                    operands.append(program.new(Type(shape, I32 if i in apart else kind, tile=tile)))
                    program.arguments.append(Port(operands[-1] or 0, True))
                row = OPS[case.op]
                if row.on_device:
                    handle = program.new(Type((), np.dtype("i4"), kind="device"))
                    program.ops.append(Op("ttnn.get_device", (), (handle,)))
                    missing = (row.operands[1] or 0) - len(operands)
                    operands += [*[None] * missing, handle]
                first = next((x.dtype for x in case.operands if x is not None), kind)
                types = [(s, kind if d == first else d) for s, d in case.types]
                results = tuple(program.new(Type(s, d, tile=True)) for s, d in types)
                attributes = {**case.attributes, **({"use_multicore": True} if case.op == "pad" else {})}
                program.ops.append(Op(f"ttnn.{case.op}", tuple(operands), results, attributes))
                yield program, tile


def decided(program: Program, tile: bool) -> Program:
    decider = _Decider(program, True, "")
    if not tile:
        # As if what reads the results read rows.
        decider.in_rows = set(range(len(program.types)))
    return decider.run()


def described(kind: Type) -> Form:
    name = stored_as(kind.dtype)
    assert name is not None
    return Form(tuple(kind.shape), name, TILE if kind.tile else ROWS, kind.host, mesh=MESH)


def judge(program: Program, op: Op) -> str:
    """How an op of a program differs from what the rule of its function says; empty if it does not."""
    row = OPS[op.name.removeprefix("ttnn.")]
    names = {v: f"a{v}" for v in op.used}
    # Of an exported folder, `utils.py` says which type stands for a truth value.
    text = f"call({arguments(program, op, row, row.python.params, names)})".replace(
        "DataType.BOOL", "DataType.BFLOAT16"
    )
    tensors = {n: Described(described(program.types[v])) for v, n in names.items() if program.types[v].kind == "tensor"}
    found: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> None:
        function = functions.op_function(row.python.callee)
        (*_, one) = getattr(function, "_functions", (function,))
        values = one._binder.bind(args, kwargs)
        found["results"] = refusals.results_of(one.callee, {n: values[i] for n, i in one._binder.slots.items()})

    eval(text, {"ttnn": ttnn, "call": call, **dict.fromkeys(names.values(), DEVICE), **tensors})
    if not found["results"]:
        return ""
    gives = [(r.dtype, r.layout) for r in found["results"]]
    wanted = [(f.dtype, f.layout) for f in (described(program.types[v]) for v in op.results)]
    return "" if gives == wanted else f"gives {gives}, not {wanted}"


REFUSED = {"concatenate_heads", "update_cache"}
"""Ops that it takes in no form: the occurrences have heads of no whole tiles, and their position is a tensor."""


def is_broadcast(case: Case) -> bool:
    """True for a product of unlike batches, which the pass to TTNN makes alike."""
    batches = [s[:-2] for s in sizes_of(case)[:2] if s is not None]
    return case.op == "matmul" and batches[0] != batches[1] and np.prod(batches[1]) != 1


CASES = [c for c in chosen() if OPS[c.op].python.callee in RULES and not is_broadcast(c)]


@pytest.mark.parametrize("name", sorted({c.op for c in CASES}))
def test_the_forms_of_programs_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "form_of", lambda t: t.form)
    wrong: list[str] = []
    count = 0
    for case in CASES:
        if case.op != name:
            continue
        for program, tile in programs(case):
            try:
                made = decided(program, tile)
            except UnsupportedError:
                # No form is accepted, which the text says in an error.
                continue
            for op in made.ops:
                if op.name.removeprefix("ttnn.") in OPS:
                    count += 1
                    try:
                        difference = judge(made, op)
                    except Exception as error:
                        difference = f"{type(error).__name__}: {error}"[:300]
                    if difference:
                        kinds = [str(described(made.types[v])) for v in op.used if made.types[v].kind == "tensor"]
                        wrong.append(f"{op.name} {kinds} {op.attributes}: {difference}")
    assert count or name in REFUSED
    assert not wrong, "\n".join(dict.fromkeys(wrong))


@pytest.mark.parametrize("mesh", [(1, 1), (2, 4)])
def test_a_product_of_all_elements_needs_one_device(mesh: tuple[int, ...]) -> None:
    program = Program("f", dict(zip("yx", mesh, strict=True)))
    x, out = (program.new(Type(shape, np.dtype("f4"), tile=True)) for shape in ((4, 8), ()))
    program.arguments.append(Port(x, True))
    program.ops.append(Op("ttnn.prod", (x,), (out,), {"keep_dim": False}))
    if mesh == (1, 1):
        assert [op.name for op in decided(program, True).ops] == ["ttnn.prod"]
    else:
        with pytest.raises(UnsupportedError, match="On several devices it reduces dim by dim"):
            decided(program, True)
