"""The pass that decides layouts: each value of a flat TTNN program gets the forms that its readers need.

A value stands in one or several forms (element type, layout, memory). An op takes the forms of its definition; a form
that does not exist yet is made from an existing one, once, by as few conversions as possible. The layout ops of the
input program are dropped, so inverse pairs vanish.

tt-mlir does this in two passes, TTNNLayout and the operand workarounds of TTNNWorkarounds
(lib/Dialect/TTNN/Transforms/TTNNLayout.cpp, lib/Dialect/TTNN/Transforms/Workarounds/TTNNWorkaroundsPatterns.cpp at
19c86fca), with differences: nothing here is converted to a type that does not hold all its values. There, float32
tables of embeddings, float32 poolings, sorts, tanh and attention become bfloat16, and integers in permutations, sums
and products become float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Program, Type, Value
from jaxmesh.dialects.ttnn.forms import Forms, Takes, as_dtype, stored_as
from jaxmesh.dialects.ttnn.layouts import padded_shape
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.layouts.conversions import (
    StoredForm,
    forms_of,
    path,
    taken_in_tiles,
    tensors,
    values_in_rows,
    with_arguments,
)
from jaxmesh.passes.layouts.mesh_rank import OFFER
from jaxmesh.passes.small_dims import LARGE, MUCH
from jaxmesh.passes.ttir_to_ttnn.builder import DEVICE


def decide_layouts(program: Program, strict: bool = True, offer: str = OFFER) -> Program:
    """Returns the program with every op's operands in forms that the real function takes.

    Args:
      program: of TTNN ops, before its memory is managed.
      strict: whether an operand for which there is no such form is an error; else it stays as it is.
      offer: of `offer_of`; it ends the messages.

    Raises:
      UnsupportedError: an element type that the real library does not have, or that one of its functions does not take
        and that no other type holds exactly.
    """
    return _Decider(_without_int16(program) if strict else program, strict, offer).run()


_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)


def _without_int16(program: Program) -> Program:
    """Returns the program with int32 in place of int16, unless that is an argument's or a result's or is summed up.

    The pass to TTNN computes integers of 16 bits in int32 and keeps the lower bits, so the values are the same.
    """
    types = program.types
    ports = [p.value for p in (*program.arguments, *program.results)]
    sums = [v for op in program.ops if has_trait(op.name, Trait.REDUCES) for v in op.results]
    if all(t.dtype != _INT16 for t in types) or any(types[v].dtype == _INT16 for v in (*ports, *sums)):
        return program
    types = [replace(t, dtype=_INT32) if t.dtype == _INT16 else t for t in types]
    same: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = replace(op, operands=tuple(None if v is None else same.get(v, v) for v in op.operands))
        value = op.operands[0] if op.operands else None
        if op.name == "ttnn.typecast" and value is not None and types[value].dtype == types[op.results[0]].dtype:
            same[op.results[0]] = value
        else:
            ops.append(op)
    results = [replace(r, value=same.get(r.value, r.value)) for r in program.results]
    return replace(program, types=types, ops=ops, results=results)


class _Decider:
    def __init__(self, program: Program, strict: bool, offer: str) -> None:
        self.source = program
        self.strict, self.offer = strict, offer
        self.made = replace(program, types=list(program.types), ops=[], results=[])
        self.in_rows = values_in_rows(program)
        self.handle: Value | None = None
        self.line = ""
        self.refused = False
        """True if the library refuses an operand of the current op."""
        self.wanted: dict[object, tuple[Forms, Sequence[tuple[Takes, StoredForm]]]] = {}
        """By what a function takes, whether any layout is tiles, and its operands' types: the forms that it takes."""
        self.forms: dict[Value, dict[StoredForm, Value]] = {}
        """By value of the program that comes in: the forms that exist, and the values that they are."""

    def run(self) -> Program:
        for port in self.source.arguments:
            form = self._form(port.value)
            if port.value in self.in_rows:
                # It comes as all of its readers take it.
                form = form._replace(tile=False)
                self.made.types[port.value] = replace(self.made.types[port.value], tile=False)
            self._add(port.value, form, port.value)
        for op in self.source.ops:
            self._op(op)
        self.line = ""
        self.made.results = [replace(r, value=self._provide(r.value, self._form(r.value))) for r in self.source.results]
        return self.made

    # --- forms ---

    def _form(self, value: Value) -> StoredForm:
        kind = self.source.types[value]
        return StoredForm(kind.dtype, kind.tile, kind.host)

    def _add(self, value: Value, form: StoredForm, made: Value) -> None:
        if self.strict and stored_as(form.dtype) is None:
            shape = list(self.source.types[value].shape)
            raise UnsupportedError(
                f"the real ttnn has no element type for {form.dtype.name}, that of a tensor {shape}"
                f"{self._where()}. Convert it to one that it has (astype): bfloat16, float32, int32, uint32, uint16, "
                f"uint8 or int8{self.offer}."
            )
        self.forms.setdefault(value, {})[form] = made

    def _provide(self, value: Value, form: StoredForm) -> Value:
        """Returns a value in a form, converted if it is not there."""
        have = self.forms[value]
        if form not in have:
            start, steps = path(frozenset(have), form)
            for step in steps:
                if step not in have:
                    have[step] = self._convert(have[start], start, step)
                start = step
        return have[form]

    def _convert(self, value: Value, before: StoredForm, after: StoredForm) -> Value:
        """Appends one conversion."""
        operands: tuple[Value, ...] = (value,)
        attributes = {}
        if before.dtype != after.dtype:
            name = "typecast"
        elif before.tile != after.tile:
            name, attributes = "to_layout", {"layout": "tile" if after.tile else "row_major"}
        elif before.host:
            name, operands = "to_device", (value, self._handle)
        else:
            name = "from_device"
        kind = Type(self.made.types[value].shape, after.dtype, host=after.host, tile=after.tile)
        result = self.made.new(kind)
        self.made.ops.append(Op(f"ttnn.{name}", operands, (result,), attributes, self.line))
        return result

    @property
    def _handle(self) -> Value:
        if self.handle is None:
            self.handle = self.made.new(DEVICE)
            mesh = {"mesh_shape": tuple(self.made.mesh.values())}
            self.made.ops.insert(0, Op("ttnn.get_device", (), (self.handle,), mesh))
        return self.handle

    # --- ops ---

    def _op(self, op: Op) -> None:
        self.line = op.line
        if has_trait(op.name, Trait.LAYOUT):
            (operand, *_) = op.used
            self.forms[op.results[0]] = self.forms[operand]
        elif op.name == "ttnn.get_device":
            (self.handle,) = op.results
            self.made.ops.append(op)
        elif op.name == LOOP:
            self._loop(op)
        elif has_trait(op.name, Trait.MEMORY) or all(self.source.types[v].host for v in op.results):
            self._on_host(op)
        else:
            self._on_devices(op)

    def _loop(self, op: Op) -> None:
        """Builds a loop, whose condition takes the operands as its body does."""
        tiles = taken_in_tiles(op)
        (op,) = replace(self.source, ops=[op]).with_bodies(lambda body: with_arguments(body, tiles)).ops
        operands = [self._provide(v, self._form(v)._replace(tile=t)) for v, t in zip(op.used, tiles, strict=True)]
        self._append(op, operands, [self._form(v) for v in op.results])

    def _on_host(self, op: Op) -> None:
        """Builds transfers, and what is made or reshaped on the host."""
        types = self.source.types
        operands = [
            v
            if v is None or types[v].kind == "device"
            else self._provide(v, StoredForm(types[v].dtype, tile=False, host=True))
            for v in op.operands
        ]
        self._append(op, operands, [self._form(v) for v in op.results])

    def _append(self, op: Op, operands: Sequence[Value | None], forms: Sequence[StoredForm]) -> None:
        for value, form in zip(op.results, forms, strict=True):
            kind = self.made.types[value]
            if (kind.dtype, kind.tile, kind.host) != form:
                self.made.types[value] = replace(kind, dtype=form.dtype, tile=form.tile, host=form.host)
            self._add(value, form, value)
        given = tuple(operands)
        self.made.ops.append(op if given == op.operands else Op(op.name, given, op.results, op.attributes, op.line))

    def _on_devices(self, op: Op) -> None:
        definition = ttnn_definition(op.name)
        assert definition is not None, op.name
        found = forms_of(self.source, op, definition)
        given = tensors(self.source, op)
        operands: list[Value | None] = []
        for value, (takes, form) in zip(given, self._takes(op, given, found), strict=True):
            # Mostly it is there.
            there = None if value is None else self.forms[value].get(form)
            operands.append(there if value is None or there is not None else self._convert_to(value, takes, form))
        kinds = [None if v is None else self.made.types[v] for v in operands]
        wanted = [self.source.types[v].dtype for v in op.results]
        forms = [StoredForm(*found.result(i, kinds, dtype)) for i, dtype in enumerate(wanted)]
        if self.refused:
            # The emulation computes the program unchanged.
            forms = [form._replace(dtype=dtype) for form, dtype in zip(forms, wanted, strict=True)]
        self._append(op, [*operands, *op.operands[len(given) :]], forms)

    def _stays_in_rows(self, op: Op, given: Sequence[Value | None], found: Forms) -> bool:
        """Returns True if an op that takes any layout runs in rows, as its result is read.

        Its operands are in rows already, or tiles make the result much larger than they are.
        """
        value, types = op.results[0], self.source.types
        if value not in self.in_rows:
            return False
        free = [v for i, v in enumerate(given) if v is not None and found.operand(i).layout == "either"]
        if all(any(not form.tile for form in self.forms[v]) for v in free):
            return True
        taken = sum(math.prod(padded_shape(types[v].shape, tile=True)) for v in free)
        elements = math.prod(padded_shape(types[value].shape, tile=True))
        return elements * types[value].dtype.itemsize >= LARGE and elements >= MUCH * taken

    def _takes(self, op: Op, given: Sequence[Value | None], found: Forms) -> Sequence[tuple[Takes, StoredForm]]:
        """Returns the forms that a function takes for operands of these element types, computed once."""
        self.refused = False
        tile = not self._stays_in_rows(op, given, found)
        own = [_INT32 if v is None else self.source.types[v].dtype for v in given]
        key = (id(found), tile, *own)
        known = self.wanted.get(key)
        if known is not None and known[0] is found:
            return known[1]
        rows = [(found.operand(number), dtype) for number, dtype in enumerate(self._dtypes(op, given, own, found))]
        forms = [
            (t, StoredForm(d, not t.host and (tile if t.layout == "either" else t.layout == "tile"), t.host))
            for t, d in rows
        ]
        if not self.refused and None not in given:
            self.wanted[key] = found, forms
        return forms

    def _convert_to(self, value: Value, takes: Takes, form: StoredForm) -> Value:
        have = self.forms[value]
        if takes.truth:
            form = next((f for f in have if (f.tile, f.host) == (form.tile, form.host)), form)
        return self._provide(value, form)

    # --- element types ---

    def _dtypes(self, op: Op, given: Sequence[Value | None], own: Sequence[DType], found: Forms) -> list[DType]:
        """Returns the element type that each operand is taken in; its own if the library refuses it in any."""
        stored = [None if v is None else stored_as(t) for v, t in zip(given, own, strict=True)]
        taken = [None if s is None else found.operand(i).type_for(s) for i, s in enumerate(stored)]
        for number, value in enumerate(given):
            if value is not None and taken[number] is None:
                self._refuse(op, number, found)
        numbers = [i for i, t in enumerate(taken) if t is not None and not found.operand(i).truth]
        if found.alike and len({taken[i] for i in numbers}) > 1:
            common = _common([str(stored[i]) for i in numbers], [found.operand(i) for i in numbers])
            if common is None:
                self._refuse(op, numbers[-1], found)
            taken = [common if i in numbers else t for i, t in enumerate(taken)]
        rows = zip(own, stored, taken, strict=True)
        return [o if t is None or t == s else as_dtype(t) for o, s, t in rows]

    def _refuse(self, op: Op, number: int, found: Forms) -> None:
        self.refused = True
        if not self.strict:
            return
        kinds = [self.source.types[v] for v in tensors(self.source, op) if v is not None]
        types = sorted(found.operand(number).types)
        taken = f"takes {', '.join(types)} as operand {number}" if types else f"cannot take operand {number}"
        given = ", ".join(f"{k.dtype.name}{list(k.shape)}" for k in kinds)
        raise UnsupportedError(
            f"{op.name} of the real ttnn {taken}, got {given}{self._where()}. {found.remedy}{self.offer}."
        )

    def _where(self) -> str:
        return f" ({self.line})" if self.line else ""


def _common(stored: Sequence[str], takes: Sequence[Takes]) -> str | None:
    """Returns the type that holds the values of operands of several types."""
    for name in dict.fromkeys((*stored, "FLOAT32", "INT32")):
        if all(
            name in t.types and (s == name or name in t.casts.get(s, ())) for s, t in zip(stored, takes, strict=True)
        ):
            return name
    return None
