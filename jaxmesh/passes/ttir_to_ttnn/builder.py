"""Appends operations on device tensors to a flat TTNN program; the patterns of the pass rewrite with it.

A pattern is one `@PATTERNS.add("gather")` function in a file of `passes/ttir_to_ttnn/`. An op without a
pattern becomes the TTNN op of the same name, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxmesh.dialects.attributes import Attributes, is_uniform
from jaxmesh.dialects.definitions import DEFINITIONS, definition_of
from jaxmesh.dialects.program import Op, Shape, Type, Value
from jaxmesh.jaxprs.untyped import Array, DType
from jaxmesh.passes.flat_builder import FlatBuilder

DEVICE = Type((), np.dtype(np.int32), kind="device")
INDEX = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)


iinfo: Any = jax.numpy.iinfo
"""The limits of an integer type, those of `ml_dtypes` included."""


def passes_as_int32(dtype: DType, numbers: object) -> bool:
    """Returns True if numbers of a type must be created as int32: the real library takes unsigned ones as floats.

    `ttnn.Tensor([2**24 + 1], ...)` of uint32 holds 2^24, and `ttnn.full` of 2^32 - 1 holds 0 (ttnn 0.81.1).
    """
    return dtype == np.uint32 and bool((np.asarray(numbers) > _EXACT_FLOAT).any())


_EXACT_FLOAT = 2**24
"""Up to it float32 holds every integer."""


@lru_cache(256)
def is_integer(dtype: DType) -> bool:
    """Returns True if an element type holds integers; NumPy does not know it of the types of `ml_dtypes`."""
    return dtype.kind in "iu" or "int" in dtype.name


def as_number(value: float, dtype: DType) -> int | float:
    """Returns a number as the attribute of an op of an element type: an int for integers and truth values."""
    if dtype.kind == "b":
        return int(bool(value))
    if not is_integer(dtype):
        return float(value)
    most = int(iinfo(dtype).max)
    # MLIR writes the upper half of an unsigned type as negative numbers.
    return int(value) % (most + 1) if int(iinfo(dtype).min) == 0 else int(value)


@dataclass(frozen=True, slots=True)
class Site:
    """One occurrence of a TTIR op: the argument of its pattern.

    Attributes:
      op: the op.
      operands: its operands, on the devices; None for an absent one.
      results: the types of its results.
    """

    op: Op
    operands: tuple[Value | None, ...]
    results: tuple[Type, ...]

    @property
    def name(self) -> str:
        """The op's name, without the dialect."""
        return self.op.name.removeprefix("ttir.")

    @property
    def result(self) -> Type:
        """The type of the only result."""
        return self.results[0]

    @property
    def xs(self) -> list[Value]:
        """The operands without absent ones."""
        return [v for v in self.operands if v is not None]

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.xs[0]

    def optional(self, number: int) -> Value | None:
        """Returns an optional operand; None if it is absent."""
        return self.operands[number] if number < len(self.operands) else None

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an attribute; its default if it is absent."""
        if name in self.op.attributes:
            return self.op.attributes[name]
        return DEFINITIONS[self.op.name].by_name[name].default

    def dims(self, rank: int) -> Shape:
        """Returns the dims of an operand of a rank that a reduction removes, counted from the front."""
        dims = self["dim_arg"]
        return tuple(range(rank)) if dims is None else tuple(d % rank for d in dims)

    def shared_attributes(self, name: str) -> dict[str, Any]:
        """Returns the attributes that an op of TTNN has under the same names."""
        mine = DEFINITIONS[self.op.name].by_name
        return {a: self[a] for a in DEFINITIONS[f"ttnn.{name}"].by_name if a in mine}


Pattern = Callable[["Ops", Site], "Value | Sequence[Value]"]
"""Appends the operations for one TTIR op and returns its result or results."""


_DEFAULTS: dict[str, dict[str, Any]] = {}


def with_defaults(name: str, attributes: Attributes) -> Attributes:
    """Returns the attributes of an op of TTNN with defaults for absent attributes and None.

    Ops without attributes share one mapping.
    """
    if name not in _DEFAULTS:
        definition = definition_of(f"ttnn.{name}")
        attributes_of = definition.attributes if definition else ()
        _DEFAULTS[name] = {a.name: a.default for a in attributes_of if a.default is not None}
    if not attributes:
        return _DEFAULTS[name]
    return _DEFAULTS[name] | {k: v for k, v in attributes.items() if v is not None}


@dataclass(slots=True)
class Ops(FlatBuilder):
    """Builds a flat TTNN program."""

    tile: ClassVar[bool] = True
    _handle: Value | None = None

    @property
    def mesh(self) -> Shape:
        """The sizes of the mesh axes."""
        return tuple(self.program.mesh.values())

    @property
    def handle(self) -> Value:
        """The mesh device; its op is added at the end if something uses it."""
        if self._handle is None:
            self._handle = self.program.new(DEVICE)
        return self._handle

    def emit(
        self, name: str, operands: Sequence[Value | None], results: Sequence[Type], attributes: Attributes
    ) -> tuple[Value, ...]:
        """Appends `ttnn.<name>` with results of any type."""
        made = tuple([self.program.new(kind) for kind in results])
        self.append(Op(f"ttnn.{name}", tuple(operands), made, with_defaults(name, attributes), self.line))
        return made

    def op(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: DTypeLike, /, **attrs: Any
    ) -> Value:
        """Appends an op with one result on the devices; attributes that are None are omitted."""
        return self.emit(name, operands, [self.tensor_type(tuple(shape), np.dtype(dtype))], attrs)[0]

    # --- created tensors: equal ones are created once ---

    def _creation(self, key: object, name: str, shape: Sequence[int], dtype: DTypeLike, /, **attrs: object) -> Value:
        converted = (name, key, tuple(shape), np.dtype(dtype))
        if converted not in self._created:
            self._created[converted] = self.op(name, [self.handle], shape, dtype, **attrs)
        return self._created[converted]

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Value:
        """Creates a tensor of zeros."""
        return self._creation(None, "zeros", shape, dtype, shape=tuple(shape))

    def full(self, shape: Sequence[int], value: Any, dtype: DTypeLike) -> Value:
        """Creates a tensor of one number."""
        kind = np.dtype(dtype)
        converted = np.asarray(value).astype(kind)
        if passes_as_int32(kind, converted):
            return self.cast(self.full(shape, converted.view(np.int32), np.int32), kind)
        fill = as_number(converted.item(), kind)
        return self._creation(converted.tobytes(), "full", shape, kind, shape=tuple(shape), fill_value=fill)

    def constant(self, array: Array) -> Value:
        """Creates a tensor of given numbers."""
        if array.size and is_uniform(array):
            return self.full(array.shape, array.reshape(-1)[0], array.dtype)
        if passes_as_int32(array.dtype, array):
            return self.cast(self.constant(array.view(np.int32)), np.uint32)
        return self._creation(array.tobytes(), "constant", array.shape, array.dtype, value=array)

    # --- tensors from tensors: no op if nothing would change ---

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        """Permutes the dims.

        Where dims of one element alone move, the real function gives its operand's memory, as a reshape does.
        """
        shape = [self.shape(x)[d] for d in order]
        if (wide := [d for d in order if self.shape(x)[d] != 1]) == sorted(wide):
            return self.reshape(x, shape)
        return FlatBuilder.permute(self, x, order)

    def repeat(self, x: Value, counts: Sequence[int]) -> Value:
        """Repeats every dim as a whole."""
        counts = tuple(counts)
        if all(c == 1 for c in counts):
            return x
        shape = [n * c for n, c in zip(self.shape(x), counts, strict=True)]
        return self.op("repeat", [x], shape, self.dtype(x), repeat_dims=counts)

    def pad(self, x: Value, padding: Sequence[tuple[int, int]], value: float | None = None) -> Value:
        """Pads every dim with a number, by default zero, before and after; the real call takes it as a float32."""
        if not any(low or high for low, high in padding):
            return x
        dtype = self.dtype(x)
        number = as_number(0, dtype) if value is None else value
        if is_integer(dtype) and abs(number) > _EXACT_FLOAT:
            return self._join(x, padding, number)
        shape = [low + n + high for n, (low, high) in zip(self.shape(x), padding, strict=True)]
        return self.op("pad", [x], shape, dtype, padding=tuple(n for pair in padding for n in pair), value=number)

    def _join(self, x: Value, padding: Sequence[tuple[int, int]], value: float) -> Value:
        """Pads by joining tensors of the number."""
        for dim, sizes in enumerate(padding):
            shape, dtype = self.shape(x), self.dtype(x)
            low, high = (self.full([n if d == dim else m for d, m in enumerate(shape)], value, dtype) for n in sizes)
            x = self.concat([low] * (sizes[0] > 0) + [x] + [high] * (sizes[1] > 0), dim)
        return x
