"""Tells the right calls of the simulated chip: by the table that `python -m tests.generators.chip` measured, and by
the formats whose rounding explains the difference between a result and the exact one.

A kernel may round every operand and the result to its format. Matrix units take the 10 bits of TF32 of a float32; the
vector unit takes it whole, and polynomials of it. A result of float32 that has only the bits of bfloat16 is wrong.
The bound of an element is four times the effect of one unit of rounding in every element of the operands, and two units
of the result. The effect is measured: the exact function is computed again for moved operands. Each element moves by
one unit: all up, all down, and up or down at random.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Change = Callable[[Array], Array]
TABLE = Path(__file__).with_name("trust.txt")
SIZES = ("one tile", "several tiles", "vectors", "odd")
"""The classes of shapes: each tensor is one tile, or a matrix of whole tiles, or such a one, a vector or a number."""
UNITS = {"float32": 2.0**-23, "polynomial": 2.0**-20, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
"""The units of rounding, relative to the power of two below a number."""
EXACT, WRONG, NOT_TRIED = "exact", "wrong", "not tried"
RIGHT = (EXACT, *UNITS)
"""The right outcomes: equal, or explained by the rounding of a format."""
MATRIX = frozenset({"matmul", "linear", "softmax", "layer_norm", "rms_norm", "batch_norm", "prod", "conv2d"})
"""The functions that take operands of float32 through the source registers of matrix units, as TF32."""
_OPERANDS, _RESULT, _RANDOM, _FLUSHED, _SEVERAL = 4, 2, 16, 2.0**-126, 8


def size_of(shapes: Sequence[Sequence[int]]) -> str:
    """Returns the class of the shapes of a call; batches are `odd`, since their kernels are others.

    >>> size_of([(32, 32)]), size_of([(64, 32), (32, 96)]), size_of([(64, 32), (1, 32), ()]), size_of([(2, 32, 32)])
    ('one tile', 'several tiles', 'vectors', 'odd')
    """
    if any(len(s) > 2 or any(n != 1 and (n == 0 or n % 32) for n in s) for s in shapes):
        return "odd"
    if any(len(s) < 2 or 1 in s for s in shapes):
        return "vectors"
    return SIZES[any(tuple(s) != (32, 32) for s in shapes)]


@functools.cache
def _table() -> dict[tuple[str, str, str], str]:
    rows = [line.split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    cells = [(c, d, *cell) for c, d, *row in rows for cell in zip(SIZES, row, strict=True) if cell[1] != "-"]
    return {(callee, dtypes, size): cell.rpartition(" ")[0] for callee, dtypes, size, cell in cells}


def versions() -> str:
    """Returns the versions that the table was measured with."""
    return TABLE.read_text(encoding="utf-8").partition(" with ")[2].partition(", one Blackhole")[0]


def outcome(callee: str, dtypes: str, size: str) -> str:
    """Returns the cell of the table for a call: an outcome in `RIGHT`, or why it is not trusted."""
    return _table().get((callee, dtypes, size), NOT_TRIED)


def are_right(result: Array, exact: Array, name: str, moved: Callable[[Change], Array]) -> Array:
    """Returns for each element if it equals the exact one, or if a format's rounding (but `exact`) explains it."""
    result = result.astype(exact.dtype)
    equal = (result == exact) | ((result != result) & (exact != exact))
    if name == EXACT:
        return equal
    unit, rng, spread = UNITS[name], np.random.default_rng(0), np.zeros(exact.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        for sign in (1.0, -1.0, *[0.0] * _RANDOM):
            found = moved(lambda x, s=sign: x * (1 + unit * (s or rng.choice([-1.0, 1.0], x.shape))))
            spread = np.fmax(spread, np.abs(found - exact))
        bound = _OPERANDS * spread + _RESULT * unit * np.abs(exact) + _FLUSHED
        return equal | (np.isfinite(exact) & (np.abs(result - exact) <= bound))


def _is_cut(result: Array, exact: Array) -> bool:
    """Returns True if a result has only the bits of bfloat16 where the exact one has others, in several elements."""
    with np.errstate(over="ignore"):
        found, wanted = (x.astype(np.float32).view(np.uint32) & 0xFFFF for x in (result, exact))
    others = (wanted != 0) & (result != 0)
    return bool(np.count_nonzero(others) >= _SEVERAL and not found[others].any())


def explain(result: Array, exact: Array, formats: Sequence[str], moved: Callable[[Change], Array]) -> str:
    """Returns `exact`, the first format whose rounding explains a result, or `wrong`. The exact values are float64 or
    integers. `moved` computes them for other operands: its argument changes each operand of floats.
    """
    if result.shape != exact.shape or ("tf32" in formats and _is_cut(result, exact)):
        return WRONG
    return next((n for n in (EXACT, *formats) if bool(np.all(are_right(result, exact, n, moved)))), WRONG)
