"""The values of a text that are computed from no argument: every device has them, and so has the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.frontends.mlir.text import Text
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS


def results_to_copy(text: Text) -> list[bool]:
    """Returns True for each result that is declared presharded, but is computed from no argument and no transfer."""
    asked = any(r.status == "presharded" for r in text.results)
    constant = _constants(text.program, set()) if asked else set[Value]()
    rows = zip(text.program.results, text.results, strict=True)
    return [port.value in constant and declared.status == "presharded" for port, declared in rows]


def _constants(program: Program, known: set[Value]) -> set[Value]:
    """Returns the values that are computed from no argument but known ones, and from no transfer."""
    found = set(known)
    for op in program.ops:
        if has_trait(op.name, Trait.TRANSFERS):
            continue
        if found.issuperset(op.used) or has_trait(op.name, Trait.CREATES):
            found.update(op.results)
        elif op.name == "ttcore.while_loop":
            found.update(_constant_states(op, found))
    return found


def _constant_states(op: Op, known: set[Value]) -> Iterator[Value]:
    """Yields the results of a loop whose states are computed from known values alone, as counters are."""
    attributes: Any = op.attributes
    body, count = attributes[FUNCTIONS][0].program, int(attributes["state_count"])
    fixed = {n for n, v in enumerate(op.used) if v in known}
    while True:
        inside = _constants(body, {body.arguments[n].value for n in fixed})
        rest = {n for n in fixed if n >= count or body.results[n].value in inside}
        if rest == fixed:
            break
        fixed = rest
    yield from (r for r, n in zip(op.results, attributes["output_indices"], strict=True) if n in fixed)
