"""From a function of a TTIR file to a list of steps: every op decoded once, with its line."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax

from jaxmesh.dialects import textual
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, MissingRuleError, UnsupportedError, VerifyError
from jaxmesh.frontends.mlir import quantization
from jaxmesh.frontends.mlir.attributes import Values
from jaxmesh.frontends.mlir.deviations import UPSTREAM, Form, deviations, kinds
from jaxmesh.frontends.mlir.locations import of_argument, resolve
from jaxmesh.frontends.mlir.module import (
    BoundaryAttributes,
    Function,
    boundary_attributes,
    check_sizes,
    line_of,
    outermost,
)
from jaxmesh.frontends.mlir.preprocess import PROPERTIES
from jaxmesh.frontends.mlir.types import Types, layout_of
from jaxmesh.frontends.mlir.written_ops import activation_of, definition_in_any_dialect, dropped_attributes, in_ttir

MAX_CALLS = 100
MAX_STEPS = 1_000_000
"""Calls are inlined: a few functions that call each other twice stand for any number of ops."""

_HANDLE = re.compile(r"!ttnn\.(device|global_semaphore)$")
"""Types of results that are no tensors."""

_NONE: dict[str, Any] = {}
"""The attributes of every op that has none."""

EMPTY = frozenset({"ttir.empty", "tensor.empty"})
LAYOUT = "jaxmesh.layout"
"""The attribute of a `to_layout` that says what it makes, in texts whose types do not."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One op.

    Attributes:
      line: the line of the file where it stands.
      op: its name with its dialect.
      operands: the numbers of the values that it reads.
      results: the numbers of the values that it makes.
      attributes: as Python values.
      types: the declared types of its results.
      callee: the function that it calls, if it is a call.
      location: its location in the source that the text was made of, as `file:line:column` or a name.
      handle: the kind of its results where they are no tensors: `device` or `global_semaphore`.
      layouts: the layouts of its results, as their types have them; none if they have none.
      overwritten: the number of the operand that its result overwrites; none if it has a separate result.
    """

    line: int
    op: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: dict[str, Any]
    types: tuple[jax.ShapeDtypeStruct, ...]
    callee: Body | None = None
    location: str = ""
    handle: str = ""
    layouts: tuple[str, ...] = ()
    overwritten: tuple[int, ...] = ()

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the values that are new after it: its results, or the operand that it writes to."""
        return tuple(self.operands[i] for i in self.overwritten) or self.results


@dataclass(slots=True, eq=False)
class Body:
    """The steps of a function; its arguments are the values 0, 1, ...

    Attributes:
      name: of the function.
      line: the line of the file where it begins.
      arguments: their types.
      locations: of the arguments, each empty if the text does not give it.
      layouts: of the arguments, as their types have them, each empty if the type has none.
      steps: its ops, in order.
      results: the numbers of the values that it returns.
      values: how many values there are.
      end: the line of its `func.return`.
      size: how many ops it makes, its calls inlined.
    """

    name: str
    line: int
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    locations: tuple[str, ...]
    layouts: tuple[str, ...]
    steps: list[Step] = field(default_factory=list[Step])
    results: tuple[int, ...] = ()
    values: int = 0
    end: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A function, decoded, with its boundary's attributes; `needs` is the first op that needs a mesh, with its line."""

    function: Function
    body: Body
    arguments: tuple[BoundaryAttributes, ...]
    results: tuple[BoundaryAttributes, ...]
    needs: str | None
    device_mesh: tuple[int, ...] | None
    notes: tuple[str, ...]
    deviations: tuple[str, ...]

    @property
    def presharded(self) -> tuple[bool, ...]:
        """True for each argument that is on the devices already."""
        return tuple(a.status == "presharded" for a in self.arguments)

    def varying(self, axes: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Returns, for each argument, the mesh axes over which its shards may differ; None for a full argument."""
        return [self._axes(i, axes) if p else None for i, p in enumerate(self.presharded)]

    def _axes(self, number: int, axes: Sequence[str]) -> tuple[str, ...]:
        declared = self.arguments[number].varying
        if declared is None:
            return tuple(axes)
        if any(i >= len(axes) for i in declared):
            raise VerifyError(
                f"line {self.body.line}: argument {number} of @{self.body.name}: jaxmesh.varying = {list(declared)}, "
                f"but the mesh has {len(axes)} axes; allowed are 0 to {len(axes) - 1}."
            )
        return tuple(axes[i] for i in declared)


def add_location(line: int, op: str, error: Exception) -> JaxmeshError:
    """The error with its line and op in front, if it has none yet; another's exception becomes a VerifyError."""
    ours = isinstance(error, JaxmeshError)
    if ours and str(error).startswith("line "):
        return error
    text = str(error) if ours else " ".join(str(error).split())
    text = text if len(text) <= 2000 else text[:2000] + " ..."
    name = "" if text.startswith(op) else f"{op[:80]}: "
    if ours:
        # An argument in a file is an attribute's spelling.
        kind = VerifyError if isinstance(error, ArgumentTypeError) else type(error)
        return kind(f"line {line}: {name}{text}")
    return VerifyError(f"line {line}: {name}impossible ({type(error).__name__}: {text}).")


@contextmanager
def _at(line: int, op: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise add_location(line, op, error) from None


def decode(function: Function, functions: Sequence[Function], *, promotes: bool = False) -> Program:
    """Decodes a function and all it calls; `promotes` makes composites ops of TTNN where it has one of their name."""
    decoder = _Decoder(functions)
    decoder.promotes = promotes
    body = decoder.body(function)
    with _at(function.line, f"@{function.name}"):
        declared = boundary_attributes(function, "arg_attrs", len(body.arguments))
        results = boundary_attributes(function, "res_attrs", len(body.results))
        rows = zip(declared, body.arguments, strict=True)
        noops = [s for s in body.steps if s.attributes.get("shard_type") == "identity" and len(s.types) == 1]
        body.arguments = tuple(_local(s, i, a, noops, decoder.types) for i, (s, a) in enumerate(rows))
    return Program(
        function,
        body,
        tuple(declared),
        tuple(results),
        decoder.needs,
        decoder.device_mesh,
        tuple(decoder.notes),
        tuple(dict.fromkeys(decoder.deviations.values())),
    )


def _local(
    declared: BoundaryAttributes, number: int, written: jax.ShapeDtypeStruct, noops: list[Step], types: Types
) -> jax.ShapeDtypeStruct:
    """The type a presharded argument really has: older files write the full one, and a no-op to the local one."""
    if declared.status != "presharded":
        return written
    if declared.local is not None:
        return types(declared.local)
    for step in noops:
        if number in step.operands:
            return step.types[0]
    return written


class _Decoder:
    def __init__(self, functions: Sequence[Function]) -> None:
        self._named: dict[tuple[int, str], list[Function]] = {}
        for f in functions:
            self._named.setdefault((id(f.piece), f.name), []).append(f)
        self.types = Types(self._note)
        self.promotes = False
        self.needs: str | None = None
        self.device_mesh: tuple[int, ...] | None = None
        self.notes: list[str] = []
        self.deviations: dict[Form, str] = {}
        self._line = 1
        self._known: set[str] = set()
        self._forms: set[Form] = set()
        self._handles: set[Any] = set()
        self._layouts_of: dict[Any, str] = {}
        self._kinds_of: dict[Any, frozenset[tuple[str, str]]] = {}
        self._bodies: dict[Function, Body] = {}
        self._open: list[Function] = []
        self._values: dict[int, Values] = {}
        self._quantizes = any("!quant." in text for text in {f.piece.rewritten.text for f in functions})

    def _note(self, text: str) -> None:
        self.notes.append(f"line {self._line}: {text}")

    def body(self, function: Function) -> Body:
        """The steps of a function."""
        self._open.append(function)
        self._line = function.line
        blocks = function.operation.regions[0].blocks
        with _at(function.line, f"@{function.name}"):
            if len(blocks) != 1:
                raise UnsupportedError(f"{len(blocks)} blocks; TTIR functions have one, without branches.")
            arguments = list(blocks[0].arguments)
            types = tuple(self.types(a.type) for a in arguments)
        locations = tuple(of_argument(str(a.location)) for a in arguments)
        layouts = tuple(layout_of(a.type, function.piece.rewritten.attributes) for a in arguments)
        body = Body(function.name, function.line, types, locations, layouts)
        numbers: dict[Any, int] = {a: i for i, a in enumerate(arguments)}
        for operation in outermost(function.operation, lambda op: op != function.operation):
            self._step(function, body, operation, numbers)
        body.values = len(numbers)
        body.size = sum(s.callee.size if s.callee else 1 for s in body.steps)
        with _at(function.line, f"@{function.name}"):
            if not body.end:
                raise VerifyError("ends without a func.return; write one, of the values of its results.")
            if body.size > MAX_STEPS:
                raise VerifyError(f"its calls, inlined, make {body.size} ops; at most {MAX_STEPS} are read.")
        self._open.pop()
        return body

    def _step(self, function: Function, body: Body, operation: Any, numbers: dict[Any, int]) -> None:
        op: str = operation.name
        self._line = line = line_of(operation, function.piece)
        operands = tuple(numbers[v] for v in operation.operands)
        if op == "func.return":
            body.results, body.end = operands, line
            return
        try:
            if op not in self._known:
                self._know(op, line)
                self._known.add(op)
            if len(operation.regions):
                raise VerifyError("has a region; no op of a program has one.")
            results = list(operation.results)
            found = _HANDLE.match(str(results[0].type)) if op.startswith("ttnn.") and results else None
            handle = found[1] if found else ""
            types = () if handle else tuple(self.types(r.type) for r in results)
            layouts = self._layouts(results, function) if op.startswith("ttnn.") and types else ()
            attributes = self._attributes(operation, function)
            dropped = dropped_attributes(definition_in_any_dialect(op), operation.attributes)
            if dropped:
                attributes = {k: v for k, v in attributes.items() if k not in dropped}
            if self._quantizes or has_trait(op, Trait.BY_ELEMENT_TYPE):
                moves = op in EMPTY or has_trait(op, Trait.CALL) or has_trait(op, Trait.MOVES)
                attributes = quantization.with_elements(op, operation, attributes, moves=moves)
            if op == "ttnn.to_layout" and LAYOUT not in attributes and layouts:
                attributes = attributes | {LAYOUT: "tile" if "!ttcore.tile<" in layouts[0] else "row_major"}
            if self.promotes and f"ttnn.{attributes.get('composite_name')}" in textual.OPS:
                op, attributes = textual.promoted_composite(attributes)
            activation = activation_of(op, attributes)
            callee = self._callee(attributes, function) if has_trait(op, Trait.CALL) else None
            if callee is None and op not in EMPTY and op == operation.name:
                self._compare(op, operation, dropped)
        except Exception as error:
            raise add_location(line, op, error) from None
        sizes = attributes.get("mesh_shape")
        if op == "ttnn.get_device" and self.device_mesh is None and isinstance(sizes, tuple):
            self.device_mesh = cast("tuple[int, ...]", sizes)
            check_sizes(self.device_mesh, f"line {line}: ttnn.get_device")
        if handle:
            self._handles.update(results)
        first = len(numbers)
        numbers.update((r, first + i) for i, r in enumerate(results))
        made = tuple(range(first, first + len(results)))
        text = function.piece.rewritten
        location = resolve(text.locations[line], text.aliases) if line in text.locations else ""
        definition = None if results else definition_in_any_dialect(op)
        number = None if definition is None else definition.overwritten
        into = () if number is None or number >= len(operands) else (number,)
        step = Step(line, op, operands, made, attributes, types, callee, location, handle, layouts, into)
        if activation:
            # A value of its own, which no op of the text makes.
            between = numbers[object()] = len(numbers)
            body.steps.append(replace(step, results=(between,)))
            step = replace(step, op=activation, operands=(between,), attributes=_NONE)
        body.steps.append(step)

    def _layouts(self, results: Sequence[Any], function: Function) -> tuple[str, ...]:
        """The layouts that the types of results have; MLIR keeps each type once, so they are looked at once."""
        found: list[str] = []
        for result in results:
            if result.type not in self._layouts_of:
                self._layouts_of[result.type] = layout_of(result.type, function.piece.rewritten.attributes)
            found.append(self._layouts_of[result.type])
        return tuple(found) if any(found) else ()

    def _know(self, op: str, line: int) -> None:
        """Raises a MissingRuleError for an op without meaning."""
        if self.needs is None and any(has_trait(o, Trait.COLLECTIVE) for o in (op, in_ttir(op))):
            self.needs = f"line {line}: {op}"
        if op in EMPTY or definition_in_any_dialect(op) is not None:
            return
        if op.startswith(("ttir.", "ttnn.")):
            raise MissingRuleError(
                f"{op[:80]} has no definition; add one in jaxmesh/dialects/{op[:4]}/ (see the files there for its "
                "like)."
            )
        raise MissingRuleError(
            f"{op[:80]} is no op of TTIR; lower the file to TTIR first, or add a rule in "
            "jaxmesh/frontends/mlir/decode.py."
        )

    def _kinds(self, operation: Any) -> frozenset[tuple[str, str]]:
        """The kinds of an op's attributes; MLIR keeps equal properties once, so they are looked at once."""
        attributes = operation.attributes
        has_properties = PROPERTIES in attributes
        properties = attributes[PROPERTIES] if has_properties else None
        if properties not in self._kinds_of:
            self._kinds_of[properties] = frozenset(() if properties is None else kinds(properties))
        found = self._kinds_of[properties]
        # Its length does not count the properties.
        return found if not len(attributes) else found | {pair for pair in kinds(attributes) if pair[0] != PROPERTIES}

    def _compare(self, op: str, operation: Any, dropped: Sequence[str]) -> None:
        """Notes where the first op of each form is not as upstream defines it."""
        operands = list(operation.operands)
        devices = sum(v in self._handles for v in operands) if self._handles else 0
        form = Form(op, self._kinds(operation), len(operands) - devices, devices, len(operation.results))
        if form not in self._forms:
            self._forms.add(form)
            if found := "; ".join(deviations(form)):
                what = f"{', '.join(map(repr, dropped))} is left out" if dropped else "it is read as in earlier texts"
                self.deviations[form] = f"line {self._line}: {op} {found} ({UPSTREAM}); {what}."

    def _attributes(self, operation: Any, function: Function) -> dict[str, Any]:
        piece = function.piece
        values = self._values.get(id(piece))
        if values is None:
            values = self._values[id(piece)] = Values(Types(self._note, wide=True), piece.rewritten)
        attributes = operation.attributes
        found: dict[str, Any] = values(attributes[PROPERTIES]) if PROPERTIES in attributes else _NONE
        if len(attributes):
            rest = {k: v for k, v in values.dictionary(attributes).items() if k != PROPERTIES}
            found = found | rest
        return found

    def _callee(self, attributes: dict[str, Any], caller: Function) -> Body:
        name = str(attributes.get("callee", attributes.get("decomposition", ""))).removeprefix("@").strip('"')
        named = self._named.get((id(caller.piece), name))
        if named is None:
            raise VerifyError(f"calls @{name[:80]}, which the file does not define.")
        # A file may define a name once per module: one with a body comes first, then the caller's own.
        home = caller.operation.parent
        callee = named[0] if len(named) == 1 else min(named, key=lambda f: (not f.has_body, f.operation.parent != home))
        if callee in self._open:
            chain = " -> ".join(f"@{f.name}" for f in (*self._open, callee))
            raise VerifyError(f"a function that calls itself ({chain}); calls are inlined, so none may recur.")
        if not callee.has_body:
            raise UnsupportedError(f"calls @{name[:80]}, which is declared without a body.")
        if len(self._open) >= MAX_CALLS:
            raise VerifyError(f"calls nest more than {MAX_CALLS} deep.")
        if callee not in self._bodies:
            line = self._line
            self._bodies[callee] = self.body(callee)
            self._line = line
        body = self._bodies[callee]
        if any(i < len(body.arguments) for s in body.steps if s.overwritten for i in s.written):
            raise UnsupportedError(f"calls @{name[:80]}, which writes to an argument; write to it in the caller.")
        return body
