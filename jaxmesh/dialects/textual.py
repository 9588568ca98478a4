"""Operations of both dialects that are read, lowered and printed as MLIR, and have no call in Python and C++.

Those of `textual.txt` have no meaning here either: they travel through the passes with the types that the text gives
them, and executing a program that has one is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxmesh.dialects.op import Arity, Attribute, Call, Form, Kind, OpDef, Trait, need
from jaxmesh.dialects.ttir.helpers import check_dim, jnp, lax, vary_together
from jaxmesh.dialects.ttnn.data_types import ANY
from jaxmesh.dialects.ttnn.forms import Forms, Gives, Takes
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.walk import all_eqns

TABLE = Path(__file__).with_name("textual.txt")
OPS: dict[str, OpDef] = {}
"""By name, with the dialect."""
HANDLES: dict[str, tuple[int, int | None]] = {}
"""By name: the least and the most operands that are no tensors, but the mesh device or semaphores."""
OPERANDS: dict[str, Sequence[str]] = {}
"""By name: the operands as the table names them, `name?` for one that may be left out."""
GROUPS: dict[str, int] = {}
"""By name: how many operand groups `operandSegmentSizes` counts, if the op needs it."""

ROWS: Mapping[str, frozenset[int]] = {
    "ttnn.paged_fill_cache": frozenset({2, 3}),
    "ttnn.paged_update_cache": frozenset({2, 3}),
    "ttnn.chunked_scaled_dot_product_attention": frozenset({3, 4}),
    "ttnn.paged_scaled_dot_product_attention_decode": frozenset({3, 5}),
    "ttnn.paged_flash_multi_latent_attention_decode": frozenset({3, 5}),
    "ttnn.slice_dynamic": frozenset({1, 2}),
}
"""By name: the numbers of the operands that are taken in rows."""
MUTATES: Mapping[str, frozenset[int]] = {"ttnn.batch_norm_training": frozenset({1, 2})}
"""By name: the numbers of the operands that are changed where they are, beside the one of `OpDef.writes`."""
BY_ELEMENT_TYPE = frozenset(
    f"{dialect}.{name}{form}"
    for name in ("quantize", "dequantize", "requantize")
    for dialect, form in (("ttir", ""), ("ttir", "_unrolled"), ("ttnn", ""))
)
"""Ops whose meaning depends on element types that JAX does not have: frontends, which read these, compute it."""
_WRITES: Mapping[str, int] = {"paged_fill_cache": 0, "paged_update_cache": 0}

_LINE = re.compile(r"(\w+\.\w+)\(([^)]*)\)(?: \{([^}]*)\})?(?: -> (.*))?")
_ATTRIBUTE = re.compile(r"(\w+)(\??): ([#\w.]+)(?: = (.*))?")
_HANDLE = re.compile(r"(?:mesh_)?device\??$|.*semaphore")
_KINDS: Mapping[str, Kind] = {
    "f32": "float", "bool": "bool", "string": "str", "i32a": "ints", "i32s": "ints", "any": "any", "text": "any",
    "number": "number",
}  # fmt: skip
"""By form; others are of integers, and `#...` those of enums."""

opaque_p = compat.unlowered_primitive("opaque_op")
opaque_p.multiple_results = True


@opaque_p.def_abstract_eval
def _opaque_types(*operands: Any, name: str, results: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    first = operands[0]
    return [compat.retype(first, r.shape, compat.varying_axes(first)).update(dtype=r.dtype) for r in results]


def check_executable(jaxpr: compat.Jaxpr) -> None:
    """Raises an error if a program has operations without a meaning.

    Raises:
      MissingRuleError: it has; the message names them.
    """
    names = dict.fromkeys(e.params["name"] for e in all_eqns(jaxpr) if e.primitive is opaque_p)
    if names:
        listed = ", ".join(names)
        raise MissingRuleError(
            f"{listed} cannot be executed: no meaning of it is known here; it is read, lowered and printed as MLIR. "
            "Run the text with tt-mlir, or write what it does with other operations."
        )


def _opaque(name: str, call: Call) -> Any:
    operands = call.operands or (jnp.zeros(()),)
    return opaque_p.bind(*vary_together(*operands), name=name, results=call.results)


def forms_of(name: str, operands: int) -> Forms:
    """Returns the forms in which an op of TTNN takes so many operands: as they are, in tiles but for some in rows."""
    rows = ROWS.get(name, frozenset[int]())
    takes = [Takes(ANY, "rows" if i in rows else "tile") for i in range(max(operands, 1))]
    return Forms(tuple(takes), (Gives("asked", layout="tile"),), alike=False)


def promoted_composite(attributes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the op of TTNN that a composite stands for; `has_x` says whether the optional operand `x` is there."""
    name = f"ttnn.{attributes['composite_name']}"
    given: Mapping[str, Any] = attributes.get("composite_attributes", {})
    made = {k: v for k, v in given.items() if not k.startswith("has_")}
    if name in GROUPS:
        there = (not n.endswith("?") or given.get(f"has_{n[:-1]}", False) for n in OPERANDS[name])
        made["operandSegmentSizes"] = tuple(map(int, there))
    return name, made


# --- the table -------------------------------------------------------------------------------------------------------


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _arity(names: Sequence[str]) -> Arity:
    least = sum(name[-1] not in "?*" for name in names)
    return least, None if any(name.endswith("*") for name in names) else len(names)


def _attribute(text: str) -> Attribute:
    """An attribute as the table writes it, `seed?: ui32 = 0`."""
    found = _ATTRIBUTE.fullmatch(text)
    assert found is not None, text
    name, optional, form, default = found.groups()
    known: Any = form
    mlir_form: Form = known
    kind = _KINDS.get(form, "enum" if form.startswith("#") else "int")
    return Attribute(name, kind, not optional, None if default is None else _default(kind, default), mlir_form)


def _default(kind: Kind, text: str) -> Any:
    match kind:
        case "bool":
            return text == "true"
        case "float":
            return float(text)
        case "int":
            return int(text)
        case "ints":
            return tuple(map(int, text.split("x")))
        case _:
            return text.strip('"')


def _read(line: str) -> None:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    name, operands, results = found[1], _names(found[2]), _names(found[4])
    OPERANDS[name] = operands
    tensors = [n for n in operands if not _HANDLE.match(n)]
    handles = [n for n in operands if n not in tensors]
    attributes = tuple(map(_attribute, _names(found[3])))
    short, writes = name.partition(".")[2], _WRITES.get(name.partition(".")[2])
    made = (1, 1) if writes is not None else _arity(results)
    traits = frozenset({Trait.TEXTUAL} if name in BY_ELEMENT_TYPE else {Trait.TEXTUAL, Trait.OPAQUE})
    OPS[name] = OpDef(short, _arity(tensors), attributes, partial(_opaque, name), made, True, traits, writes=writes)
    if handles:
        HANDLES[name] = _arity(handles)
    if sum(n[-1] in "?*" for n in operands) > 1:
        GROUPS[name] = len(operands)


for _line in TABLE.read_text().splitlines():
    if not _line.startswith("#"):
        _read(_line)


# --- with a meaning --------------------------------------------------------------------------------------------------


def _cumprod(call: Call) -> Any:
    (x,) = call.operands
    return jnp.cumprod(x, check_dim(call, call["dim"], x.ndim, "dim"), dtype=x.dtype)


def _bitcast(call: Call) -> Any:
    return lax.bitcast_convert_type(call.operands[0], call.result.dtype)


_TEXTUAL = frozenset({Trait.TEXTUAL})
_FORMS: Mapping[str, Form] = {"ttir": "i64", "ttnn": "si32"}
for _dialect, _form in _FORMS.items():
    OPS[f"{_dialect}.cumprod"] = OpDef(
        "cumprod", (1, 1), (need("dim", "int", form=_form),), _cumprod, casts=True, traits=_TEXTUAL
    )
    OPS[f"{_dialect}.bitcast_convert"] = OpDef("bitcast_convert", (1, 1), (), _bitcast, casts=True, traits=_TEXTUAL)
