"""Elements of a drawing with coordinates: boxes that contain lines of text, and labels beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxmesh.drawing.text_layout import width


@dataclass(frozen=True, slots=True)
class Mark:
    """A box of one piece, or of an empty device.

    Attributes:
      kind: `device`, `region`, or `swatch`.
      piece: the number of the piece, which selects the colour; None for no colour.
      lines: the lines of text, centred.
      size: the font size.
      hover: the lines of the tooltip.
    """

    kind: str
    x: float
    y: float
    w: float
    h: float
    piece: int | None
    lines: Sequence[str] = ()
    size: float = 12
    hover: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the boxes; `y` is the baseline, `anchor` the part of the text at `x`."""

    x: float
    y: float
    text: str
    size: float = 11
    anchor: str = "start"
    strong: bool = False

    @property
    def left(self) -> float:
        """The x coordinate of the left end."""
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return self.x - share * width(self.text, self.size)


@dataclass(slots=True)
class Block:
    """A rectangle of marks and labels; its corner is (0, 0)."""

    w: float = 0
    h: float = 0
    marks: list[Mark] = field(default_factory=list[Mark])
    labels: list[Label] = field(default_factory=list[Label])

    def mark(self, mark: Mark) -> None:
        """Adds a box."""
        self.marks.append(mark)
        self.w, self.h = max(self.w, mark.x + mark.w), max(self.h, mark.y + mark.h)

    def label(self, label: Label) -> None:
        """Adds a text."""
        self.labels.append(label)
        self.w = max(self.w, label.left + width(label.text, label.size))
        self.h = max(self.h, label.y + 0.3 * label.size)

    def place(self, block: Block, x: float, y: float) -> None:
        """Adds another block at an offset."""
        self.marks += [replace(m, x=m.x + x, y=m.y + y) for m in block.marks]
        self.labels += [replace(t, x=t.x + x, y=t.y + y) for t in block.labels]
        self.w, self.h = max(self.w, x + block.w), max(self.h, y + block.h)


def arrange(
    blocks: Sequence[Block], wanted: int, most: float, gap: float, below: float | None = None, *, even: bool = False
) -> Block:
    """Places blocks in rows of at most `wanted`, as many as fit into a width of `most`; with `even`, a divisor.

    Columns are `gap` apart, rows too unless `below` is given.
    """
    arrangement, y, across = Block(), 0.0, wanted
    room = max(1, int((most + gap) // (max((b.w for b in blocks), default=1) + gap)))
    if wanted > room:
        across = next(n for n in range(room, 0, -1) if wanted % n == 0) if even else room
    wide = [max(b.w for b in blocks[i::across]) for i in range(min(across, len(blocks)))]
    for start in range(0, len(blocks), across):
        row, x = blocks[start : start + across], 0.0
        for block, column in zip(row, wide, strict=False):
            arrangement.place(block, x, y)
            x += column + gap
        y += max(b.h for b in row) + (gap if below is None else below)
    return arrangement
