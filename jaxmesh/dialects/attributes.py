"""Attributes of operations, and the texts that declare them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxmesh.jaxprs.untyped import Array

Kind = Literal["int", "float", "number", "bool", "str", "ints", "bools", "array", "enum", "any"]

Attributes = Mapping[str, Any]
"""Values of attributes by the dialect's name."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operation, which `attributes_of` reads.

    Kinds: `number` (whole or not), `ints` and `bools` (sequences), `array` (a NumPy array), `enum` (the dialect's name
    of a value, such as `sum`), `any`; the others are Python's types.

    `form` is the attribute's form in MLIR. Forms: `number` (`f32` or `i32`, as the value is), `i32s`
    (`[1 : i32, 2 : i32]`), `i64s` (`array<i64: 1, 2>`), `i32a` (`array<i32: 1, 2>`), `dense_i64` (a table of device
    ids), `shape` (`#ttnn.shape<2x1>`), `text` (as the text has it), and for an enum the dialect's attribute around it,
    such as `#ttcore.reduce_type`. A sequence is printed as `i32a` if the form is of a single integer, as of kind `any`;
    `edges` is an `i32a` that `reorder_edges` reorders.

    `required` is upstream's rule. With `assumed`, a text without the attribute is read with a warning and the default.
    With `must_be_empty`, only an empty value or the default is accepted: the attribute is read and never kept. With
    `later`, a version of upstream after the known one has the attribute: it is computed with, and never printed.
    """

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    form: str = "any"
    assumed: bool = False
    must_be_empty: bool = False
    later: bool = False

    def is_blank(self, value: object) -> bool:
        """Returns True if a value is empty, or the default, also for each dim."""
        parts: Any = value
        is_several = isinstance(value, (tuple, str, dict))
        return value in (None, self.default) or (is_several and all(part == self.default for part in parts))


_ATTRIBUTE = re.compile(r"(?:(empty|later) )?(\w+)(\??): (?:(\w+) )?([#\w.]+)(?: = (.*))?")
_KINDS: Mapping[str, Kind] = {
    "f32": "float", "bool": "bool", "string": "str", "i32a": "ints", "edges": "ints", "i32s": "ints", "i64s": "ints",
    "shape": "ints", "bools": "bools", "dense": "array", "number": "number",
    **dict.fromkeys(("si8", "si32", "ui32", "i32", "i64", "si64"), "int"),
}  # fmt: skip
"""By form; `#...` are those of enums, and others of any kind."""


def attributes_of(text: str) -> tuple[Attribute, ...]:
    """Returns the attributes that a text declares: `name: form`, with a default `name: form = default`.

    `name?` is optional. Texts of earlier versions leave out a required attribute with a default. Before the form may be
    the kind, and before the name `empty` for `must_be_empty`, and `later`.

    >>> [(a.name, a.kind, a.required, a.default) for a in attributes_of("sizes?: i64s = 2x3, stride: any i32")]
    [('sizes', 'ints', False, (2, 3)), ('stride', 'any', True, None)]
    """
    return tuple(map(_read_attribute, text.split(", "))) if text else ()


def _read_attribute(text: str) -> Attribute:
    found = _ATTRIBUTE.fullmatch(text)
    assert found is not None, text
    about, name, optional, kind, form, default = found.groups()
    known: Any = kind or _KINDS.get(form, "enum" if form.startswith("#") else "any")
    assumed = not optional and default is not None
    value = None if default is None else _default(known, default)
    return Attribute(name, known, not optional, value, form, assumed, about == "empty", about == "later")


def _default(kind: Kind, text: str) -> object:
    if text == "none" and kind not in ("enum", "str"):
        return None
    match kind:
        case "bool":
            return text == "true"
        case "float":
            return float(text)
        case "int" | "any":
            return int(text)
        case "ints":
            return tuple(map(int, text.split("x"))) if text != "()" else ()
        case _:
            return text.strip('"')


def reorder_edges(padding: Sequence[int]) -> tuple[int, ...]:
    """Returns the padding of a pool or a transposed convolution in the other order, if it has four numbers.

    A call of `ttnn` has (top, bottom, left, right), MLIR (top, left, bottom, right): `runtime/lib/ttnn/operations/pool/
    pool2d.cpp` of tt-mlir reorders them at 19c86fca.

    >>> reorder_edges((1, 2, 3, 4))
    (1, 3, 2, 4)
    """
    if len(padding) != 4:
        return tuple(padding)
    top, second, third, right = padding
    return (top, third, second, right)


_FIRST = 64
"""Most arrays whose elements differ do so among the first."""


def is_uniform(array: Array) -> bool:
    """Returns True if all elements of a non-empty array have the same bits."""
    if not any(array.strides):
        return True
    flat = array.reshape(-1)
    return _have_same_bits(flat[:_FIRST]) and _have_same_bits(flat)


def _have_same_bits(flat: Array) -> bool:
    elements = np.ascontiguousarray(flat).reshape(-1, 1).view(np.uint8)
    return bool((elements == elements[0]).all())
