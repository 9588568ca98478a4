"""Operations of upstream that have no meaning here: read, checked, printed as they are, and never executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import pytest

import jaxmesh as jm
from jaxmesh.dialects import textual
from jaxmesh.dialects.attributes import Attribute
from jaxmesh.dialects.op import Trait
from jaxmesh.emit.mlir.printer import mlir_text

OURS = {name: row for name, row in textual.OPS.items() if Trait.NOT_UPSTREAM not in row.traits}
NAMES = sorted(name for name, row in OURS.items() if Trait.OPAQUE in row.traits)
TENSOR, DEVICE, SEMAPHORE = "tensor<32x32xbf16>", "!ttnn.device", "!ttnn.global_semaphore"
WRITTEN = {
    "f32": "5.000000e-01 : f32", "number": "2.000000e+00 : f32", "bool": "true", "string": '"word"',
    "i32a": "array<i32: 1, 2>", "edges": "array<i32: 1, 2>", "i32s": "[1 : i32, 2 : i32]", "any": "1 : i32",
    "text": "#ttnn.config<a = 1, b = <2x2>>",
}  # fmt: skip
SETUP = {
    DEVICE: '    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x1>}> '
    ": () -> !ttnn.device\n",
    SEMAPHORE: '    %1 = "ttnn.create_global_semaphore"(%0) <{core_range_set = #ttnn.core_range_set<[(0,0)]>}> : '
    "(!ttnn.device) -> !ttnn.global_semaphore\n",
}


def written(attribute: Attribute) -> str:
    form = attribute.form
    return WRITTEN.get(form) or (f"{form}<word>" if form.startswith("#") else f"1 : {form}")


def values(name: str, *, every: bool) -> Iterator[tuple[str, int]]:
    """The operand groups of an op with the number of values in each: all that there may be, or the fewest."""
    for operand in textual.OPS[name].operand_names:
        kind = DEVICE if re.match(r"(mesh_)?device\??$", operand) else SEMAPHORE if "semaphore" in operand else TENSOR
        yield kind, 2 * every if operand.endswith("*") else int(every or not operand.endswith("?"))


def operation(name: str, arguments: int, first: int, *, every: bool) -> tuple[str, int, list[str]]:
    """One op as a line, how many arguments it takes from a number on, and its results, named from a number on."""
    row, groups = textual.OPS[name], list(values(name, every=every))
    given = [kind for kind, count in groups for _ in range(count)]
    rest, handles = iter(range(arguments, arguments + len(given))), {DEVICE: "%0", SEMAPHORE: "%1"}
    operands = ", ".join(handles.get(kind) or f"%arg{next(rest)}" for kind in given)
    chosen = {a.name: written(a) for a in row.attributes if every or a.required}
    if row.groups is not None:
        chosen["operandSegmentSizes"] = f"array<i32: {', '.join(str(n) for _, n in groups)}>"
    properties = ", ".join(f"{k} = {v}" for k, v in sorted(chosen.items()))
    least, most = (0, 0) if row.overwritten is not None else row.results
    count = least if not every else 2 if most is None else most
    types = [SEMAPHORE if "semaphore" in name and least == 1 else TENSOR] * count
    defined = "" if not count else f"%{first} = " if count == 1 else f"%{first}:{count} = "
    after = types[0] if count == 1 else f"({', '.join(types)})"
    line = f'    {defined}"{name}"({operands})' + (f" <{{{properties}}}>" if properties else "")
    return line + f" : ({', '.join(given)}) -> {after}", given.count(TENSOR), types


def program(names: Sequence[str], *, every: bool) -> tuple[str, list[str]]:
    """A text with the ops, and the lines of all its ops; it returns the first result of each that is a tensor."""
    kinds = {kind for name in names for kind, count in values(name, every=every) if count}
    needed = [k for k in SETUP if k in kinds or (k == DEVICE and SEMAPHORE in kinds)]
    lines = [SETUP[kind].rstrip() for kind in needed]
    returned: list[str] = []
    arguments, number = 0, len(needed)
    for name in names:
        line, taken, types = operation(name, arguments, number, every=every)
        lines.append(line)
        if types[:1] == [TENSOR]:
            returned.append(f"%{number}" if len(types) == 1 else f"%{number}#0")
        arguments, number = arguments + taken, number + bool(types)
    tensors = ", ".join([TENSOR] * len(returned))
    end = f"    return {', '.join(returned)} : {tensors}" if returned else "    return"
    signature = ", ".join(f"%arg{i}: {TENSOR}" for i in range(arguments))
    result = f" -> ({tensors})" if returned else ""
    body = "\n".join([*lines, end])
    return f"module {{\n  func.func @f({signature}){result} {{\n{body}\n  }}\n}}\n", lines


@pytest.mark.parametrize("every", [True, False], ids=["all", "fewest"])
@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
def test_operations_are_printed_as_they_were_read(dialect: str, every: bool) -> None:
    text, lines = program([n for n in NAMES if n.startswith(f"{dialect}.")], every=every)
    traced = jm.from_mlir(text)
    assert traced.imported is not None
    read = traced.imported.program(dialect)
    assert read is not None
    printed = mlir_text(read)
    assert [line for line in printed.splitlines() if re.search(r'"\w+\.\w+"\(', line)] == lines
    again = jm.from_mlir(printed).imported
    assert again is not None
    program_again = again.program(dialect)
    assert program_again is not None
    assert mlir_text(program_again) == printed


@pytest.mark.parametrize("name", [n for n in NAMES if "semaphore" not in n])
def test_executing_it_is_an_error_that_names_it(name: str) -> None:
    traced = jm.from_mlir(program([name], every=False)[0])
    given = [jnp.ones((32, 32), jnp.bfloat16) for _ in jax.tree.leaves(traced.in_avals)]
    with pytest.raises(jm.MissingRuleError, match=f"{name} cannot be executed"):
        traced.reference(*given)
    with pytest.raises(jm.MissingRuleError, match=f"{name} cannot be executed"):
        traced.lower().compile()(*given)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("prob = 5.000000e-01 : f32", 'prob = "much"', "prob"),
        ("(%arg0)", "(%arg0, %arg0)", "takes 1 operands, got 2"),
        ("seed = 1 : ui32", "sed = 1 : ui32", "no attribute 'sed'"),
    ],
)
def test_it_is_verified(old: str, new: str, words: str) -> None:
    text = program(["ttir.dropout"], every=True)[0]
    assert old in text
    changed = text.replace(old, new)
    if "arg0, %arg0" in new:
        changed = changed.replace(f"({TENSOR}) ->", f"({TENSOR}, {TENSOR}) ->")
    with pytest.raises(jm.VerifyError, match=words):
        jm.from_mlir(changed)
