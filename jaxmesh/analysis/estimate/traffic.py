"""The operations of the ops of a flat TTNN program on one device, and the bytes that they move.

Inputs and constants lie in DRAM; the first op that reads one reads it there. Values that the program computes stay in
L1, except for the part that exceeds its size. A tensor is stored in the layout and element type of its reader, so
changes of layout and element type, and views, cost nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from jaxmesh.analysis.explain.ttnn_traffic import op_moves
from jaxmesh.analysis.machines import Machine
from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.validate import is_hashable, quote


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of one op, by the unit of the device that performs them.

    Attributes:
      products: multiplications and additions of matrix products, two for each pair of elements.
      reduced: the elements of reductions such as sums and maxima.
      elementwise: all other operations, one for each element.
    """

    products: int = 0
    reduced: int = 0
    elementwise: int = 0

    @property
    def flops(self) -> int:
        """The operations of all three units."""
        return self.products + self.reduced + self.elementwise


def work(op: Op, program: Program) -> Work:
    """Returns the arithmetic of an op.

    An op whose definition states no `work`, and without a rule in `_RULES`, costs one operation per element of its
    result, and nothing if it only moves data.
    """
    definition = ttnn_definition(op.name)
    if definition is not None and "reduce_type" in definition.by_name:
        return _summed(op, program)
    rule = _RULES.get(op.name.removeprefix("ttnn."))
    if rule is not None:
        return rule(op, program)
    if definition is not None and definition.work is not None:
        n, (reduced, elementwise) = size(program, op.used[0]), definition.work
        return Work(reduced=n * reduced, elementwise=n * elementwise)
    idle = any(has_trait(op.name, trait) for trait in (Trait.MOVES, Trait.CREATES, Trait.VIEW))
    return Work() if idle else Work(elementwise=max((size(program, v) for v in op.results), default=0))


def size(program: Program, value: Value) -> int:
    """Returns the number of elements of a value, on one device."""
    return math.prod(program.types[value].shape)


def _type(op: Op, program: Program, number: int) -> Type:
    value = op.operands[number]
    assert value is not None
    return program.types[value]


def _matmul(op: Op, program: Program) -> Work:
    """Counts two operations for each element of the result and of the contracted dim, and one for a bias."""
    a, out = _type(op, program, 0).shape, size(program, op.results[0])
    transposed = bool(op.attributes.get("transpose_a")) and len(a) > 1
    contracted = a[len(a) - 2 if transposed else len(a) - 1]
    return Work(products=2 * out * contracted, elementwise=out if len(op.used) > 2 else 0)


def _conv(op: Op, program: Program) -> Work:
    """Counts the products of a window with each position of the result (of the input, for a transposed convolution)."""
    transposed = op.name == "ttnn.conv_transpose2d"
    places = size(program, op.used[0] if transposed else op.results[0])
    channels = op.attributes["out_channels" if transposed else "in_channels"] // op.attributes.get("groups", 1)
    bias = size(program, op.results[0]) if len(op.used) > 2 else 0
    return Work(products=2 * places * channels * math.prod(op.attributes["kernel_size"]), elementwise=bias)


def _attention(op: Op, program: Program) -> Work:
    """Counts two products for each query and each key that the query attends to, and the softmax over them."""
    queries, keys = _type(op, program, 0).shape, _type(op, program, 1).shape
    query_count, key_count = queries[-2], keys[-2]
    causal = op.attributes.get("is_causal", True)
    seen = sum(min(i + 1, key_count) for i in range(query_count)) if causal else query_count * key_count
    pairs = math.prod(queries[:-2]) * seen
    return Work(4 * pairs * queries[-1], 2 * pairs, 3 * pairs)


def _norm(op: Op, program: Program) -> Work:
    """Counts squares, their sum and the scaling, and one operation each for weight and bias; a layer norm also
    subtracts the mean."""
    n, centred = size(program, op.used[0]), op.name == "ttnn.layer_norm"
    per_element = 2 + centred + (len(op.used) - 1)
    return Work(reduced=n * (1 + centred), elementwise=n * per_element)


def _pool(op: Op, program: Program) -> Work:
    return Work(reduced=size(program, op.results[0]) * math.prod(op.attributes["kernel_size"]))


def _summed(op: Op, program: Program) -> Work:
    """Counts the additions of a collective: each device adds up one piece of the result."""
    (count,) = [n for i, n in enumerate(program.mesh.values()) if i == op.attributes["cluster_axis"]]
    return Work(elementwise=(count - 1) * size(program, op.used[0]) // count)


def _scattered(op: Op, program: Program) -> Work:
    """Counts one operation for each update, the third operand, that is combined with the element it replaces."""
    replaces = op.name == "ttnn.scatter" and op.attributes.get("scatter_reduce_type", "invalid") == "invalid"
    return Work(elementwise=0 if replaces else size(program, op.used[2]))


_RULES: Mapping[str, Callable[[Op, Program], Work]] = {
    "matmul": _matmul, "linear": _matmul, "conv2d": _conv, "conv_transpose2d": _conv,
    "scaled_dot_product_attention": _attention, "layer_norm": _norm, "rms_norm": _norm,
    "max_pool2d": _pool, "avg_pool2d": _pool, "scatter": _scattered, "embedding_bw": _scattered,
}  # fmt: skip
"""The rules of ops, by name without the dialect, whose work is not a number per element that the definition states."""


WIDTHS: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "bfloat8_b": 1 + 1 / 16, "bfloat4_b": 1 / 2 + 1 / 16}
"""Bytes per element; sixteen elements of a block format share a byte, their exponent."""


def check_stored(stored: Any) -> Mapping[str, str]:
    """Returns element types by a pattern of the arguments' paths.

    Raises:
      ArgumentTypeError: neither an element type nor a dict of them.
      ArgumentValueError: an unknown element type, or an invalid regular expression.
    """
    requested: Any = {} if stored is None else {"": stored} if isinstance(stored, str) else stored
    if not isinstance(requested, Mapping) or not all(isinstance(pattern, str) for pattern in cast("Any", requested)):
        raise ArgumentTypeError(
            f"estimate takes as stored an element type, or a dict of them by regular expressions, got {quote(stored)}."
        )
    by_path = cast("Mapping[str, str]", requested)
    for pattern, name in by_path.items():
        if not is_hashable(name) or name not in WIDTHS:
            raise ArgumentValueError(f"estimate takes as stored {', '.join(WIDTHS)}, got {quote(name)}.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ArgumentValueError(
                f"estimate takes as stored regular expressions for paths of arguments, got {quote(pattern)}: {error}; "
                "escape brackets and dots."
            ) from None
    return by_path


@dataclass(slots=True)
class TensorStorage:
    """The storage of a tensor.

    Attributes:
      stored: the name of the element type.
      width: bytes per element.
      unread: the bytes in DRAM that no op has read.
      input: True for an argument or a constant of the program.
    """

    stored: str
    width: float
    unread: int
    input: bool

    def bytes(self, elements: int) -> int:
        """Returns the bytes of a number of elements."""
        return math.ceil(elements * self.width)


@dataclass(slots=True)
class Bytes:
    """The bytes that an op moves on one device.

    Attributes:
      dram: the bytes read from and written to DRAM.
      links: the bytes sent to other devices, by mesh axis.
      busiest: by mesh axis, the bytes over the links to one neighbour, in the busier direction.
      host: the bytes from and to the host.
    """

    dram: int = 0
    links: dict[str, int] = field(default_factory=dict[str, int])
    busiest: dict[str, int] = field(default_factory=dict[str, int])
    host: int = 0


class Traffic:
    """Follows the tensors of a program through its ops, in order."""

    def __init__(self, program: Program, machine: Machine, stored: Mapping[str, str]) -> None:
        self.program, self.machine, self.stored = program, machine, stored
        self._paths: dict[Value, str] = {port.value: port.path for port in program.arguments}
        self._memories: dict[Value, TensorStorage] = {}

    def memory(self, value: Value) -> TensorStorage:
        """Returns the storage of a value; a value that no earlier op wrote is an input."""
        if value not in self._memories:
            tensor_type = self.program.types[value]
            name = np.dtype(tensor_type.dtype).name
            if name in WIDTHS:
                path = self._paths.get(value)
                overrides = () if path is None else (n for p, n in self.stored.items() if re.search(p, path))
                name = next(iter(overrides), name)
            width = WIDTHS.get(name, float(np.dtype(tensor_type.dtype).itemsize))
            memory = self._memories[value] = TensorStorage(name, width, 0, input=True)
            memory.unread = memory.bytes(size(self.program, value))
        return self._memories[value]

    def move(self, op: Op) -> Bytes:
        """Returns the bytes that the next op moves."""
        types, moved = self.program.types, Bytes()
        operands = [v for v in op.used if types[v].kind == "tensor"]
        to_host = all(types[v].host for v in op.results)
        crossing = (v for v in operands if types[v].host != to_host)
        moved.host = sum(self.memory(v).bytes(size(self.program, v)) for v in crossing)
        if self._share(op) or to_host:
            return moved
        written = _in_place(op)
        for number, value in enumerate(operands):
            moved.dram += self._read(op, value) if number != written else 0
        self._send(op, moved)
        if written is not None and self.memory(operands[written]).input:
            # An input lies in DRAM and is updated there.
            memory = self.memory(operands[written])
            moved.dram += memory.bytes(min(size(self.program, v) for v in operands[:2]))
            self._memories.update((v, memory) for v in op.results)
            return moved
        for value in op.results:
            moved.dram += self._write(op, value)
        return moved

    def _share(self, op: Op) -> bool:
        """Gives the results of an op that computes nothing their operand's memory; returns False for any other op."""
        if not op.used or not op.results or not _is_free(op):
            return False
        types, (source, result) = self.program.types, (op.used[0], op.results[0])
        if source in self._paths:
            self._paths[result] = self._paths[source]
        if not has_trait(op.name, Trait.TRANSFERS):
            memory = self.memory(source)
            # An element type changes where it is written: an input's in its reader, a computed value's in its producer.
            same = memory.input or types[source].dtype == types[result].dtype
            self._memories[result] = memory if same else self._own(result)
        return True

    def _own(self, value: Value) -> TensorStorage:
        dtype = np.dtype(self.program.types[value].dtype)
        return TensorStorage(dtype.name, float(dtype.itemsize), 0, input=False)

    def _read(self, op: Op, value: Value) -> int:
        """Returns the bytes that an op reads from DRAM: the unread bytes, and the bytes that exceed L1."""
        memory, elements = self.memory(value), size(self.program, value)
        if has_trait(op.name, Trait.MOVES):
            elements = min(elements, max((size(self.program, v) for v in op.results), default=0))
        wanted = memory.bytes(elements)
        first = min(wanted, memory.unread)
        memory.unread -= first
        return first + max(0, wanted - first - self.machine.l1_bytes)

    def _write(self, op: Op, value: Value) -> int:
        if op.name == "ttnn.constant":
            # Constants lie in DRAM from the start.
            return 0
        memory = self._memories[value] = self._own(value)
        return max(0, memory.bytes(size(self.program, value)) - self.machine.l1_bytes)

    def _send(self, op: Op, moved: Bytes) -> None:
        for move in op_moves(op, self.program):
            axis = move.axes[0]
            itemsize = np.dtype(self.program.types[op.used[0]].dtype).itemsize
            scale = self.memory(op.used[0]).width / itemsize
            sent = math.ceil(move.sent * scale / (move.groups * move.group_size))
            payload = math.ceil(move.bytes * scale)
            if move.kind == "point_to_point":
                sent = payload
            moved.links[axis] = moved.links.get(axis, 0) + sent
            # On a line, partial sums run one way while finished ones run the other.
            sizes = {size(self.program, v) for v in (op.used[0], op.results[0])}
            finishes = has_trait(op.name, Trait.REDUCES) and len(sizes) == 1
            least = payload if finishes and not self.machine.is_ring(self.program.mesh[axis]) else sent
            moved.busiest[axis] = moved.busiest.get(axis, 0) + least


def _is_free(op: Op) -> bool:
    traits = Trait.LAYOUT, Trait.VIEW, Trait.TRANSFERS
    return op.name == "ttnn.typecast" or any(has_trait(op.name, trait) for trait in traits)


def _in_place(op: Op) -> int | None:
    """Returns the index of the operand that an op overwrites without reading it, or None."""
    definition = ttnn_definition(op.name)
    number = definition and definition.in_place
    return number if number is not None and number < len(op.used) else None
