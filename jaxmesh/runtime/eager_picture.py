"""Pictures of tensors on a mesh: which device holds what."""

from __future__ import annotations

import html
import itertools
from typing import Any


def cells(tensor: Any) -> list[list[tuple[tuple[int, ...], str]]]:
    """Rows of (coordinate, what that device holds); the last mesh axis goes from left to right."""
    sizes = dict(tensor.mesh.shape)
    held = tensor.held()
    local = list(tensor.shape)

    def text(place: tuple[int, ...]) -> str:
        if held is not None and place not in held:
            return "empty"
        which = [f"{n}={c}" for n, c in zip(sizes, place, strict=True) if n in tensor.varying or tensor.partial]
        return f"{local} " + (", ".join(which) or "copy")

    *front, last = map(range, sizes.values())
    return [[((*start, end), text((*start, end))) for end in last] for start in itertools.product(*front)]


def as_html(tensor: Any) -> str:
    """A table of the mesh: each cell a device, with what it holds and what it varies over."""
    rows = [
        "<tr>" + "".join(f"<td title='{place}'>{html.escape(text)}</td>" for place, text in row) + "</tr>"
        for row in cells(tensor)
    ]
    return f"<p>{html.escape(repr(tensor))}</p><table>{''.join(rows)}</table>"
