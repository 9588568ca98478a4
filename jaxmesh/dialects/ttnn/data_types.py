"""The element types of the real `ttnn`, by the names of its `DataType`."""

from __future__ import annotations

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
