"""The element types and layouts that the real functions take and give, by operand and result.

The facts were found by calling each function of ttnn 0.81.1 on a mock cluster for every element type and layout
(`tests/generators/real_ttnn` repeats that). Where the library accepts more layouts than tt-mlir uses, tt-mlir's choice
stands here: tiles for whatever computes (lib/Dialect/TTNN/Transforms/TTNNLayout.cpp and
lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp at 19c86fca).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.program import Type
from jaxmesh.jaxprs.untyped import DType

DataType = str
"""A member of the real `ttnn.DataType`: `BFLOAT16`."""

BF16, F32, I32, U32, U16, U8, I8 = "BFLOAT16", "FLOAT32", "INT32", "UINT32", "UINT16", "UINT8", "INT8"
B8, B4 = "BFLOAT8_B", "BFLOAT4_B"
BLOCKS = frozenset({B8, B4})
"""Types whose elements share exponents; tiles only."""
FLOATS = frozenset({BF16, F32})
REALS = FLOATS | BLOCKS
WORDS = frozenset({I32, U32})
NARROW = frozenset({U8, I8})
NUMBERS = FLOATS | WORDS
WIDE = NUMBERS | {U16}
WHOLE = WORDS | {U16, U8}
ANY = WIDE | NARROW
"""All types whose elements are stored one by one."""
EVERY = ANY | BLOCKS
NOT_I8 = REALS | WHOLE
BYTES = {F32: 4, I32: 4, U32: 4, BF16: 2, U16: 2, U8: 1, I8: 1}
"""The size of an element, of types whose elements are stored one by one."""


Layout = Literal["tile", "rows", "either"]
TILED = WIDE
"""The types that `to_layout` tilizes on the devices."""

STAND_INS: Mapping[str, DataType] = {"bool": BF16, "float16": F32, "float64": F32, "int64": I32}
"""The element types that the library lacks and another replaces."""


@lru_cache(256)
def stored_as(dtype: DType) -> DataType | None:
    """Returns the library's element type for an element type; None if neither it nor a stand-in exists.

    The stand-ins are tt-mlir's. A truth value is a bfloat16 of 0 or 1.

    >>> [stored_as(np.dtype(t)) for t in ("float32", "bool", "int16")]
    ['FLOAT32', 'BFLOAT16', None]
    """
    found = STAND_INS.get(dtype.name, dtype.name.upper())
    return found if found in ANY else None


@lru_cache(256)
def as_dtype(name: DataType) -> DType:
    """Returns the NumPy type of a member of `ttnn.DataType`."""
    return np.dtype(getattr(jnp, name.lower()))


EXACT: Mapping[DataType, Sequence[DataType]] = {
    BF16: (F32,),
    U8: (I32, U32, U16, F32, BF16),
    I8: (I32, F32, BF16),
    U16: (U32, I32, F32),
}
"""By element type: those that hold each of its values, the nearest first."""
MODULAR: Mapping[DataType, Sequence[DataType]] = {**EXACT, U32: (I32,), I32: (U32,)}
"""The same for functions that only move bits, or add modulo 2^32."""
FIXED: Mapping[DataType, Sequence[DataType]] = {BF16: (F32,)}
"""The same for functions whose results depend on the width of integers."""


REMEDY = "Convert it to one of these (astype)"


@dataclass(frozen=True, slots=True)
class Takes:
    """The forms that a function accepts as one operand.

    Attributes:
      types: the element types.
      layout: the layout; `either` if it is free, and then the same for all operands for which it is.
      casts: by element type the types that it may be converted to, the first accepted one being taken.
      host: True if the operand is on the host.
      truth: True if only zero and other than zero count, so that any type serves.
    """

    types: frozenset[DataType] = WIDE
    layout: Layout = "tile"
    casts: Mapping[DataType, Sequence[DataType]] = field(default_factory=lambda: EXACT)
    host: bool = False
    truth: bool = False

    def type_for(self, stored: DataType) -> DataType | None:
        """Returns the accepted element type for an operand; None if every conversion would lose values.

        >>> floats, words = Takes(FLOATS), Takes(frozenset({I32}))
        >>> floats.type_for("BFLOAT16"), words.type_for("UINT8"), floats.type_for("INT32")
        ('BFLOAT16', 'INT32', None)
        """
        if stored in self.types:
            return stored
        return next((t for t in self.casts.get(stored, ()) if t in self.types), None)


@dataclass(frozen=True, slots=True)
class Gives:
    """The form of a result.

    Attributes:
      type: `asked` if the call gives it, `operand` if it is that of an operand, else the element type itself.
      operand: the number of that operand.
      by_type: by the element type of that operand, where the result's is another one.
      layout: `either` for that of the operands.
      never: the types that it cannot give although the call asks for them; it gives FLOAT32 then.
    """

    type: str = "operand"
    operand: int = 0
    by_type: Mapping[DataType, DataType] | None = None
    layout: Layout = "either"
    never: frozenset[DataType] = frozenset()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of an op: its attributes, and the types of its tensors; None for an absent operand.

    `single` is True on a mesh of one device.
    """

    attributes: Attributes
    operands: tuple[Type | None, ...]
    results: tuple[Type, ...]
    single: bool = False

    @property
    def rank(self) -> int:
        """The rank of the first operand."""
        first = self.operands[0]
        assert first is not None
        return len(first.shape)

    def row(self, *, results: bool = True) -> int:
        """Returns the bytes of the longest row of the first operand, and of the results."""
        size = BYTES.get(self.stored() or F32, 4)
        types = (*self.operands[:1], *(self.results if results else ()))
        return max((t.shape[-1] for t in types if t is not None and t.shape), default=1) * size

    def stored(self, number: int = 0) -> DataType | None:
        """Returns the library's element type of an operand."""
        operand = self.operands[number]
        return None if operand is None else stored_as(operand.dtype)


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms that a function takes and gives.

    Attributes:
      takes: by operand; the last one stands for all that follow.
      gives: by result.
      alike: True if the operands (of `truth` none) have one element type.
      remedy: what a user can do about an operand that is not accepted.
    """

    takes: tuple[Takes, ...] = (Takes(),)
    gives: tuple[Gives, ...] = (Gives(),)
    alike: bool = True
    remedy: str = REMEDY

    def operand(self, number: int) -> Takes:
        """Returns what is accepted as an operand."""
        return self.takes[min(number, len(self.takes) - 1)]

    def result(self, number: int, operands: Sequence[Type | None], wanted: DType) -> tuple[DType, bool]:
        """Returns the element type of a result, and whether it is in tiles.

        Args:
          number: of the result.
          operands: their types as they are passed, without the device.
          wanted: the result's element type in the program; it is kept where the library stores it the same way.
        """
        gives = self.gives[min(number, len(self.gives) - 1)]
        first = operands[0] if operands else None
        tile = gives.layout == "tile" if gives.layout != "either" else first is None or first.tile
        if gives.type == "asked":
            return as_dtype(F32) if stored_as(wanted) in gives.never else wanted, tile
        source = None if gives.type != "operand" else operands[gives.operand]
        given = None if source is None else source.dtype
        stored = gives.type if given is None else stored_as(given)
        if gives.by_type is not None and stored is not None:
            stored, given = gives.by_type.get(stored, stored), None
        if stored is None or stored == stored_as(wanted):
            return wanted, tile
        return as_dtype(stored) if given is None else given, tile


Rule = Forms | Callable[[Occurrence], Forms]


def forms(
    types: frozenset[DataType] = WIDE,
    layout: Layout = "tile",
    *,
    gives: str = "operand",
    casts: Mapping[DataType, Sequence[DataType]] = EXACT,
    remedy: str = REMEDY,
) -> Forms:
    """Returns the forms of a function whose operands are all alike."""
    return Forms((Takes(types, layout, casts),), (Gives(gives),), remedy=remedy)


FLOAT = forms(FLOATS)
"""Computes floats."""
PRODUCT = Gives("asked", layout="tile", never=frozenset({I8}))
"""Multiplies floats in tiles, whose result is of any type but INT8."""
MOVED = forms(ANY, "either", casts=MODULAR)
"""Moves elements of any type, in any layout."""
CREATED = forms(ANY, "either", gives="asked")
"""Creates elements."""


def refused(remedy: str) -> Forms:
    """Returns the forms of an occurrence that the function takes in no form."""
    return Forms((Takes(frozenset(), casts={}),), remedy=remedy)


def too_long(row: int) -> Forms:
    """Returns the forms of an occurrence whose rows do not fit into the L1 memory of a core."""
    return refused(f"A row of {row} bytes does not fit into L1 there; reshape it to several rows before")


TILES = forms()
"""Computes on tiles of any type but those of 8 bits; the default."""
