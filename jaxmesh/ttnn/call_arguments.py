"""Binds the arguments of a call to the parameters of an op, and derives a key of the arguments.

Both are done once for calls of the same form, because `inspect.Signature.bind` and the conversion of attributes would
each add a tenth to the time of a small op.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jaxmesh.errors import ArgumentTypeError
from jaxmesh.ttnn.types import BufferType, DataType, Layout, MemoryConfig, Shape, TensorMemoryLayout


class Binder:
    """Binds call arguments to `count` slots: one per parameter, and those of further keyword arguments in `extra`."""

    def __init__(self, callee: str, signature: inspect.Signature, extra: Mapping[str, int], count: int) -> None:
        params = signature.parameters.values()
        self.callee, self.signature = callee, signature
        self.slots = {p.name: i for i, p in enumerate(params)}
        self._extra = {name: slot for name, slot in extra.items() if name not in self.slots}
        self._defaults = [*[p.default for p in params], *[None] * (count - len(params))]
        self._positional = sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in params)
        self._orders: dict[Any, list[int]] = {}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the value of each slot."""
        form = (len(args), *kwargs)
        order = self._orders.get(form)
        if order is None:
            order = self._orders[form] = self._order(len(args), kwargs)
        values = self._defaults.copy()
        for slot, value in zip(order, (*args, *kwargs.values()), strict=True):
            values[slot] = value
        return values

    def _order(self, count: int, names: Mapping[str, Any]) -> list[int]:
        """Returns the slot of each argument."""
        if count > self._positional:
            raise self.error(f"takes {self._positional} arguments by place, got {count}")
        slots = {**self._extra, **self.slots}
        unknown = [n for n in names if n not in slots]
        if unknown:
            raise self.error(f"has no argument {unknown[0]!r}")
        order = [*range(count), *[slots[n] for n in names]]
        twice = [n for n in names if slots[n] < count]
        if twice:
            raise self.error(f"got the argument {twice[0]!r} by place and by name")
        missing = [n for n, i in self.slots.items() if i not in order and self._defaults[i] is inspect.Parameter.empty]
        if missing:
            raise self.error(f"needs the argument {missing[0]!r}")
        return order

    def error(self, what: str) -> ArgumentTypeError:
        """Returns an error about a call, with the signature."""
        return ArgumentTypeError(f"{self.callee} {what}; it is called as {self.callee}{self.signature}.")


_PLAIN = frozenset({int, bool, str})
_ROWS = frozenset({list, tuple, Shape})


def argument_key(values: Sequence[Any], slots: Sequence[int]) -> list[Hashable] | None:
    """Returns a key of the values in some slots: equal keys have values of the same types and meaning.

    It has two entries per value, and is None if a value has no key, such as an array. Emitted programs make their
    lists and memory configs anew in every call, so identity is no key; and `1 == True == 1.0`, so values are none.
    """
    key: list[Hashable] = []
    for slot in slots:
        value = values[slot]
        kind: type[Any] = value.__class__
        if value is None or kind in _PLAIN:
            key += kind, value
        elif kind is MemoryConfig:
            memory: MemoryConfig = value
            layout, buffer = memory.memory_layout, memory.buffer_type
            if (
                memory.shard_spec is not None
                or type(layout) is not TensorMemoryLayout
                or type(buffer) is not BufferType
            ):
                return None
            # Members of an enum live as long as the process, and their hash is slow.
            key += id(layout), id(buffer)
        elif kind is DataType or kind is Layout:
            key += kind, id(value)
        elif kind in _ROWS:
            row: tuple[Any, ...] = tuple(value)
            for entry in row:
                if type(entry) is not int:
                    return None
            key += kind, row
        elif kind is float:
            # 0.0 and -0.0 are equal.
            key += kind, repr(value)
        else:
            return None
    return key
