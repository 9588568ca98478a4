"""Pictures as objects, for notebooks, terminals and files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from jaxmesh.drawing.html import fragment, page
from jaxmesh.drawing.placement import Placement
from jaxmesh.drawing.svg import draw_svg
from jaxmesh.drawing.text import coloured_text, plain_text
from jaxmesh.errors import ArgumentValueError, FolderError
from jaxmesh.validate import as_bool, as_path as checked_path, quote, write_whole


class Picture:
    """A picture: HTML in a notebook, text in a terminal, or a file.

    `print(picture)` and its `repr` are plain text; `show()` in a terminal uses colours.
    """

    _title = "jaxmesh"

    def __str__(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _coloured(self) -> str:
        """Returns the text for a terminal, in colours."""
        return str(self)

    def _files(self) -> dict[str, Any]:
        """Returns by file ending a function that returns the text of the file."""
        return {".html": lambda: page(self._title, self._repr_html_()), ".txt": lambda: f"{self}\n"}

    def save(self, path: object) -> Path:
        """Writes the picture to a file; its ending selects the format: `.html`, `.txt`, and `.svg` for a tensor.

        Raises:
          ArgumentTypeError: `path` is not a path.
          ArgumentValueError: `path` has a different ending.
          FolderError: the file cannot be written.
        """
        where, files = checked_path("save", path), self._files()
        text_of = files.get(where.suffix.lower())
        if text_of is None:
            raise ArgumentValueError(
                f"this picture is saved as {', '.join(files)}, got {quote(str(where))}, which ends in "
                f"{where.suffix or 'nothing'!r}; choose an ending from this list."
            )
        text = text_of()
        try:
            write_whole(where, text)
        except OSError as error:
            raise FolderError(
                f"the picture cannot be written to {quote(str(where))}: {error.strerror}; name a file in an "
                "existing, writable folder."
            ) from None
        return where

    def show(self, *, color: bool | None = None) -> None:
        """Prints the picture: in colours if stdout is a terminal and NO_COLOR is not set, else as plain text.

        Args:
          color: True for colours, False for plain text, on any stdout.

        Raises:
          ArgumentTypeError: `color` is not True, False or None.
        """
        by_default = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(self._coloured() if (by_default if color is None else as_bool("show", "color", color)) else self)


class TensorPicture(Picture):
    """The picture of one tensor on a mesh, or of a mesh alone."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._title = f"{placement.title} {placement.how}"

    def __str__(self) -> str:
        return plain_text(self.placement)

    def _repr_svg_(self) -> str:
        return draw_svg(self.placement)

    def _repr_html_(self) -> str:
        return tensor_html(self.placement)

    def _coloured(self) -> str:
        return coloured_text(self.placement)

    def _files(self) -> dict[str, Any]:
        return {".svg": lambda: f"{self._repr_svg_()}\n", **super()._files()}


def tensor_html(placement: Placement) -> str:
    """Returns the picture of a placement as a part of a page."""
    body = draw_svg(placement, alone=False)
    return fragment(lambda name: f".{name}{{overflow-x:auto;color:inherit}}", body, plain_text(placement))
