"""Decodes a function of a TTIR or TTNN file to a flat program, op by op: calls are inlined."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.definitions import FUNCTION_OPS, definition_of, has_trait
from jaxmesh.dialects.op import UPSTREAM, Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Port, Program, Type, Value
from jaxmesh.dialects.textual import HOST_CALL
from jaxmesh.dialects.ttir.elementwise import WIDENING
from jaxmesh.errors import MissingRuleError, UnsupportedError, VerifyError
from jaxmesh.frontends.mlir import quantization
from jaxmesh.frontends.mlir.attributes import Types, Values, entries, layout_of
from jaxmesh.frontends.mlir.control_flow import functions_of
from jaxmesh.frontends.mlir.deviations import WrittenOp, attribute_types, deviations
from jaxmesh.frontends.mlir.module import (
    Function,
    Named,
    boundary_attributes,
    check_sizes,
    line_of,
    operations,
    outermost,
)
from jaxmesh.frontends.mlir.preprocess import PROPERTIES
from jaxmesh.frontends.mlir.source import Piece
from jaxmesh.frontends.mlir.text import DEVICE, Text, add_location, located
from jaxmesh.frontends.mlir.ttnn_attributes import FUSED
from jaxmesh.frontends.mlir.upgrade import (
    EMPTY,
    FUNCTIONS,
    LAYOUT,
    Spelled,
    Upgrade,
    blank_attributes,
    current_name,
    dropped_attributes,
    set_local_types,
    spell,
)
from jaxmesh.jaxprs.source_locations import of_argument, resolve

MAX_CALLS = 100
MAX_OPS = 1_000_000
"""Calls are inlined: a few functions that call each other twice stand for any number of ops."""

TRACE = "ttnn.capture_or_execute_trace"
"""The op that runs a function once to record what the devices do, and replays the record afterwards."""
_CALLS = frozenset(
    {TRACE, *[name for name, d in FUNCTION_OPS.items() if not d.traits.isdisjoint({Trait.CALL, Trait.CONTROL_FLOW})]}
)

_WIDE = re.compile(r"x([us]?i64|index)\b")
_HANDLE = re.compile(r"!ttnn\.(device|global_semaphore)$")
"""The types of mesh devices and semaphores."""


def decode(function: Function, functions: Named) -> Text:
    """Decodes a function and all that it calls of the file's functions."""
    decoder = _Decoder(functions, function)
    decoder.count(function)
    made = decoder.upgrade(function)
    program = made.program
    # Nothing names the arguments of a function that is called.
    paths = [of_argument(str(a.location)) for a in function.operation.regions[0].blocks[0].arguments]
    program.arguments = [Port(i, presharded=False, path=path) for i, path in enumerate(paths)]
    with located(function.line, f"@{function.name}"):
        arguments = boundary_attributes(function, "arg_attrs", len(program.arguments))
        results = boundary_attributes(function, "res_attrs", len(program.results))
    set_local_types(program, arguments, decoder.types)
    return Text(
        function,
        program,
        made.lines,
        made.names,
        made.end,
        tuple(arguments),
        tuple(results),
        decoder.needs,
        decoder.device_mesh,
        tuple(decoder.notes),
        tuple(filter(None, dict.fromkeys(decoder.deviations.values()))),
        made.is_current,
    )


def _spelling(operation: ir.Operation, piece: Piece) -> object:
    """Returns a key of the name and the attributes of an op."""
    name, written = operation.name, operation.attributes
    try:
        # The length does not count the properties.
        rest = tuple([(k, v) for k, v in entries(written) if k != PROPERTIES]) if len(written) else ()
    except UnsupportedError as error:
        raise add_location(line_of(operation, piece), name, error) from None
    return name, written.get(PROPERTIES), rest


def _callee_of(attributes: Mapping[str, Any]) -> object:
    return attributes.get("callee", attributes.get("decomposition", ""))


def _symbol(written: object) -> str:
    return str(written).removeprefix("@").strip('"')


class _TextOp(NamedTuple):
    """An op as the text has it; ops of one key differ in their operands alone."""

    operation: ir.Operation
    line: int
    name: str
    operands: Sequence[ir.Value]
    results: Sequence[ir.Value]
    source: str
    key: int


class _Decoder:
    def __init__(self, functions: Named, function: Function) -> None:
        self._named, self._root, self._text = functions, function, (text := function.piece.rewritten)
        self.types = Types(self._note, narrows=True)
        self.needs: str | None = None
        self.device_mesh: tuple[int, ...] | None = None
        self.notes: list[str] = []
        self.deviations: dict[WrittenOp, str] = {}
        self._line = 1
        self._spellings: dict[object, Spelled] = {}
        # Many ops share a location of the text.
        self._type = functools.cache(self._convert_type)
        self._source = functools.cache(functools.partial(resolve, aliases=text.aliases))
        self._arguments_of = functools.cache(self._arguments)
        # Some functions are called often.
        self._called = functools.cache(self._written)
        self._keys: dict[object, int] = {}
        self._bodies: dict[Function, tuple[list[ir.Operation], int]] = {}
        self._open: list[Function] = []
        self._values = Values(Types(self._note, wide=True), text)

    def _note(self, text: str) -> None:
        self.notes.append(f"line {self._line}: {text}")

    def count(self, function: Function) -> int:
        """Checks the calls of a function, and of what it calls; returns the number of its ops, calls inlined."""
        if function not in self._bodies:
            self._open.append(function)
            body, calls = operations(function.operation), dict[object, list[ir.Operation]]()
            for operation in [op for op in body if op.name in _CALLS]:
                calls.setdefault(_spelling(operation, function.piece), []).append(operation)
            size = len(body) - 1
            for alike in calls.values():
                with located(line_of(alike[0], function.piece), alike[0].name):
                    callees = self._callees(alike[0], function)
                    size += len(alike) * (sum(map(self._count_callee, callees)) - 1) if callees else 0
            if size > MAX_OPS:
                why = VerifyError(f"its calls, inlined, make {size} ops; at most {MAX_OPS} are read.")
                raise add_location(function.line, f"@{function.name}", why)
            self._open.pop()
            self._bodies[function] = body, size
        return self._bodies[function][1]

    def _count_callee(self, callee: Function) -> int:
        if callee in self._open:
            chain = " -> ".join(f"@{f.name}" for f in (*self._open, callee))
            raise VerifyError(f"a function that calls itself ({chain}); calls are inlined, so none may recur.")
        if not callee.has_body:
            raise UnsupportedError(f"calls @{callee.name[:80]}, which is declared without a body.")
        if len(self._open) >= MAX_CALLS:
            raise VerifyError(f"calls nest more than {MAX_CALLS} deep.")
        return self.count(callee)

    def upgrade(self, function: Function, *, may_write: bool = True) -> Upgrade:
        """Returns a function with its calls inlined."""
        types = [*self._arguments_of(function).values()]
        numbers = [*range(len(types))]
        made = Upgrade(Program(function.name, {}, types, [Port(n, presharded=False) for n in numbers]))
        results, after = self._inline(function, made, numbers)
        if after != numbers and not may_write:
            raise UnsupportedError(
                f"calls @{function.name[:80]}, which writes to an argument; write to it in the caller."
            )
        made.program.results = [Port(v, presharded=False) for v in results]
        return made

    def _arguments(self, function: Function) -> dict[ir.Value, Type]:
        """Returns the arguments of a function with their types."""
        blocks = function.operation.regions[0].blocks
        self._line = function.line
        with located(function.line, f"@{function.name}"):
            if len(blocks) != 1:
                raise UnsupportedError(f"{len(blocks)} blocks; TTIR functions have one, without branches.")
            return {a: self._type(a.type, True) for a in blocks[0].arguments}

    def _inline(self, function: Function, made: Upgrade, operands: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Appends the ops of a function; returns the values of its results, and of its arguments at its end."""
        arguments = self._arguments_of(function)
        if len(operands) != len(arguments):
            raise VerifyError(f"passes {len(operands)} values to @{function.name[:80]}, which takes {len(arguments)}.")
        values = dict(zip(arguments, operands, strict=True))
        written = self._written if function is self._root else self._called
        for operation in self._bodies[function][0]:
            try:
                op = written(function, operation)
                self._line = made.end = op.line
                if op.name == "func.return":
                    return [values[v] for v in op.operands], [values[a] for a in arguments]
                self._add(function, made, op, values)
            except Exception as error:
                raise add_location(line_of(operation, function.piece), operation.name, error) from None
        why = VerifyError("ends without a func.return; write one, of the values of its results.")
        raise add_location(function.line, f"@{function.name}", why)

    def _written(self, function: Function, operation: ir.Operation) -> _TextOp:
        """Returns an op as the text has it."""
        line, spelling = line_of(operation, function.piece), _spelling(operation, function.piece)
        operands, results = list(operation.operands), list(operation.results)
        of_operands = tuple([v.type for v in operands]) if self._text.quantizes else len(operands)
        key = function.home, spelling, tuple([r.type for r in results]), of_operands
        number, location = self._keys.setdefault(key, len(self._keys)), self._text.locations.get(line, "")
        source = location and self._source(location)
        return _TextOp(operation, line, operation.name, operands, results, source, number)

    def _add(self, function: Function, made: Upgrade, op: _TextOp, values: dict[ir.Value, Value]) -> None:
        """Appends an op, or the ops of the function that it calls, and sets the values of its results."""
        operation, line, name, given, results, source, key = op
        operands, known = [values[v] for v in given], made.program.types
        may_have_destinations = operands and operands[-1] in made.unwritten
        if may_have_destinations and not (name in _CALLS and self._callees(operation, function)):
            self._check_known(name)
            operands = made.without_destinations(name, operands, self._result_types(operation))
        # Equally written ops of a module differ in their operands alone.
        types = [known[v] for v in operands]
        kinds = key, *(types if name.endswith(".all_to_all_combine") else [t.kind for t in types])
        if (spelled := self._spellings.get(kinds)) is None:
            spelled = self._spellings[kinds] = self._spell(function, operation, types)
        if spelled.callees:
            if name == TRACE:
                # The function that is traced finds the device itself.
                given, operands = given[1:], operands[1:]
            found, after = self._inline(spelled.callees[0], made, operands)
            for value, before, now in zip(given, operands, after, strict=True):
                if before != now and given.count(value) > 1:
                    raise UnsupportedError("passes a tensor twice to a function that writes to it; pass a copy.")
            values.update(zip(given, after, strict=True))
        else:
            found, number = made.add(spelled, operands, line, source), spelled.overwritten
            results = results if number is None else given[number : number + 1]
        values.update(zip(results, found, strict=True))

    def _spell(self, function: Function, operation: ir.Operation, given: Sequence[Type]) -> Spelled:
        name = operation.name
        self._check_known(name)
        if len(operation.regions):
            raise VerifyError("has a region; no op of a program has one.")
        types = self._result_types(operation)
        attributes, definition = self._attributes(operation), definition_of(current_name(name))
        blank = blank_attributes(definition, attributes)
        dropped = dropped_attributes(definition, operation.attributes)
        if blank or dropped:
            attributes = {k: v for k, v in attributes.items() if k not in blank and k not in dropped}
        if self._text.quantizes or has_trait(name, Trait.BY_ELEMENT_TYPE):
            moves = name in EMPTY or has_trait(name, Trait.CALL) or has_trait(name, Trait.MOVES)
            attributes = quantization.with_elements(name, operation, attributes, moves=moves)
        if name == "ttnn.to_layout" and LAYOUT not in attributes and types and types[0].layout:
            attributes = {**attributes, LAYOUT: "tile" if types[0].tile else "row_major"}
        callees = self._callees(operation, function) if name in _CALLS else ()
        if has_trait(name, Trait.CONTROL_FLOW):
            bodies = tuple([self.upgrade(f, may_write=False) for f in callees])
            return Spelled(name, name, {**attributes, FUNCTIONS: bodies}, types, range(len(given)))
        if callees:
            return Spelled(name, name, NO_ATTRIBUTES, types, callees=callees)
        if has_trait(name, Trait.CALL):
            name, attributes = HOST_CALL, {"callee": f"@{_symbol(_callee_of(attributes))}"}
        elif name not in EMPTY:
            self._compare(name, operation, (dropped, blank), sum(t.kind != "tensor" for t in given))
        self._read_device(name, attributes)
        return spell(name, attributes, given, types)

    def _result_types(self, operation: ir.Operation) -> list[Type]:
        results, is_ttnn = list(operation.results), operation.name.startswith("ttnn.")
        handle = _HANDLE.match(str(results[0].type)) if is_ttnn and results else None
        if handle is None:
            self._check_width(operation.name, results)
            return [self._type(r.type, is_ttnn) for r in results]
        return [replace(DEVICE, kind=handle[1])] * len(results)

    def _check_width(self, op: str, results: Sequence[ir.Value]) -> None:
        """Reports an op that may need more than 32 bits of an integer of 64."""
        found = _WIDE.search(str(results[0].type)) if op.partition(".")[2] in WIDENING and results else None
        if found is not None and self.types(results[0].type).dtype.itemsize < 8:
            self.deviations[WrittenOp(op, frozenset(), 0, 0, 0)] = (
                f"line {self._line}: {op} of {found[1]} is computed in 32 bits, and is right if its result fits; for "
                'all bits call jax.config.update("jax_enable_x64", True).'
            )

    def _convert_type(self, written: ir.Type, layouts: bool) -> Type:
        """Returns a tensor type; with `layouts`, its layout of TTNN too. MLIR has each type once."""
        known = self.types(written)
        layout = layout_of(written, self._text.attributes) if layouts else ""
        # With a layout of TTNN the dims of a tensor of tiles count elements, as a rule tiles.
        return Type(
            tuple(written.shape if "ttnn_layout<" in layout else known.shape),
            np.dtype(known.dtype),
            host="#ttnn.buffer_type<system_memory>" in layout,
            tile="!ttcore.tile<" in layout,
            layout=layout,
        )

    def _read_device(self, op: str, attributes: Mapping[str, object]) -> None:
        sizes = attributes.get("mesh_shape")
        if op == "ttnn.get_device" and self.device_mesh is None and isinstance(sizes, tuple):
            self.device_mesh = cast("tuple[int, ...]", sizes)
            check_sizes(self.device_mesh, f"line {self._line}: ttnn.get_device")

    def _check_known(self, op: str) -> None:
        """Checks that an op has a definition.

        Raises:
          MissingRuleError: it has none.
        """
        if self.needs is None and has_trait(current_name(op), Trait.COLLECTIVE):
            self.needs = f"line {self._line}: {op}"
        if op in EMPTY or definition_of(current_name(op)) is not None:
            return
        if op.startswith(("ttir.", "ttnn.")):
            raise MissingRuleError(
                f"{op[:80]} has no definition; add one in jaxmesh/dialects/{op[:4]}/ (see the files there for its "
                f"like). {UPSTREAM} has none."
            )
        raise MissingRuleError(
            f"{op[:80]} is no op of TTIR; lower the file to TTIR first, or add a rule in "
            "jaxmesh/frontends/mlir/decode.py."
        )

    def _compare(
        self, op: str, operation: ir.Operation, left_out: tuple[Sequence[str], Collection[str]], devices: int
    ) -> None:
        """Compares the first of equally written ops with upstream's definition."""
        (dropped, blank), attributes = left_out, operation.attributes
        pairs = set(attribute_types(attributes[PROPERTIES])) if PROPERTIES in attributes else set[tuple[str, str]]()
        # The length does not count the properties.
        if len(attributes):
            pairs |= {pair for pair in attribute_types(attributes) if pair[0] != PROPERTIES}
        types = frozenset((k, v) for k, v in pairs if k not in blank and (k not in FUSED))
        written = WrittenOp(op, types, len(operation.operands) - devices, devices, len(operation.results))
        if written not in self.deviations:
            found = "; ".join(deviations(written))
            what = f"{', '.join(map(repr, dropped))} is left out" if dropped else "it is read as in earlier texts"
            self.deviations[written] = found and f"line {self._line}: {op} {found} ({UPSTREAM}); {what}."

    def _attributes(self, operation: ir.Operation) -> Mapping[str, Any]:
        attributes, values = operation.attributes, self._values
        found = values(attributes[PROPERTIES]) if PROPERTIES in attributes else NO_ATTRIBUTES
        if len(attributes):
            found = {**found, **{k: v for k, v in values.dictionary(attributes).items() if k != PROPERTIES}}
        return found

    def _callees(self, operation: ir.Operation, caller: Function) -> Sequence[Function]:
        """Returns the functions of the file that an op calls; none of a function of the host."""
        name, attributes = operation.name, self._attributes(operation)
        if has_trait(name, Trait.CONTROL_FLOW):
            return [self._function(f, caller) for f in functions_of(attributes)]
        called = self._traced(attributes, caller) if name == TRACE else _callee_of(attributes)
        if called is None:
            return ()
        function = self._function(called, caller)
        return () if "ttir.cpu_hoist_call" in attributes and not function.has_body else (function,)

    def _traced(self, attributes: Mapping[str, object], caller: Function) -> ir.Attribute | None:
        """Returns the name of the function that is captured as a trace: the first that `capture_callee` calls."""
        for capture in self._named.get((id(caller.piece), _symbol(attributes.get("capture_callee"))), ()):
            for call in outermost(capture.operation, lambda op: op.name == "func.call"):
                return call.attributes["callee"]
        return None

    def _function(self, symbol: object, caller: Function) -> Function:
        name = _symbol(symbol)
        named = self._named.get((id(caller.piece), name))
        if named is None:
            raise VerifyError(f"calls @{name[:80]}, which the file does not define.")
        # A file may define a name once per module: one with a body comes first, then the caller's own.
        return named[0] if len(named) == 1 else min(named, key=lambda f: (not f.has_body, f.home != caller.home))
