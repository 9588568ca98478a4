"""The table's columns for TTNN: an op's name and attributes there, its Python call and its C++ call.

A new op of TTNN is one `ttnn(...)` entry in one of the files `dialects/ttnn/*.py`. The emitters print calls from
it, `jaxmesh.ttnn` takes calls by it, the importer reads ops by it: none of them knows an op by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxmesh.dialects.op import ROWS, Attribute, Meaning, Row

NEEDED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Param:
    """One argument of a call, as printed; for Python also one parameter of the function, as called.

    Attributes:
      name: the parameter's name in the real API.
      source: where its value comes from: `operand` (number `key`; None where it is left out), `operands` (all, in a
        list), `attribute` (called `key`), `memory_config`, `dtype`, `layout`, `shape` (of the result), `device` (the
        last operand), `compute_config`, or `text` (always `key`, in the target language).
      key: the number or name for the source.
      form: how an attribute is written: `value` (a number, truth value, string, None, or `[1, 2]` for several),
        `shape` (`ttnn.Shape([1, 2])`), `float`, `coordinate` (`ttnn.MeshCoordinate((0, 1))`), `enum:X` (`X.<value>`,
        value as `spelled` maps it), `string:X` (the same as a string), `array` (all numbers of an array in one list,
        row-major; `::std::vector<float>{..}` in C++), `pairs` (a row of low and high numbers by turns, as
        `[[0, 1], [2, 3]]`; `::ttsl::SmallVector<::ttnn::PadSpecDim>{{0, 1}, {2, 3}}` in C++), and for rows of integers
        in C++ `int32s`, `int64s` (`::ttsl::SmallVector`), `vector` (`::std::vector<int32_t>`), `uint32s`
        (`::std::array<uint32_t, n>`), `span` (`ttsl::make_const_span` of a variable that is an `int32s`). The source
        `shape` has the forms `shape` and `value`.
      keyword: whether Python prints it as `name=value`.
      default: what the real API takes for it when it is left out; `NEEDED` if it may not be.
      on_host: whether it is printed when the result is a host tensor; the device and the memory config are unset then.
    """

    name: str
    source: str
    key: int | str = 0
    form: str = "value"
    keyword: bool = False
    default: Any = NEEDED
    on_host: bool = True


SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "ReduceType": {"sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod"},
    "ScatterReduction": {"sum": "add", "prod": "multiply", "max": "amax", "min": "amin"},
}
"""By the last part of an enum's name: how it spells the dialect's values, where it is otherwise."""


def spelled(enum: str, value: str) -> str:
    """A value of the dialect as an enum of the API spells it.

    >>> spelled("ttnn.ReduceType", "sum"), spelled("ScatterReduction", "max")
    ('Sum', 'amax')
    """
    name = enum.replace("::", ".").rsplit(".", 1)[-1]
    return SPELLINGS.get(name, {}).get(value, value)


def operand(name: str, number: int = 0, *, keyword: bool = False, default: Any = NEEDED) -> Param:
    """An operand, by number."""
    return Param(name, "operand", number, keyword=keyword, default=default)


def operands(name: str) -> Param:
    """All operands, as a list."""
    return Param(name, "operands")


def attribute(
    name: str, key: str | None = None, *, form: str = "value", keyword: bool = False, default: Any = NEEDED
) -> Param:
    """An attribute; `key` is its name in the dialect if the parameter has another."""
    return Param(name, "attribute", key or name, form, keyword, default)


def text(name: str, printed: str, *, keyword: bool = False, default: Any = None) -> Param:
    """An argument that is always printed alike; what a caller gives for it is taken and means nothing here."""
    return Param(name, "text", printed, keyword=keyword, default=default)


def none(name: str, *, keyword: bool = True) -> Param:
    """An argument that is printed as unset."""
    return Param(name, "none", keyword=keyword, default=None)


MEMORY = Param("memory_config", "memory_config", keyword=True, default=None)
DTYPE = Param("dtype", "dtype", keyword=True, default=None)
LAYOUT = Param("layout", "layout", keyword=True, default=None)
DEVICE = Param("device", "device", keyword=True, default=None)
COMPUTE = Param("compute_kernel_config", "compute_config", keyword=True, default=None)


def placed(param: Param) -> Param:
    """The same argument, printed by place."""
    return replace(param, keyword=False)


def by_place(*params: Param) -> tuple[Param, ...]:
    """The same arguments, printed by place, as C++ has them."""
    return tuple(map(placed, params))


@dataclass(frozen=True, slots=True)
class Signature:
    """A call: the function's name (`ttnn.add`; `ttnn::add` in C++) and its arguments, in order."""

    callee: str
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class TtnnRow:
    """One op of TTNN.

    Attributes:
      row: name, operands, attributes, results and meaning, as of a row of TTIR; a device handle is no operand there.
      python: the Python call.
      cpp: the C++ call.
      on_device: whether MLIR writes the device as last operand when the result is on the devices (creation ops).
      in_place: the number of an operand into whose memory the real op writes its result, if there is one; the operand
        is of no use afterwards. Nothing but the pass that makes the program has to care.
    """

    row: Row
    python: Signature
    cpp: Signature
    on_device: bool = False
    in_place: int | None = None


TTNN: dict[str, TtnnRow] = {}
"""By TTNN name, without the dialect. The two transfers and what speaks of the device alone are not here; they are in
`SPECIAL`."""

SPECIAL = frozenset({
    "get_device", "distribute_tensor", "aggregate_tensor", "to_device", "from_device", "to_layout", "deallocate",
})  # fmt: skip
"""Ops that every emitter, the importer and the emulated API know by name: the mesh, transfers, layouts, memory."""


def ttnn(
    name: str,
    *,
    like: str | None = None,
    python: Sequence[Param],
    cpp: Sequence[Param],
    callee: str | None = None,
    cpp_callee: str | None = None,
    meaning: Meaning | None = None,
    operands: int | tuple[int, int | None] | None = None,
    attributes: Sequence[Attribute] | None = None,
    results: tuple[int, int | None] = (1, 1),
    casts: bool | None = None,
    on_device: bool = False,
    in_place: int | None = None,
) -> None:
    """Enters an op of TTNN.

    Args:
      name: its name in the dialect, without it.
      like: the TTIR row whose operands, attributes and meaning it shares; by default the one of the same name.
      python: the arguments of the Python call, in order.
      cpp: the arguments of the C++ call, in order.
      callee: the function's dotted name if it is not `ttnn.<name>` (C++ has `::` for the dots).
      meaning: its own meaning, with `operands` and `attributes`, where it shares no row.
      operands: how many it takes, or the least and the most.
      attributes: those it knows; by default those of the row it is like.
      results: the least and the most results, of an op with a meaning of its own.
      casts: whether the declared element type may be another than the meaning's; by default as the row it is like.
      cpp_callee: the same for C++ alone; by default Python's.
      on_device: see `TtnnRow`.
      in_place: see `TtnnRow`.
    """
    assert name not in TTNN, name
    if meaning is None:
        base = ROWS[like or name]
        row = replace(
            base,
            name=name,
            attributes=base.attributes if attributes is None else tuple(attributes),
            casts=base.casts if casts is None else casts,
        )
    else:
        assert operands is not None, name
        arity = (operands, operands) if isinstance(operands, int) else operands
        row = Row(name, arity, tuple(attributes or ()), meaning, results, bool(casts))
    dotted = callee or f"ttnn.{name}"
    calls = Signature(dotted, tuple(python)), Signature((cpp_callee or dotted).replace(".", "::"), tuple(cpp))
    TTNN[name] = TtnnRow(row, *calls, on_device, in_place)


_BY_NAME: dict[int, tuple[tuple[Attribute, ...], Mapping[str, Attribute]]] = {}
"""By the identity of a row's attributes, which are kept beside so that they stay alive."""


def attributes_of(row: Row) -> Mapping[str, Attribute]:
    """The attributes of a row by name."""
    key = id(row.attributes)
    found = _BY_NAME.get(key)
    if found is None:
        found = _BY_NAME[key] = row.attributes, {a.name: a for a in row.attributes}
    return found[1]
