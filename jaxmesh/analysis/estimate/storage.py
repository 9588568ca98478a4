"""The element types of arguments in DRAM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.validate import is_hashable, quote

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
