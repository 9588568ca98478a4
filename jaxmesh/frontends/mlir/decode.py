"""Decodes a function of a TTIR or TTNN file to a flat program: every op once, with its line."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import UPSTREAM, Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Port, Program, Type, Value
from jaxmesh.dialects.textual import HOST_CALL
from jaxmesh.dialects.ttir.elementwise import WIDENING
from jaxmesh.errors import MissingRuleError, UnsupportedError, VerifyError
from jaxmesh.frontends.mlir import quantization
from jaxmesh.frontends.mlir.attributes import Types, Values, entries, layout_of
from jaxmesh.frontends.mlir.control_flow import functions_of
from jaxmesh.frontends.mlir.deviations import WrittenOp, attribute_types, deviations
from jaxmesh.frontends.mlir.module import (
    BoundaryAttributes,
    Function,
    Named,
    boundary_attributes,
    check_sizes,
    line_of,
    operations,
    outermost,
)
from jaxmesh.frontends.mlir.preprocess import PROPERTIES, Rewritten
from jaxmesh.frontends.mlir.text import DEVICE, Text, add_location, located
from jaxmesh.frontends.mlir.ttnn_attributes import FUSED
from jaxmesh.frontends.mlir.upgrade import (
    EMPTY,
    FUNCTION,
    FUNCTIONS,
    LAYOUT,
    DecodedFunction,
    Upgrade,
    blank_attributes,
    current_name,
    dropped_attributes,
)
from jaxmesh.jaxprs.source_locations import of_argument, resolve

MAX_CALLS = 100
MAX_OPS = 1_000_000
"""Calls are inlined: a few functions that call each other twice stand for any number of ops."""

TRACE = "ttnn.capture_or_execute_trace"
"""The op that runs a function once to record what the devices do, and replays the record afterwards."""

_WIDE = re.compile(r"x([us]?i64|index)\b")
_HANDLE = re.compile(r"!ttnn\.(device|global_semaphore)$")
"""The types of mesh devices and semaphores."""


def decode(function: Function, functions: Named) -> Text:
    """Decodes a function and all that it calls of the file's functions."""
    decoder = _Decoder(functions, function.piece.rewritten)
    decoded = decoder.function(function)
    with located(function.line, f"@{function.name}"):
        arguments = boundary_attributes(function, "arg_attrs", len(decoded.program.arguments))
        results = boundary_attributes(function, "res_attrs", len(decoded.program.results))
    upgraded = Upgrade.of(decoded)
    _set_local_types(upgraded.program, arguments, decoder.types)
    return Text(
        function,
        upgraded.program,
        upgraded.lines,
        upgraded.names,
        decoded.end,
        tuple(arguments),
        tuple(results),
        decoder.needs,
        decoder.device_mesh,
        tuple(decoder.notes),
        tuple(dict.fromkeys(decoder.deviations.values())),
        upgraded.is_current,
    )


def _set_local_types(program: Program, arguments: Sequence[BoundaryAttributes], types: Types) -> None:
    """Sets the types of presharded values to their local types, where the text has those elsewhere.

    Earlier texts declare the full type of an argument, and pass it to a mesh_shard of the type `identity`, whose result
    is local; of a result, that mesh_shard has the full type. On the way to or from it only the layout changes.
    """
    kept = [op for op in program.ops if len(op.results) == 1 and (_is_identity(op) or has_trait(op.name, Trait.LAYOUT))]
    roots = {i: i for i, a in enumerate(arguments) if a.status == "presharded"}
    found: dict[Value, Type] = {}
    for op in kept:
        root = roots.get(op.used[0])
        if root is not None and _is_identity(op):
            found.setdefault(root, program.types[op.results[0]])
        elif root is not None:
            roots[op.results[0]] = root
    for number, argument in enumerate(arguments):
        known = found.get(number) if argument.local is None else types(argument.local)
        if argument.status != "presharded" or known is None:
            continue
        declared = program.types[number]
        if "ui64" in str(argument.local) and declared.shape == (*known.shape, 2):
            # Upstream passes numbers of 64 unsigned bits as pairs of 32 bits, the lower ones first.
            continue
        # Of a program that is mapped by hand, upstream writes the full type there, and declares the local.
        if len(known.shape) != len(declared.shape) or all(map(int.__le__, known.shape, declared.shape)):
            program.types[number] = replace(declared, shape=known.shape)
    full = set(roots)
    for op in kept:
        if _is_identity(op) or op.used[0] in full:
            result = op.results[0]
            full.add(result)
            program.types[result] = replace(program.types[result], shape=program.types[op.used[0]].shape)


def _symbol(written: object) -> str:
    return str(written).removeprefix("@").strip('"')


def _is_identity(op: Op) -> bool:
    return op.attributes.get("shard_type") == "identity"


class _Spelled(NamedTuple):
    """An op apart from its operands: its results' types, its size, calls inlined, and the operands it writes to."""

    name: str
    attributes: Mapping[str, Any]
    types: Sequence[Type]
    size: int
    written: Collection[int]


class _Decoder:
    def __init__(self, functions: Named, text: Rewritten) -> None:
        self._named, self._text = functions, text
        self.types = Types(self._note, narrows=True)
        self.needs: str | None = None
        self.device_mesh: tuple[int, ...] | None = None
        self.notes: list[str] = []
        self.deviations: dict[WrittenOp, str] = {}
        self._line = 1
        self._compared: set[WrittenOp] = set()
        self._types_of: dict[tuple[ir.Type, bool], Type] = {}
        self._spellings: dict[object, _Spelled] = {}
        # Many ops share a location of the text.
        self._source = functools.cache(functools.partial(resolve, aliases=text.aliases))
        self._functions: dict[Function, DecodedFunction] = {}
        self._open: list[Function] = []
        self._values = Values(Types(self._note, wide=True), text)

    def _note(self, text: str) -> None:
        self.notes.append(f"line {self._line}: {text}")

    def function(self, function: Function) -> DecodedFunction:
        """Decodes a function as its text spells it."""
        self._open.append(function)
        self._line = function.line
        blocks = function.operation.regions[0].blocks
        with located(function.line, f"@{function.name}"):
            if len(blocks) != 1:
                raise UnsupportedError(f"{len(blocks)} blocks; TTIR functions have one, without branches.")
            arguments = list(blocks[0].arguments)
            types = [self._type(a.type, layouts=True) for a in arguments]
        program = Program(function.name, {}, types)
        # Nothing names the arguments of a function that is inlined.
        paths = [of_argument(str(a.location)) if len(self._open) == 1 else "" for a in arguments]
        program.arguments = [Port(i, presharded=False, path=path) for i, path in enumerate(paths)]
        decoded = DecodedFunction(program)
        values: dict[ir.Value, Value] = {a: i for i, a in enumerate(arguments)}
        for operation in operations(function.operation):
            try:
                self._operation(function, decoded, operation, values)
            except Exception as error:
                raise add_location(self._line, operation.name, error) from None
        with located(function.line, f"@{function.name}"):
            if not decoded.end:
                raise VerifyError("ends without a func.return; write one, of the values of its results.")
            if decoded.size > MAX_OPS:
                raise VerifyError(f"its calls, inlined, make {decoded.size} ops; at most {MAX_OPS} are read.")
        self._open.pop()
        return decoded

    def _operation(
        self, function: Function, decoded: DecodedFunction, operation: ir.Operation, values: dict[ir.Value, Value]
    ) -> None:
        self._line = line = line_of(operation, function.piece)
        operands = tuple([values[v] for v in operation.operands])
        program, results, name = decoded.program, list(operation.results), operation.name
        if name == "func.return":
            program.results, decoded.end = [Port(v, presharded=False) for v in operands], line
            return
        spelled = self._spelled(function, operation, name, results, [program.types[v].kind for v in operands])
        if name == TRACE and FUNCTION in spelled.attributes:
            # The function that is traced finds the device itself.
            operands = operands[1:]
        numbers = tuple(range(len(program.types), len(program.types) + len(results)))
        values.update(zip(results, numbers, strict=True))
        program.types += spelled.types
        location = self._text.locations.get(line, "")
        op = Op(spelled.name, operands, numbers, spelled.attributes, location and self._source(location))
        decoded.size += spelled.size
        for written in [operands[i] for i in spelled.written if i < len(operands)] if spelled.written else ():
            if FUNCTION in op.attributes and operands.count(written) > 1:
                raise UnsupportedError("passes a tensor twice to a function that writes to it; pass a copy.")
            if written < len(program.arguments):
                decoded.written.add(written)
        program.ops.append(op)
        decoded.lines.append(line)

    def _spelled(
        self, function: Function, operation: ir.Operation, name: str, results: Sequence[ir.Value], kinds: Sequence[str]
    ) -> _Spelled:
        """Returns what an op has apart from its operands, once for equally written ops of a module."""
        written, types = operation.attributes, tuple([r.type for r in results])
        properties = written.get(PROPERTIES)
        # The length does not count the properties.
        rest = tuple([(k, v) for k, v in entries(written) if k != PROPERTIES]) if len(written) else ()
        of_operands = tuple([v.type for v in operation.operands]) if self._text.quantizes else ()
        key = function.home, name, properties, rest, types, tuple(kinds), of_operands
        found = self._spellings.get(key)
        if found is None:
            found = self._spellings[key] = self._spell(function, operation, kinds)
        return found

    def _spell(self, function: Function, operation: ir.Operation, kinds: Sequence[str]) -> _Spelled:
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
        callees: Sequence[DecodedFunction] = ()
        traced = self._traced(attributes, function) if name == TRACE else None
        if traced or has_trait(name, Trait.CALL):
            callee = traced or attributes.get("callee", attributes.get("decomposition", ""))
            if "ttir.cpu_hoist_call" in attributes and not self._function(callee, function).has_body:
                name, attributes = HOST_CALL, {"callee": f"@{_symbol(callee)}"}
            else:
                callees = (self._callee(callee, function),)
                attributes = {FUNCTION: callees[0]}
        elif has_trait(name, Trait.CONTROL_FLOW):
            callees = tuple(self._callee(f, function) for f in functions_of(attributes))
            if writer := next((f.program.name for f in callees if f.written), ""):
                raise UnsupportedError(f"calls @{writer[:80]}, which writes to an argument; write to it in the caller.")
            attributes = {**attributes, FUNCTIONS: callees}
        elif name not in EMPTY:
            self._compare(name, operation, (dropped, blank), kinds)
        self._read_device(name, attributes)
        number = None if types or definition is None else definition.overwritten
        written = callees[-1].written if callees else () if number is None else (number,)
        # An upgrade takes the ops of one dictionary to be equally written.
        return _Spelled(name, {**attributes}, types, sum(f.size for f in callees) if callees else 1, written)

    def _result_types(self, operation: ir.Operation) -> list[Type]:
        results, is_ttnn = list(operation.results), operation.name.startswith("ttnn.")
        handle = _HANDLE.match(str(results[0].type)) if is_ttnn and results else None
        if handle is None:
            self._check_width(operation.name, results)
            return [self._type(r.type, layouts=is_ttnn) for r in results]
        return [replace(DEVICE, kind=handle[1])] * len(results)

    def _check_width(self, op: str, results: Sequence[ir.Value]) -> None:
        """Reports an op that may need more than 32 bits of an integer of 64."""
        found = _WIDE.search(str(results[0].type)) if op.partition(".")[2] in WIDENING and results else None
        if found is not None and self.types(results[0].type).dtype.itemsize < 8:
            self.deviations[WrittenOp(op, frozenset(), 0, 0, 0)] = (
                f"line {self._line}: {op} of {found[1]} is computed in 32 bits, and is right if its result fits; for "
                'all bits call jax.config.update("jax_enable_x64", True).'
            )

    def _type(self, written: ir.Type, *, layouts: bool) -> Type:
        """Returns a tensor type; with `layouts`, its layout of TTNN too. MLIR has each type once."""
        found = self._types_of.get((written, layouts))
        if found is None:
            known = self.types(written)
            layout = layout_of(written, self._text.attributes) if layouts else ""
            # With a layout of TTNN the dims of a tensor of tiles count elements, as a rule tiles.
            found = Type(
                tuple(written.shape if "ttnn_layout<" in layout else known.shape),
                np.dtype(known.dtype),
                host="#ttnn.buffer_type<system_memory>" in layout,
                tile="!ttcore.tile<" in layout,
                layout=layout,
            )
            self._types_of[written, layouts] = found
        return found

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
        self, op: str, operation: ir.Operation, left_out: tuple[Sequence[str], Collection[str]], kinds: Sequence[str]
    ) -> None:
        """Compares the first of equally written ops with upstream's definition."""
        (dropped, blank), attributes = left_out, operation.attributes
        pairs = set(attribute_types(attributes[PROPERTIES])) if PROPERTIES in attributes else set[tuple[str, str]]()
        # The length does not count the properties.
        if len(attributes):
            pairs |= {pair for pair in attribute_types(attributes) if pair[0] != PROPERTIES}
        types = frozenset((k, v) for k, v in pairs if k not in blank and (k not in FUSED))
        tensors = kinds.count("tensor")
        written = WrittenOp(op, types, tensors, len(kinds) - tensors, len(operation.results))
        if written not in self._compared:
            self._compared.add(written)
            if found := "; ".join(deviations(written)):
                what = f"{', '.join(map(repr, dropped))} is left out" if dropped else "it is read as in earlier texts"
                self.deviations[written] = f"line {self._line}: {op} {found} ({UPSTREAM}); {what}."

    def _attributes(self, operation: ir.Operation) -> Mapping[str, Any]:
        attributes, values = operation.attributes, self._values
        found = values(attributes[PROPERTIES]) if PROPERTIES in attributes else NO_ATTRIBUTES
        if len(attributes):
            found = {**found, **{k: v for k, v in values.dictionary(attributes).items() if k != PROPERTIES}}
        return found

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

    def _callee(self, symbol: object, caller: Function) -> DecodedFunction:
        callee = self._function(symbol, caller)
        if callee in self._open:
            chain = " -> ".join(f"@{f.name}" for f in (*self._open, callee))
            raise VerifyError(f"a function that calls itself ({chain}); calls are inlined, so none may recur.")
        if not callee.has_body:
            raise UnsupportedError(f"calls @{callee.name[:80]}, which is declared without a body.")
        if len(self._open) >= MAX_CALLS:
            raise VerifyError(f"calls nest more than {MAX_CALLS} deep.")
        if callee not in self._functions:
            line = self._line
            self._functions[callee] = self.function(callee)
            self._line = line
        return self._functions[callee]
