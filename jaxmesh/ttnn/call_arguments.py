"""What two calls of an op must have alike to say the same: their arguments as keys that hash quickly and exactly.

Emitted programs make their lists and memory configs anew in every call, so that what they are cannot be kept by
identity; and `1 == True == 1.0`, so that not every equal value means the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

from jaxmesh.ttnn.types import BufferType, DataType, Layout, MemoryConfig, Shape, TensorMemoryLayout

_PLAIN = frozenset({int, bool, str})
_ROWS = frozenset({list, tuple, Shape})


def tokens(values: Sequence[Any], slots: Sequence[int]) -> list[Hashable] | None:
    """A key for the values in some slots: equal keys have values of the same types that mean the same.

    Returns:
      Two entries for each value; None where one of them has no key, such as an array.
    """
    found: list[Hashable] = []
    for slot in slots:
        value = values[slot]
        kind = cast("type[Any]", type(value))
        if value is None or kind in _PLAIN:
            found += kind, value
        elif kind is MemoryConfig:
            memory: MemoryConfig = value
            layout, buffer = memory.memory_layout, memory.buffer_type
            if (
                memory.shard_spec is not None
                or type(layout) is not TensorMemoryLayout
                or type(buffer) is not BufferType
            ):
                return None
            # The members of an enum live as long as the process, and Python hashes them slowly.
            found += id(layout), id(buffer)
        elif kind is DataType or kind is Layout:
            found += kind, id(value)
        elif kind in _ROWS:
            row: tuple[Any, ...] = tuple(value)
            for entry in row:
                if type(entry) is not int:
                    return None
            found += kind, row
        elif kind is float:
            # 0.0 and -0.0 are equal.
            found += kind, repr(value)
        else:
            return None
    return found
