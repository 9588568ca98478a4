"""The builder of flat programs, which omits an operation that would change nothing, and the tables of rules by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from jax.typing import DTypeLike

from jaxmesh.dialects.program import Op, Shape, Type, Value
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.passes.def_use import DefUse

T = TypeVar("T")


class Rules(dict[str, T]):
    """Rules by the name of the operation or primitive that they rewrite.

    >>> rules = Rules()
    >>> @rules.add("sine", "cosine")
    ... def wave(): ...
    >>> sorted(rules)
    ['cosine', 'sine']
    """

    def add(self, *names: str) -> Callable[[T], T]:
        """Adds the decorated function under each name."""

        def enter(rule: T) -> T:
            for name in names:
                assert name not in self, name
                self[name] = rule
            return rule

        return enter


@dataclass(slots=True)
class FlatBuilder(DefUse, ABC):
    """Builds a flat program, with the index of its values.

    Attributes:
      line: the user's source line of the operations that are appended.
    """

    tile: ClassVar[bool] = False
    """True if the tensors are in tiles."""

    line: str = field(default="", kw_only=True)
    _created: dict[Any, Value] = field(default_factory=dict[Any, Value], kw_only=True)
    _types: dict[Any, Type] = field(default_factory=dict[Any, Type], kw_only=True)

    @abstractmethod
    def op(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: DTypeLike, /, **attrs: Any
    ) -> Value:
        """Appends an operation with one result; attributes that are None are omitted."""

    def append(self, op: Op) -> None:
        """Appends an operation whose results are values of the program."""
        self.program.ops.append(op)
        self.enter(op)

    def tensor_type(self, shape: Shape, dtype: DTypeLike) -> Type:
        """Returns the type of a tensor, cached because programs have few different ones."""
        key = (shape, dtype)
        if key not in self._types:
            self._types[key] = Type(plain(shape), np.dtype(dtype), tile=self.tile)
        return self._types[key]

    def same(self, name: str, operands: Sequence[Value | None], /, **attrs: object) -> Value:
        """Appends an operation whose result has the type of its first operand."""
        first = operands[0]
        assert first is not None
        return self.op(name, operands, self.shape(first), self.dtype(first), **attrs)

    def binary(self, name: str, a: Value, b: Value, dtype: DTypeLike | None = None) -> Value:
        """Appends an elementwise operation of operands that broadcast; by default of the first one's element type."""
        shape = np.broadcast_shapes(self.shape(a), self.shape(b))
        return self.op(name, [a, b], shape, self.dtype(a) if dtype is None else dtype)

    def move(self, x: Value, shape: Shape, function: Callable[[Array], Array], name: str, /, **attrs: Any) -> Value:
        """Appends an operation that only moves elements, as `function` does in NumPy."""
        return self.op(name, [x], shape, self.dtype(x), **attrs)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Reshapes a tensor, unless it has that shape already."""
        shape = tuple(shape)
        return x if self.shape(x) == shape else self.move(x, shape, lambda a: a.reshape(shape), "reshape", shape=shape)

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        """Permutes the dims, unless they are in that order already."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return x
        shape = tuple(self.shape(x)[d] for d in order)
        return self.move(x, shape, lambda a: a.transpose(order), "permute", permutation=order)

    def cast(self, x: Value, dtype: DTypeLike) -> Value:
        """Converts to another element type, unless the tensor has it already."""
        return x if self.dtype(x) == np.dtype(dtype) else self.op("typecast", [x], self.shape(x), dtype)

    def slice(self, x: Value, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """Slices with positive steps, unless the slice is the whole tensor, or an operand of the concat that makes it;
        begins and ends count from the front."""
        begins, ends = tuple(begins), tuple(ends)
        step = (1,) * len(begins) if steps is None else tuple(steps)
        shape = tuple(max(-(-(e - b) // s), 0) for b, e, s in zip(begins, ends, step, strict=True))
        if shape == self.shape(x):
            return x
        joined = self.maker(x, "concat") if set(step) == {1} else None
        if joined is not None:
            dim: int = joined.attributes["dim"]
            place = 0
            for part in joined.used:
                if begins[dim] == place and shape == self.shape(part):
                    return part
                place += self.shape(part)[dim]
        cut = tuple(map(slice, begins, ends, step))
        return self.move(x, shape, lambda a: a[cut], "slice_static", begins=begins, ends=ends, step=step)

    def piece(self, x: Value, dim: int, begin: int, end: int, step: int = 1) -> Value:
        """Slices one dim."""
        shape = self.shape(x)
        begins, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
        begins[dim], ends[dim], steps[dim] = begin, end, step
        return self.slice(x, begins, ends, steps)

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        """Joins tensors along a dim; omits empty ones."""
        parts = [p for p in parts if self.shape(p)[dim]] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shape(parts[0]))
        shape[dim] = sum(self.shape(p)[dim] for p in parts)
        return self.op("concat", list(parts), shape, self.dtype(parts[0]), dim=dim)

    def gather(self, x: Value, index: Value, dim: int) -> Value:
        """Gathers elements along a dim, by an index in range of the shape of the result."""
        return self.op("gather", [x, index], self.shape(index), self.dtype(x), dim=dim)

    def reduce(self, name: str, x: Value, dims: Sequence[int], keep: bool = False) -> Value:
        """Reduces dims, if any, by `sum`, `max`, `min`, `prod`, `mean`, `reduce_and` or `reduce_or`."""
        dims, old = tuple(dims), self.shape(x)
        if not dims:
            return x
        shape = [1 if d in dims else n for d, n in enumerate(old) if keep or d not in dims]
        return self.op(name, [x], shape, self.dtype(x), dim_arg=dims, keep_dim=keep)


def plain(value: object) -> Any:
    """Returns numbers as Python's own: JAX's parameters may hold NumPy's."""
    if isinstance(value, tuple):
        return tuple(map(plain, cast("tuple[object, ...]", value)))
    number: Any = value
    return number.item() if isinstance(value, np.generic) else value
