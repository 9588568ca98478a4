"""Arguments that no attribute of an op stands for: they change its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxmesh.errors import VerifyError

Lookup = Callable[[str], Any]
"""Returns the function of a dotted name."""


def _add_residual(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> None:
    """Adds the residual to the tensor that is normalised."""
    x, residual = slots["input_tensor"], slots["residual_input_tensor"]
    values[x] = lookup("ttnn.add")(values[x], values[residual])


def _take_token(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> None:
    """Takes one row of the caches for every row of the tensor."""
    x = slots["input_tensor"]
    token, rows = values[slots["token_index"]], -(-values[x].shape[-2] // 32) * 32
    # The result has whole tiles.
    behind = [(0, 0), (0, 0), (0, rows - values[x].shape[-2]), (0, 0)]
    values[x] = lookup("ttnn.pad")(values[x], behind, 0.0)
    for slot in (slots["cos_cache"], slots["sin_cache"]):
        *front, length, width = values[slot].shape
        if not 0 <= token < length:
            raise VerifyError(f"ttnn.experimental.rotary_embedding has {length} rows, and no row {token}.")
        row = lookup("ttnn.slice")(values[slot], [*[0] * len(front), token, 0], [*front, token + 1, width])
        values[slot] = lookup("ttnn.repeat")(row, [*[1] * len(front), rows, 1])


EXTRAS: Mapping[str, Callable[[Lookup, list[Any], Mapping[str, int]], None]] = {
    "residual_input_tensor": _add_residual,
    "token_index": _take_token,
}
"""By the name of the argument: a function that replaces values in their slots."""
