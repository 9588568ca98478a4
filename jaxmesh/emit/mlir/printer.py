"""MLIR text of flat programs of TTIR and of TTNN, as MLIR's printer writes it, so that it reads back unchanged.

An op is printed by its definition. This module lists the attributes of ops on transfers and devices.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jaxmesh.dialects.attributes import is_uniform
from jaxmesh.dialects.definitions import HOISTED, definition_of, has_trait
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.program import LOOP, Op, Port, Program, Value
from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.emit.languages import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.mlir.attributes import array, attribute, by
from jaxmesh.emit.mlir.spelling import Layouts, Spelling, resource_section, symbol
from jaxmesh.errors import JaxmeshError, MissingRuleError, VerifyError
from jaxmesh.jaxprs.untyped import Array

_SEGMENTS = "operandSegmentSizes"
_BY_TYPE: frozenset[str | None] = frozenset({"f32", "number"})
"""Forms of attributes whose text depends on the types of the operands."""
DISCARDABLE: Mapping[str, str] = {"assume_replicated": "", "layout": "#ttnn.layout", "rounding_mode": "string"}
"""Attributes that upstream does not define, with their forms, printed as discardable attributes: a promise of the
caller, the layout of a `to_layout`, which upstream prints in the result's type, and the rounding of an integer
`divide`."""


def mlir_text(
    program: Program,
    *,
    locations: bool = False,
    layouts: bool = False,
    constant_limit: int = CONSTANT_LIMIT,
    resources: bool = True,
) -> str:
    """Returns a flat program as MLIR text: generic ops in a `func.func` in a module.

    jaxlib parses it, with unregistered dialects allowed, and prints it back unchanged; `jaxmesh.from_mlir` reads it.

    Args:
      program: the program, of one dialect.
      locations: True to print the locations of ops, arguments and the module.
      layouts: for TTNN, True to print types with the layouts of the values and the element types on the devices.
      constant_limit: the largest constant that its op spells, in elements; others are resources after the module.
      resources: True to write the elements of resources; else only their names.

    >>> from jaxmesh.dialects.program import Port, Program, Type
    >>> import numpy as np
    >>> program = Program("f", {"x": 2}, [Type((4,), np.dtype("float32"))], [Port(0, True)], [], [Port(0, True)])
    >>> print(mlir_text(program), end="")
    module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2>]>} {
      func.func @f(%arg0: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) \
-> (tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
        return %arg0 : tensor<4xf32>
      }
    }
    """
    constants = StoredConstants(program, constant_limit)
    printer = _Printer(program, Locations(written=locations), Layouts() if layouts else None, constants)
    text = printer.text()
    return text + resource_section(printer.resources) if resources else text


class _Printer:
    def __init__(
        self, program: Program, locations: Locations, layouts: Layouts | None, constants: StoredConstants
    ) -> None:
        self.program = program
        self.locations = locations
        self.layouts = layouts
        self.constants = constants
        self.resources: dict[str, Array] = {}
        self.spelling = Spelling(layouts)
        self.names: dict[Value, str] = {a.value: f"%arg{i}" for i, a in enumerate(program.arguments)}
        self.count = 0
        self.printed: dict[tuple[str, int], str] = {}
        self.spelled: dict[int, str] = {}
        self.bodies: list[Program] = []

    def text(self) -> str:
        around = self.locations.op(""), self.locations.op("")
        mesh = by(self.program.mesh.values()) or "1x1"
        lines = [
            f'module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = {mesh}>]>}} {{',
            *self._function(around[1]),
            f"}}{around[0]}",
        ]
        before, after = self.locations.definitions()
        named = () if self.layouts is None else self.layouts.definitions()
        return "\n".join([*named, *before, *lines, *after, ""])

    def _function(self, location: str, private: bool = False) -> Iterator[str]:
        visibility = "private " if private else "public " if self.program.public else ""
        ports = self._ports(private)
        yield f"  func.func {visibility}{symbol(self.program.name)}{ports} {{"
        yield from map(self._op, self.program.ops)
        yield self._return()
        yield f"  }}{location}"
        for body in self.bodies:
            constants = StoredConstants(body, sys.maxsize)
            yield from _Printer(body, self.locations, self.layouts, constants)._function(location, private=True)

    def _ports(self, private: bool) -> str:
        if not private:
            return f"({self._arguments()}){self._results()}"
        listed = ", ".join(f"{self.names[a.value]}: {self._type(a.value)}" for a in self.program.arguments)
        return f"({listed}) -> ({self._types([r.value for r in self.program.results])})"

    # --- the boundary ---

    def _arguments(self) -> str:
        return ", ".join(
            f"{self.names[a.value]}: {self._port(a)}{self.locations.argument(a.path)}" for a in self.program.arguments
        )

    def _results(self) -> str:
        listed = ", ".join(map(self._port, self.program.results))
        return f" -> ({listed})" if listed else ""

    def _port(self, port: Port) -> str:
        status = "presharded" if port.presharded else "unsharded"
        # MLIR sorts attributes by name; the axes are not an attribute of upstream.
        axes = "" if port.varying is None else f"jaxmesh.varying = {array('i64', port.varying)}, "
        role = f"ttcore.argument_type = #ttcore.argument_type<{port.role}>, " if port.role else ""
        return f"{self._type(port.value)} {{{axes}{role}ttcore.shard_status = #ttcore.shard_status<{status}>}}"

    def _return(self) -> str:
        values = [r.value for r in self.program.results]
        body = f" {self._listed(values)} : {', '.join(map(self._type, values))}" if values else ""
        return f"    return{body}{self.locations.op('')}"

    def _type(self, value: Value) -> str:
        value_type = self.program.types[value]
        # Values of one type mostly share one object.
        text = self.spelled.get(id(value_type))
        if text is None:
            text = self.spelled[id(value_type)] = self.spelling.type(value_type)
        return text

    def _types(self, values: Sequence[Value]) -> str:
        return ", ".join([self._type(v) for v in values])

    def _listed(self, values: Sequence[Value]) -> str:
        return ", ".join([self.names[v] for v in values])

    # --- operations ---

    def _op(self, op: Op) -> str:
        used, results, number = op.used, op.results, _forms(op.name)[1].overwritten
        overwritten = None if number is None else op.operands[number]
        written, reads, types = self._attributes(op), self._listed(used), self._types(used)
        if overwritten is not None:
            # From here on the operand stands for the result.
            self.names[results[0]] = self.names[overwritten]
            results = ()
        defined, result_types = self._name(op) if results else "", self._types(results)
        after = result_types if len(results) == 1 else f"({result_types})"
        return f'    {defined}"{op.name}"({reads}){written} : ({types}) -> {after}{self.locations.op(op.line)}'

    def _name(self, op: Op) -> str:
        name = f"%{self.count}"
        self.count += 1
        if len(op.results) == 1:
            self.names[op.results[0]] = name
            return f"{name} = "
        self.names.update((v, f"{name}#{i}") for i, v in enumerate(op.results))
        return f"{name}:{len(op.results)} = "

    def _attributes(self, op: Op) -> str:
        """Returns the attributes as text; ops that share a mapping share the text unless it depends on the operands."""
        if op.name == LOOP:
            return self._loop(op)
        key = op.name, id(op.attributes)
        text = self.printed.get(key)
        if text is None:
            properties = ", ".join(self._properties(op))
            text = f"{f' <{{{properties}}}>' if properties else ''}{self._discardable(op)}"
            forms, definition = _forms(op.name)
            if definition.groups is None and not _BY_TYPE.intersection(map(forms.get, op.attributes)):
                self.printed[key] = text
        return text

    def _loop(self, op: Op) -> str:
        """Returns the attributes of a loop, whose body and condition are functions behind this one."""
        count, trips = len(op.results), op.attributes.get("trips")
        bounds = {} if trips is None else {"initial": 0, "limit": trips, "step": 1}
        written = {name: f"#ttcore.loop_bound<{n}>" for name, n in bounds.items()}
        for kind in ("body", "condition"):
            if kind in op.attributes:
                name = f"{self.program.name or 'main'}_{kind}_{len(self.bodies)}"
                self.bodies.append(replace(op.attributes[kind], name=name))
                written[f"{kind}_program"] = symbol(name)
        written["output_indices"], written["state_count"] = array("i32", range(count)), f"{count} : i32"
        return f" <{{{', '.join(f'{name} = {text}' for name, text in sorted(written.items()))}}}>"

    def _properties(self, op: Op) -> Iterator[str]:
        forms, definition = _forms(op.name)
        left = {HOISTED, *_discardable(op.name)}
        attributes = {k: v for k, v in op.attributes.items() if v is not None and k not in left}
        attributes = {**definition.assumptions, **attributes}
        required = [a.name for a in definition.attributes if a.required]
        if absent := ", ".join(repr(name) for name in required if name not in attributes):
            raise VerifyError(f"{op.name} needs the attribute {absent}; it is missing.")
        if op.name == "ttnn.get_device":
            attributes.setdefault("mesh_offset", (0,) * len(self.program.mesh))
        kept = _SEGMENTS in attributes and has_trait(op.name, Trait.OPAQUE)
        segments = attributes.get(_SEGMENTS) if kept else _segments(op, definition, self.program)
        if segments is not None:
            attributes.setdefault(_SEGMENTS, segments)
        else:
            # Upstream defines it if several operands are optional; older TTIR wrote it on every op.
            attributes.pop(_SEGMENTS, None)
        for name in sorted(attributes):
            if name not in forms:
                raise VerifyError(f"{op.name} has no attribute {name!r}; {definition.listed_attributes}.")
            yield f"{name} = {self._written(op, name, forms[name], attributes[name])}"

    def _discardable(self, op: Op) -> str:
        if not op.attributes:
            return ""
        printed = [
            (k, op.attributes[k], form)
            for k, form in _discardable(op.name).items()
            if op.attributes.get(k) and (k != "layout" or self.layouts is None)
        ]
        spelled = (f" = {attribute(form, v, self.spelling)}" if form else "" for _, v, form in printed)
        written = [f"jaxmesh.{k}{text}" for (k, _, _), text in zip(printed, spelled, strict=True)]
        written += [HOISTED] if HOISTED in op.attributes else []
        return f" {{{', '.join(written)}}}" if written else ""

    def _written(self, op: Op, name: str, form: str, value: Any) -> str:
        stored = self.constants.name(op) if form == "dense" else None
        if stored is not None and not is_uniform(value):
            self.resources.setdefault(stored, self.spelling.as_stored(value))
            return self.spelling.resource(stored, value)
        try:
            return attribute(form, value, self.spelling, wide=form in _BY_TYPE and self._wide(op))
        except JaxmeshError as error:
            raise type(error)(f"{op.name}: attribute {name!r}: {error}") from None

    def _wide(self, op: Op) -> bool:
        return any(self.program.types[v].dtype == "float64" for v in (*op.used, *op.results))


@lru_cache(1024)
def _discardable(op: str) -> Mapping[str, str]:
    """Returns by an op's name the attributes that are printed as discardable, with their forms."""
    defined: Container[str] = _forms(op)[0] if has_trait(op, Trait.OPAQUE) else ()
    return {name: form for name, form in DISCARDABLE.items() if name not in defined}


@lru_cache(1024)
def _forms(op: str) -> tuple[Mapping[str, str], OpDef]:
    """Returns the MLIR forms of an op's attributes, and its definition."""
    definition = definition_of(op)
    if definition is None:
        folder = "ttnn" if op.startswith("ttnn.") else "ttir"
        raise MissingRuleError(f"no text for {op!r}: it has no definition; add one in jaxmesh/dialects/{folder}/.")
    return {a.name: a.form for a in definition.attributes} | {_SEGMENTS: "i32a"}, definition


def _segments(op: Op, definition: OpDef, program: Program) -> tuple[int, ...] | None:
    """Returns a flag per operand, 1 if present, for ops with several optional operands; None for other ops."""
    most, least = definition.groups, definition.operands[0]
    if most is None:
        return None
    operands = [v for v in op.operands if v is None or program.types[v].kind != "device"]
    if len(operands) > most or sum(v is not None for v in operands) < least:
        raise VerifyError(f"{op.name} takes {least} operands and up to {most - least} more, got {operands}.")
    return tuple(int(v is not None) for v in [*operands, *[None] * (most - len(operands))])


_LINE = re.compile(r"(.+?):([0-9]{1,9})(?::([0-9]{1,9}))?(?: \((.*)\))?", re.DOTALL)


def source(line: str) -> str:
    """Returns a source line `file:line (function)` as a location; any other text as a named location.

    >>> source("model.py:12 (f)"), source("model.py:12:5 (f)"), source("")
    ('loc("model.py":12:0)', 'loc("model.py":12:5)', 'loc(unknown)')
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return named(line)
    file, line_number, column = match.group(1), int(match.group(2)), int(match.group(3) or 0)
    return f"loc({mlir_string(file)}:{line_number}:{column})"


def named(name: str) -> str:
    """Returns a name as a location."""
    return f"loc({mlir_string(name)})" if name else "loc(unknown)"


class Locations:
    """The locations of one text, numbered in the order of their first use; all are empty unless `written`."""

    def __init__(self, *, written: bool) -> None:
        self._written = written
        self._numbers: dict[str, int] = {}
        self._first: set[str] = set()
        self._of_line: dict[str, str] = {}

    def op(self, line: str) -> str:
        """Returns the location of an operation, a function or the module."""
        suffix = self._of_line.get(line) if self._written else ""
        if suffix is None:
            number = self._numbers.setdefault(source(line), len(self._numbers))
            suffix = self._of_line[line] = f" loc({_alias(number)})"
        return suffix

    def argument(self, path: str) -> str:
        """Returns the location of an argument: MLIR writes it inline, and defines it before the module."""
        if not self._written:
            return ""
        location = named(path)
        self._numbers.setdefault(location, len(self._numbers))
        self._first.add(location)
        return f" {location}"

    def definitions(self) -> tuple[list[str], list[str]]:
        """Returns the lines before and after the module."""
        lines = {location: f"{_alias(number)} = {location}" for location, number in self._numbers.items()}
        first = [line for location, line in lines.items() if location in self._first]
        return first, [line for location, line in lines.items() if location not in self._first]


def _alias(number: int) -> str:
    return f"#loc{number or ''}"
