"""Verifies a flat TTNN program: definitions for all ops, operands in the right memory, memory freed once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value, bodies
from jaxmesh.dialects.ttnn.forms import Takes, stored_as
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.errors import JaxmeshError, ResidencyError, VerifyError
from jaxmesh.passes.layouts.conversions import forms_of, tensors as tensors_of, values_in_rows
from jaxmesh.passes.memory import aliases
from jaxmesh.sharding.distribution import resolve_composer, resolve_mapper


def verify_program(program: Program, strict: bool = False) -> None:
    """Proves a flat TTNN program.

    Args:
      program: of TTNN ops.
      strict: whether operands and results must have the element types that the real functions take and give.

    Raises:
      VerifyError: an op that TTNN does not have, an unknown or missing attribute, a value used before it is there,
        after it is deallocated, or after an op that works in place wrote over it, a tensor deallocated twice or never,
        a wrong result type.
      ResidencyError: an operand on the wrong side.
    """
    _Verifier(program, strict).run()


def program_of_text(program: Callable[[Collection[Value]], Program | None]) -> Program | None:
    """Returns the flat program of a TTNN text as it stands; None if it breaks a rule that `verify_program` checks.

    Args:
      program: gives the program with some arguments in rows, and the others on the devices in tiles.
    """
    made = program(())
    if made is None or _is_valid(made):
        return made
    # A text leaves out that an argument comes in rows: it does where all of its readers take it so.
    rows = values_in_rows(made).intersection(port.value for port in made.arguments)
    made = program(rows) if rows else None
    return made if made is not None and _is_valid(made) else None


def _is_valid(program: Program) -> bool:
    try:
        verify_program(program)
    except JaxmeshError:
        return False
    return True


class _Verifier:
    def __init__(self, program: Program, strict: bool, is_body: bool = False) -> None:
        self.program = program
        self.is_body = is_body
        self.strict = strict
        self.types = program.types
        self.live: set[Value] = set()
        self.first = aliases(program.ops, program.types)
        self.shared: dict[Value, set[Value]] = {}
        """By the first value in a memory that several share: the values that are there so far."""
        for value, memory in self.first.items():
            self.shared.setdefault(memory, {memory}).add(value)
        self.checked: set[tuple[Any, ...]] = set()
        self.gone: set[Value] = set()
        self.spent: dict[Value, str] = {}
        """By a value that was written over: the op that did it."""

    def run(self) -> None:
        program = self.program
        for i, port in enumerate(program.arguments):
            kind = self.types[port.value]
            if kind.host is port.presharded or (kind.host and kind.tile):
                raise ResidencyError(
                    f"argument {i} ({_show(kind)}) is not in the memory that its port declares "
                    f"(presharded={port.presharded})."
                )
            self.live.add(port.value)
        for op in program.ops:
            self._op(op)
        self._end()

    def _op(self, op: Op) -> None:
        for value in op.used:
            # A deallocated value is not live any more.
            if value in self.live:
                continue
            if value in self.gone:
                raise VerifyError(
                    f"{op.name} uses value {value} ({_show(self.types[value])}) after it was deallocated."
                )
            raise VerifyError(f"{op.name} uses value {value}, which no argument and no earlier op defines.")
        dialect, _, name = op.name.partition(".")
        if self.spent and name != "deallocate":
            self._check_unspent(op.name, op.used)
        inner = bodies(op)
        for body in inner:
            _Verifier(body, self.strict, is_body=True).run()
        if dialect != "ttnn" and not inner:
            raise VerifyError(f"{op.name} is left in a flat TTNN program; lower it in jaxmesh/passes/ttir_to_ttnn/.")
        if name in _SPECIAL:
            _SPECIAL[name](self, op)
        elif not inner:
            self._defined(op)
        for value in op.results:
            if value in self.live or value in self.gone:
                raise VerifyError(f"{op.name} gives value {value}, which is defined already.")
            self.live.add(value)

    def _defined(self, op: Op) -> None:
        definition = ttnn_definition(op.name)
        if definition is None:
            raise VerifyError(f"{op.name} is not an op of TTNN; define it in jaxmesh/dialects/ttnn/*.py.")
        if Trait.TEXTUAL in definition.traits:
            return
        # A verdict holds for all ops of the same attributes and types, which the program keeps alive.
        kinds = [None if v is None else id(self.types[v]) for v in (*op.operands, *op.results)]
        alike = (op.name, id(op.attributes), len(op.results), *kinds)
        if alike in self.checked:
            return
        _check_attributes(op, definition)
        tensors = self._check_handle(op, definition)
        least, most = definition.operands
        if not least <= len(tensors) or (most is not None and len(tensors) > most):
            raise VerifyError(f"{op.name} takes {least} to {most} operands, got {len(tensors)}.")
        if definition.in_place is not None:
            self._write(op, definition.in_place)
        placed = [self.types[v] for v in (*tensors, *op.results)]
        if not all(k.host for k in placed):
            self._check_forms(op, definition)
        elif any(k.tile for k in placed) or not (has_trait(op.name, Trait.ON_HOST) or definition.on_device):
            raise ResidencyError(f"{op.name} works on the devices, got {', '.join(map(_show, placed))}.")
        if definition.in_place is None:
            self.checked.add(alike)

    def _check_forms(self, op: Op, definition: TtnnOp) -> None:
        """Checks that operands and results have the residencies and types of the definition."""
        found = forms_of(self.program, op, definition)
        given = tuple([None if v is None else self.types[v] for v in tensors_of(self.program, op)])
        for i, kind in enumerate(given):
            takes = found.operand(i)
            if kind is None:
                continue
            free = takes.layout == "either" and not kind.host
            if kind.host != takes.host or not (free or kind.tile == (takes.layout == "tile")):
                raise ResidencyError(f"{op.name} takes operand {i} {_wanted_form(takes)}, got {_show(kind)}.")
            if self.strict and not takes.truth and stored_as(kind.dtype) not in takes.types:
                raise VerifyError(
                    f"{op.name} takes {', '.join(sorted(takes.types))} as operand {i}, got {_show(kind)}."
                )
        for i, value in enumerate(op.results):
            kind = self.types[value]
            dtype, tile = found.result(i, given, kind.dtype)
            if kind.host or kind.tile != tile or (self.strict and dtype != kind.dtype):
                raise ResidencyError(
                    f"{op.name} gives {_show(replace(kind, dtype=dtype, tile=tile, host=False))}, got {_show(kind)}."
                )

    def _write(self, op: Op, number: int) -> None:
        """Records a write: an in-place op overwrites its operand's memory; an argument's memory is the caller's."""
        value = op.operands[number] if number < len(op.operands) else None
        if value is None:
            return
        memory = self.first.get(value, value)
        if memory in {a.value for a in self.program.arguments}:
            raise VerifyError(
                f"{op.name} works in place on value {value}, which is in the memory of an argument; copy it first with "
                "ttnn.assign."
            )
        if sum(self.first.get(v, v) == memory for v in op.used) > 1:
            raise VerifyError(f"{op.name} writes over value {value} while it reads it; copy it first with ttnn.assign.")
        self.spent.update((v, op.name) for v in self.shared.get(memory, {value}) if v in self.live)

    def _check_unspent(self, name: str, values: Iterable[Value]) -> None:
        for value in values:
            if value in self.spent:
                raise VerifyError(
                    f"{name} uses value {value} ({_show(self.types[value])}) after {self.spent[value]} wrote over it; "
                    "copy it first with ttnn.assign."
                )

    def _check_handle(self, op: Op, definition: TtnnOp) -> list[Value]:
        """Returns the tensors among the operands; the device stands last where the definition wants it."""
        given = op.used
        tensors = [v for v in given if self.types[v].kind == "tensor"]
        wants = definition.on_device and not self.types[op.results[0]].host
        last = op.operands[-1] if op.operands else None
        if len(given) - len(tensors) != wants or (wants and (last is None or self.types[last].kind != "device")):
            raise VerifyError(f"{op.name}: the device is {'' if wants else 'not '}its last operand, got {op.operands}.")
        return tensors

    def _end(self) -> None:
        returned = {r.value for r in self.program.results}
        if returned & self.gone or not returned <= self.live:
            raise VerifyError(
                f"results {sorted(returned & self.gone or returned - self.live)} are not there at the end."
            )
        for i, port in enumerate(self.program.results):
            kind = self.types[port.value]
            if not port.presharded and (not kind.host or kind.tile):
                raise ResidencyError(f"result {i} ({_show(kind)}) is to be a full host tensor.")
        self._check_unspent("the return", returned)
        # Arguments on the devices are the caller's, like returned values, and a body's are there in each iteration.
        own = {a.value for a in self.program.arguments if a.presharded or self.is_body}
        kept = {self.first.get(v, v) for v in returned | own}
        left = {v for v in self.live if self.types[v].kind == "tensor" and self.first.get(v, v) not in kept}
        if left:
            # So are unread arguments.
            read = {v for op in self.program.ops for v in op.used}
            left -= {a.value for a in self.program.arguments if a.value not in read}
        if left:
            raise VerifyError(f"values {sorted(left)} are never deallocated.")

    # --- what speaks of the mesh, of transfers, layouts, memory ---

    def get_device(self, op: Op) -> None:
        if self.types[op.results[0]].kind != "device" or op.attributes.get("mesh_shape") != self.mesh:
            raise VerifyError(f"ttnn.get_device gives the device of the mesh {self.mesh}, got {dict(op.attributes)}.")

    @property
    def mesh(self) -> tuple[int, ...]:
        return tuple(self.program.mesh.values())

    def move(self, op: Op) -> None:
        """Checks that `to_device`, `from_device` and `to_layout` change the memory or the layout of a tensor."""
        source, target = self.types[self._tensor(op)], self.types[op.results[0]]
        wanted = {
            "ttnn.to_device": replace(source, host=False),
            "ttnn.from_device": replace(source, host=True),
            "ttnn.to_layout": replace(source, tile=op.attributes.get("layout") == "tile"),
        }[op.name]
        if wanted == source or replace(target, layout=source.layout) != wanted:
            raise ResidencyError(f"{op.name} {dict(op.attributes)} makes {_show(target)} of {_show(source)}.")
        if op.name == "ttnn.to_device":
            self._handle(op)

    def transfer(self, op: Op) -> None:
        """Checks that the two transfers are between host tensors: a full tensor, and a tensor of shards."""
        source, target = self.types[self._tensor(op)], self.types[op.results[0]]
        self._handle(op)
        if not (source.host and target.host) or source.tile or target.tile:
            raise ResidencyError(f"{op.name} is between host tensors, got {_show(source)} and {_show(target)}.")
        if op.name == "ttnn.distribute_tensor":
            shape = resolve_mapper(_config(op, "mapper_config"), self.mesh, source.shape).local
        else:
            shape = resolve_composer(_config(op, "composer_config"), self.mesh, source.shape).full
        if shape != target.shape or source.dtype != target.dtype:
            raise VerifyError(f"{op.name} gives {list(shape)}, but the result is {_show(target)}.")

    def deallocate(self, op: Op) -> None:
        value = self._tensor(op)
        memory = self.shared.get(self.first.get(value, value))
        force = op.attributes.get("force")
        if force is not (memory is not None):
            raise VerifyError(
                f"ttnn.deallocate of value {value} ({_show(self.types[value])}) has force = {force}, but other values "
                f"{'share' if memory else 'do not share'} its memory."
            )
        self.live.difference_update(memory or (value,))
        self.gone.update(memory or (value,))

    def _tensor(self, op: Op) -> Value:
        value = op.operands[0] if op.operands else None
        if value is None or self.types[value].kind != "tensor":
            raise VerifyError(f"{op.name} takes a tensor first, got {op.operands}.")
        return value

    def _handle(self, op: Op) -> None:
        last = op.operands[-1]
        if len(op.operands) != 2 or last is None or self.types[last].kind != "device":
            raise VerifyError(f"{op.name} takes a tensor and the device, got {op.operands}.")


_SPECIAL: Mapping[str, Callable[[_Verifier, Op], None]] = {
    "get_device": _Verifier.get_device,
    "distribute_tensor": _Verifier.transfer,
    "aggregate_tensor": _Verifier.transfer,
    "to_device": _Verifier.move,
    "from_device": _Verifier.move,
    "to_layout": _Verifier.move,
    "to_memory_config": lambda verifier, op: None,
    "to_tensor_spec": lambda verifier, op: None,
    "deallocate": _Verifier.deallocate,
}


def _check_attributes(op: Op, definition: TtnnOp) -> None:
    if not op.attributes and not definition.attributes:
        return
    known = definition.by_name
    strange = sorted(op.attributes.keys() - known.keys())
    if strange:
        raise VerifyError(f"{op.name} has no attribute {', '.join(strange)}; {definition.listed_attributes}.")
    missing = [a.name for a in known.values() if a.required and a.name not in op.attributes]
    if missing:
        raise VerifyError(f"{op.name} needs the attribute {', '.join(missing)}.")


def _config(op: Op, name: str) -> Any:
    if name not in op.attributes:
        raise VerifyError(f"{op.name} needs the attribute {name}.")
    return op.attributes[name]


def _wanted_form(takes: Takes) -> str:
    return f"on the {'host' if takes.host else 'devices'}, in {'tiles' if takes.layout == 'tile' else 'rows'}"


def _show(value_type: Type) -> str:
    if value_type.kind == "device":
        return "the device"
    where = "host" if value_type.host else "devices"
    return f"{value_type.dtype}{list(value_type.shape)} ({where}, {'tiles' if value_type.tile else 'rows'})"
