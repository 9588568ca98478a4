"""The memory that a flat TTNN program holds on one device: its arguments, its results, and what it computes."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxmesh.analysis.account.inside import bytes_inside
from jaxmesh.analysis.account.sends import is_endless
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Program, Shape, Type, Value, bodies
from jaxmesh.dialects.ttnn.layouts import is_view, padded_shape, stored_type
from jaxmesh.drawing.text_layout import binary_bytes
from jaxmesh.passes.memory import RESHAPE, aliases
from jaxmesh.passes.small_dims import LARGE, MUCH

WIDTHS: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "bfloat8_b": 1 + 1 / 16, "bfloat4_b": 1 / 2 + 1 / 16}
"""Bytes per element; sixteen elements of a block format share a byte, their exponent."""
ARGUMENT, RESULT, TEMPORARY = "argument", "result", "temporary"


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor on the devices at the peak.

    Attributes:
      name: the path of an argument or a result; of another tensor the op that made it.
      role: `"argument"`, `"result"` or `"temporary"`.
      shape: on one device.
      dtype: the element type on the devices.
      bytes: on one device, padded to tiles.
      axes: the mesh axes that it is split over; None if they are unknown.
      line: the source line of the op that made it; empty for an argument.
      saving: the bytes that each device saves if the tensor is also split over `saving_axis`; 0 if no axis is free.
      saving_axis: a mesh axis that it is not split over, and that divides one of its dims.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    axes: tuple[str, ...] | None
    line: str = ""
    saving: int = 0
    saving_axis: str = ""

    def __str__(self) -> str:
        split = "" if self.axes is None else f", split over {', '.join(self.axes)}" if self.axes else ", a copy on each"
        saved = f"; {binary_bytes(self.saving)} less if split over {self.saving_axis}" if self.saving else ""
        line = f" at {self.line}" if self.line else ""
        return (
            f"{self.name}: {binary_bytes(self.bytes)}, {self.role} {self.dtype}{list(self.shape)}{split}{line}{saved}"
        )


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The memory of one device at the peak, in bytes; all devices hold as much.

    Attributes:
      arguments: of the arguments that are on the devices before the program starts.
      results: of results at the peak.
      temporaries: of all other tensors at the peak.
      line: the source line of the peak.
      tensors: the tensors at the peak, the largest first.
      uncounted: what ttnn takes besides, in words; empty if nothing is known.
    """

    arguments: int = 0
    results: int = 0
    temporaries: int = 0
    line: str = ""
    tensors: Sequence[HeldTensor] = field(default_factory=list[HeldTensor])
    uncounted: str = ""

    @property
    def peak(self) -> int:
        """The largest number of bytes on one device."""
        return self.arguments + self.results + self.temporaries

    def largest(self, count: int = 10) -> list[HeldTensor]:
        """Returns the largest tensors at the peak."""
        return list(self.tensors[:count])

    def __str__(self) -> str:
        parts = (self.arguments, "arguments"), (self.results, "results"), (self.temporaries, "temporaries")
        return f"peak {binary_bytes(self.peak)}: " + " + ".join(f"{name} {binary_bytes(n)}" for n, name in parts)


def memory_of(program: Program, paths: Sequence[str] = (), stored: Mapping[str, str] = NO_ATTRIBUTES) -> PeakMemory:
    """Returns the memory of a flat TTNN program, with the buffers inside of ops (`account.inside`).

    Args:
      program: the program; arguments on the devices are there before it starts.
      paths: the names of the arguments.
      stored: element types of arguments of floats by regular expressions of their paths.
    """
    types, first = program.types, aliases(program.ops, program.types)
    arguments = {port.value for port in program.arguments if port.presharded}
    paths_of_results = _results(program)
    results = {first.get(value, value) for value in paths_of_results} - arguments
    live = {p.value: _argument_bytes(types[p.value], p.path, stored) for p in program.arguments if p.presharded}
    own, inner, line = _peak(program, live)
    names = {first.get(v, v): path for v, path in paths_of_results.items()}
    names |= {port.value: port.path for port in program.arguments}
    names |= {port.value: path for port, path in zip(program.arguments, paths, strict=False)}
    roles = {v: ARGUMENT if v in arguments else RESULT if v in results else TEMPORARY for v in own}
    made = {v: op for op in program.ops for v in op.results}
    tensors = [_tensor(program, v, n, roles[v], made, names) for v, n in own.items()]
    tensors = sorted([*tensors, *inner], key=lambda tensor: -tensor.bytes)
    sums = {role: sum(t.bytes for t in tensors if t.role == role) for role in (ARGUMENT, RESULT, TEMPORARY)}
    return PeakMemory(sums[ARGUMENT], sums[RESULT], sums[TEMPORARY], line, tensors, _uncounted(program))


def _uncounted(program: Program) -> str:
    """Returns the buffers that ttnn keeps and that no rule counts: a table for each kind of reshape."""
    kinds = {
        (before.shape, after.shape, before.dtype)
        for types, op in ((p.types, op) for p in program.programs() for op in p.ops if op.name == RESHAPE)
        for before, after in [(types[op.used[0]], types[op.results[0]])]
        if before.tile and not before.host and not is_view(before.shape, after.shape, True)
    }
    if not kinds:
        return ""
    count = "1 reshape" if len(kinds) == 1 else f"{len(kinds)} reshapes"
    return f"not counted with the tensors: the tables that ttnn keeps of {count}, up to 2.3 KiB a tile of a result"


def _peak(program: Program, live: dict[Value, int]) -> tuple[dict[Value, int], list[HeldTensor], str]:
    """Returns the tensors at the peak, of the program and of the loop that runs then, and the line of the peak.

    In an iteration there are also the states of the one before, as large as the results of the loop.
    """
    endless = {v for op in program.ops if is_endless(op) for v in op.results}
    types, first = program.types, aliases(program.ops, program.types)
    first = {v: root for v, root in first.items() if v not in endless}
    now = peak = sum(live.values())
    held, inner, line = dict(live), list[HeldTensor](), ""
    for op in program.ops:
        if op.name == "ttnn.deallocate":
            now -= live.pop(first.get(op.used[0], op.used[0]), 0)
        for value in op.results:
            root = first.get(value, value)
            if root not in live and root == value and types[value].kind == "tensor" and not types[value].host:
                live[value] = bytes_on_device(types[value])
                now += live[value]
        for within, where in [_inside(body) for body in bodies(op)] or [(_buffers(program, op), op.line)]:
            total = now + sum(t.bytes for t in within)
            if total > peak:
                peak, held, inner, line = total, dict(live), within, where
    return held, inner, line


def _results(program: Program) -> dict[Value, str]:
    """Returns the paths of results, also of the tensors on the devices that only become results of the host."""
    found = {port.value: port.path for port in program.results}
    reads = Counter(v for op in program.ops if op.name != "ttnn.deallocate" for v in op.used)
    for op in reversed(program.ops):
        leaves = bool(op.results) and (has_trait(op.name, Trait.TRANSFERS) or has_trait(op.name, Trait.LAYOUT))
        path = found.get(op.results[0]) if leaves else None
        if path is not None and reads[op.used[0]] == 1:
            found.setdefault(op.used[0], path)
    return found


def _buffers(program: Program, op: Op) -> list[HeldTensor]:
    """Returns the buffers of the steps of an op, as one tensor of bytes."""
    size = bytes_inside(program, op)
    name = f"inside of {op.name.removeprefix('ttnn.')}"
    return [HeldTensor(name, TEMPORARY, (size,), "uint8", size, None, op.line)] if size else []


def _inside(body: Program) -> tuple[list[HeldTensor], str]:
    """Returns the tensors that an iteration adds at its peak, and the line of the peak."""
    own, inner, line = _peak(body, {})
    made = {v: op for op in body.ops for v in op.results}
    return [*(_tensor(body, v, n, TEMPORARY, made, {}) for v, n in own.items()), *inner], line


def bytes_on_device(tensor_type: Type) -> int:
    """Returns the bytes of a tensor on one device, as the library stores it."""
    return math.prod(padded_shape(tensor_type.shape, tensor_type.tile)) * stored_type(tensor_type.dtype).itemsize


def padded_values(program: Program) -> Iterator[tuple[Op, int, str]]:
    """Yields the ops whose result is much larger in tiles than its numbers are, each with its bytes and a text."""
    made = ((op, _padding(p.types[v])) for p in program.programs() for op in p.ops for v in op.results)
    yield from ((op, *found) for op, found in made if found[0])


def padded_arguments(program: Program, shapes: Sequence[Shape]) -> Iterator[tuple[int, int, str]]:
    """Yields the positions of arguments on the devices that tiles make much larger, each with its bytes and a text.

    The text has what makes it less than half as large: other dims last, or a split of another dim. `shapes` are the
    global ones.
    """
    for number, (port, whole) in enumerate(zip(program.arguments, shapes, strict=True)):
        kind = program.types[port.value]
        size, text = _padding(kind) if port.presharded else (0, "")
        if size:
            better = [w for w in (_best_order(kind), _best_split(kind, whole)) if w[0] and 2 * w[0] < size]
            helps = " or ".join(f"{binary_bytes(n)} {way}" for n, way in better) or "no other order of its dims helps"
            yield number, size, f"{text}; {helps}"


def _padding(kind: Type) -> tuple[int, str]:
    """Returns the bytes of a tensor that tiles make much larger, and a text; else 0 and nothing."""
    size = bytes_on_device(kind) if kind.tile and not kind.host else 0
    own = math.prod(kind.shape) * stored_type(kind.dtype).itemsize if size >= LARGE else size
    if not own or size <= MUCH * own:
        return 0, ""
    return size, f"{kind.dtype}{list(kind.shape)} takes {binary_bytes(size)} in tiles, its numbers {binary_bytes(own)}"


def _best_order(kind: Type) -> tuple[int, str]:
    """Returns the fewest bytes of a tensor with two other dims last, and its shape then as text."""
    dims, found = range(len(kind.shape)), list[tuple[int, tuple[int, ...]]]()
    for last in itertools.permutations(dims, min(2, len(dims))):
        order = (*(d for d in dims if d not in last), *last)
        found.append((bytes_on_device(replace(kind, shape=tuple(kind.shape[d] for d in order))), order))
    size, order = min(found, default=(0, ()))
    return size, f"as {[kind.shape[d] for d in order]}"


def _best_split(kind: Type, whole: Shape) -> tuple[int, str]:
    """Returns the fewest bytes with another dim split, and that dim as text; 0 if all others are uneven."""
    shape, found = kind.shape, list[tuple[int, str]]()
    for dim, other in itertools.permutations(range(len(shape)), 2):
        parts, rest = divmod(whole[dim], max(shape[dim], 1))
        if parts > 1 and not rest and shape[other] % parts == 0:
            moved = {dim: whole[dim], other: shape[other] // parts}
            split = replace(kind, shape=tuple(moved.get(d, n) for d, n in enumerate(shape)))
            found.append((bytes_on_device(split), f"if dim {other} is split instead of dim {dim}"))
    return min(found, default=(0, ""))


def _argument_bytes(tensor_type: Type, path: str, stored: Mapping[str, str]) -> int:
    name = next((name for pattern, name in stored.items() if re.search(pattern, path)), "")
    if not name or tensor_type.dtype.name not in WIDTHS:
        return bytes_on_device(tensor_type)
    return math.ceil(math.prod(padded_shape(tensor_type.shape, tensor_type.tile)) * WIDTHS[name])


def _tensor(
    program: Program, value: Value, size: int, role: str, made: Mapping[Value, Op], names: Mapping[Value, str]
) -> HeldTensor:
    tensor_type, axes, line = program.types[value], None, ""
    port = next((p for p in program.arguments if p.value == value), None)
    name = names.get(value, "")
    if value in made:
        op = made[value]
        name, line = name or op.name.removeprefix("ttnn."), op.line
    elif port is not None:
        numbers: Collection[int] = range(len(program.mesh)) if port.varying is None else port.varying
        axes = tuple(a for i, (a, n) in enumerate(program.mesh.items()) if i in numbers and n > 1)
    free = [a for a, n in program.mesh.items() if axes is not None and n > 1]
    free = [a for a in free if a not in (axes or ()) and any(n % program.mesh[a] == 0 for n in tensor_type.shape)]
    axis = max(free, key=lambda a: program.mesh[a], default="")
    saving = size - size // program.mesh[axis] if axis else 0
    return HeldTensor(
        name, role, tensor_type.shape, stored_type(tensor_type.dtype).name, size, axes, line, saving, axis
    )
