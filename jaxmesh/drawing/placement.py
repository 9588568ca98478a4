"""The placement of a tensor on a mesh: which device holds which piece. Every picture is drawn from one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""Start and stop per dim."""
LONELY = (("device", 1),)
"""The axes of an array on a single device, without a mesh."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a mesh: its id (None on an abstract mesh), its piece (None if it holds nothing), and a remark."""

    coordinate: Shape
    id: int | None
    piece: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that one or more devices hold.

    Attributes:
      box: its box in the full tensor; None if unknown.
      which: its distinction from other pieces where the box is unknown, such as `y=0`.
      holders: the indices of its devices, row-major over the mesh.
    """

    label: str
    box: Box | None
    which: str
    shape: Shape
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a tensor on a mesh.

    Attributes:
      title: the global type, such as `float32[16, 8]`.
      how: its sharding, such as `P('y', None)`.
      axes: names and sizes of the mesh axes.
      shape: the global shape, None if unknown.
      devices: row-major.
      pieces: in the order of the tensor, row-major.
      over: per dim the mesh axes that split it, None if unknown.
    """

    title: str
    how: str
    axes: tuple[tuple[str, int], ...]
    shape: Shape | None
    dtype: str
    itemsize: int
    devices: tuple[Device, ...]
    pieces: tuple[Piece, ...]
    over: tuple[tuple[str, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def bytes_of(self, piece: Piece) -> int:
        """The bytes of a piece."""
        return math.prod(piece.shape) * self.itemsize

    def intervals(self, dim: int) -> list[tuple[int, int]]:
        """Returns the intervals into which the pieces split a dim of the full tensor."""
        return sorted({p.box[dim] for p in self.pieces if p.box is not None and math.prod(p.shape)})


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of one device: its box in the full tensor, or its distinction from others, and its local shape."""

    box: Box | None
    which: str
    shape: Shape
    order: tuple[int, ...] = field(default=())

    @staticmethod
    def of_box(box: Box) -> Shard:
        """A box of the full tensor."""
        return Shard(box, "", tuple(stop - start for start, stop in box))

    @property
    def key(self) -> Hashable:
        """A key that is equal for devices with equal shards."""
        return self.which if self.box is None else self.box


def make_placement(
    axes: Mapping[str, int],
    wheres: Sequence[Shard | None],
    *,
    dtype: object,
    itemsize: int,
    shape: Shape | None,
    how: str,
    ids: Sequence[int] | None = None,
    over: Sequence[Sequence[str]] | None = None,
    notes: Sequence[str] = (),
    device_notes: Sequence[str] | None = None,
) -> Placement:
    """Returns the placement of the shards of each device, row-major over the mesh; None holds nothing.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> [p.label for p in make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')").pieces]
    ['A', 'B']
    """
    holders: dict[Hashable, list[int]] = {}
    first: dict[Hashable, Shard] = {}
    for at, where in enumerate(wheres):
        if where is not None:
            holders.setdefault(where.key, []).append(at)
            first.setdefault(where.key, where)
    keys = sorted(first, key=lambda k: (first[k].box or (), first[k].order))
    numbers = {key: i for i, key in enumerate(keys)}
    pieces = tuple(
        Piece(piece_label(i, len(keys)), first[k].box, first[k].which, first[k].shape, tuple(holders[k]))
        for i, k in enumerate(keys)
    )
    devices = tuple(
        Device(
            coordinate,
            None if ids is None else ids[at],
            None if where is None else numbers[where.key],
            "" if device_notes is None else device_notes[at],
        )
        for at, (coordinate, where) in enumerate(
            zip(itertools.product(*map(range, axes.values())), wheres, strict=True)
        )
    )
    local = shape if shape is not None else (pieces[0].shape if pieces else ())
    return Placement(
        title=f"{dtype}{list(local)}" + ("" if shape is not None else " per device"),
        how=how,
        axes=tuple(axes.items()),
        shape=shape,
        dtype=str(dtype),
        itemsize=itemsize,
        devices=devices,
        pieces=pieces,
        over=None if over is None else tuple(map(tuple, over)),
        notes=tuple(notes),
    )


def cut_boxes(shape: Shape, over: Sequence[Sequence[str]], axes: Mapping[str, int]) -> list[Box]:
    """Returns the box of each device; the first axis of a dim is the most significant.

    A dim that does not divide is split into chunks of `ceil(size / count)`; the last ones are shorter, or empty.

    >>> cut_boxes((5,), [("x",)], {"x": 2})
    [((0, 3),), ((3, 5),)]
    """
    names = list(axes)
    boxes: list[Box] = []
    for coordinate in itertools.product(*map(range, axes.values())):
        box: list[tuple[int, int]] = []
        for size, row in zip(shape, over, strict=True):
            count, index = 1, 0
            for name in row:
                count, index = count * axes[name], index * axes[name] + coordinate[names.index(name)]
            chunk = -(-size // count)
            box.append((min(size, index * chunk), min(size, (index + 1) * chunk)))
        boxes.append(tuple(box))
    return boxes


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Devices beside each other: their coordinate on the last axis but one, the first on the last axis."""

    row: int
    first: int
    devices: Sequence[Device]


def device_panels(holding: Placement, across: int) -> list[tuple[Shape, list[DeviceRow]]]:
    """Returns the rows of devices for each coordinate on the earlier axes; those longer than `across` are folded."""
    sizes = [size for _, size in holding.axes]
    columns, rows = sizes[-1], sizes[-2] if len(sizes) > 1 else 1
    panels: list[tuple[Shape, list[DeviceRow]]] = []
    for number, front in enumerate(itertools.product(*map(range, sizes[:-2]))):
        devices = holding.devices[number * rows * columns : (number + 1) * rows * columns]
        lines = [
            DeviceRow(row, first, devices[row * columns + first : row * columns + min(first + across, columns)])
            for row, first in itertools.product(range(rows), range(0, columns, across))
        ]
        panels.append((front, lines))
    return panels


def piece_label(number: int, count: int) -> str:
    """Returns the label of a piece: a letter, or a number if there are more pieces than letters.

    >>> piece_label(1, 4), piece_label(1, 400)
    ('B', '#1')
    """
    return _LETTERS[number] if count <= len(_LETTERS) else f"#{number}"


# --- texts -----------------------------------------------------------------------------------------------------------


def index_text(box: Box, shape: Shape | None = None) -> str:
    """Formats a box as an index; whole dims are `:` if the shape is given.

    >>> index_text(((0, 2), (0, 8))), index_text(((0, 2), (0, 8)), (4, 8))
    ('[0:2, 0:8]', '[0:2, :]')
    """
    whole = [None] * len(box) if shape is None else shape
    texts = [":" if size is not None and (a, b) == (0, size) else f"{a}:{b}" for (a, b), size in zip(box, whole)]  # noqa: B905
    return f"[{', '.join(texts)}]"


def piece_type(holding: Placement, piece: Piece) -> str:
    """The local type of a piece and its bytes, e.g. `float32[8, 8], 256 B`."""
    size = holding.bytes_of(piece)
    return f"{holding.dtype}{list(piece.shape)}, {size} B" + (f" ({size_text(size)})" if size >= 1024 else "")


def piece_text(piece: Piece) -> str:
    """Returns the box of a piece, or its distinction from other pieces."""
    return index_text(piece.box) if piece.box is not None else piece.which


def size_text(count: int) -> str:
    """Formats a number of bytes.

    >>> size_text(0), size_text(1536), size_text(10**9)
    ('0 B', '1.5 KiB', '953.7 MiB')
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".rstrip("0").rstrip(".") + f" {unit}"


def range_text(numbers: Sequence[int]) -> str:
    """Formats numbers as ranges.

    >>> range_text([0, 1, 2, 5])
    '0-2, 5'
    """
    rows: list[list[int]] = []
    for n in sorted(numbers):
        if rows and n == rows[-1][1] + 1:
            rows[-1][1] = n
        else:
            rows.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in rows)


def axis_ranges(holding: Placement, piece: Piece) -> str:
    """Returns the coordinates of the holders of a piece, such as `y=0, x=0-3`; empty if they are no product of ranges.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> one = make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')")
    >>> axis_ranges(one, one.pieces[1])
    'x=1'
    """
    coordinates = [holding.devices[at].coordinate for at in piece.holders]
    sets = [sorted(set(column)) for column in zip(*coordinates, strict=True)]
    if math.prod(map(len, sets)) != len(coordinates):
        return ""
    axes = zip(holding.axes, sets, strict=True)
    texts = [f"{name}={range_text(which)}" for (name, size), which in axes if len(which) < size]
    return ", ".join(texts) or "every device"


def holders_text(holding: Placement, piece: Piece) -> str:
    """Returns the ids of the holders of a piece, or their coordinates on an abstract mesh."""
    ids = [holding.devices[at].id for at in piece.holders]
    known = [n for n in ids if n is not None]
    if len(known) < len(ids):
        return axis_ranges(holding, piece) or f"{len(ids)} devices"
    return f"device{'s' if len(known) > 1 else ''} {range_text(known)}"


def coordinate_text(holding: Placement, device: Device) -> str:
    """Returns the coordinate of a device, by axis.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> one = make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')")
    >>> coordinate_text(one, one.devices[1])
    'x=1'
    """
    return ", ".join(f"{name}={at}" for (name, _), at in zip(holding.axes, device.coordinate, strict=True))


def varying_axes(holding: Placement) -> list[str]:
    """Returns the mesh axes along which devices hold different pieces.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> varying_axes(make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')"))
    ['x']
    """
    names: list[str] = []
    step = len(holding.devices)
    for name, size in holding.axes:
        step //= size
        ahead = zip(holding.devices, holding.devices[step:], strict=False)
        if any(a.piece != b.piece for a, b in ahead if _neighbours(a, b)):
            names.append(name)
    return names


def _neighbours(a: Device, b: Device) -> bool:
    """Returns True if two devices differ in exactly one coordinate."""
    return sum(m != n for m, n in zip(a.coordinate, b.coordinate, strict=True)) == 1


def device_text(device: Device) -> str:
    """Returns the name of a device; empty on an abstract mesh."""
    return "" if device.id is None else f"device {device.id}"


def summarise(holding: Placement) -> str:
    """Returns one line: how much each device holds."""
    if not holding.pieces:
        return f"{len(holding.devices)} devices"
    shapes = sorted({p.shape for p in holding.pieces}, reverse=True)
    largest = max(holding.bytes_of(p) for p in holding.pieces)
    parts: list[str] = []
    if len(shapes) == 1:
        of = "" if holding.shape is None else f" of {size_text(math.prod(holding.shape) * holding.itemsize)}"
        whole = holding.shape is not None and shapes[0] == holding.shape
        parts.append(f"each device holds {'all of it, ' if whole else f'{list(shapes[0])}, '}{size_text(largest)}"
                     + ("" if whole else of))  # fmt: skip
    else:
        parts.append(f"a device holds up to {size_text(largest)}")
    copies = sorted({len(p.holders) for p in holding.pieces})
    count = len(holding.pieces)
    pieces = f"{count} piece{'s' if count > 1 else ''}"
    if copies == [1]:
        parts.append(f"{pieces}, no copies" if count > 1 else pieces)
    else:
        each = " each" if count > 1 else ""
        parts.append(f"{pieces} on {'-'.join(map(str, {copies[0]: 0, copies[-1]: 0}))} devices{each}")
    empty = sum(d.piece is None for d in holding.devices)
    return "; ".join([*parts, f"{empty} devices hold nothing"] if empty else parts)


def describe_dims(holding: Placement) -> list[str]:
    """Returns one line per dim of the full tensor: its pieces, and the axes that split it."""
    if holding.shape is None:
        return []
    lines: list[str] = []
    for dim, size in enumerate(holding.shape):
        row = () if holding.over is None else holding.over[dim]
        by = f" over {', '.join(row)}" if row else ""
        parts = holding.intervals(dim)
        count = math.prod(dict(holding.axes)[a] for a in row) if row else len(parts)
        if count <= 1:
            lines.append(f"dim {dim}: {size}, whole{by}")
            continue
        lengths = [b - a for a, b in parts]
        each = f" of {lengths[0]}" if lengths else ""
        rest = f", the last of {lengths[-1]}" if lengths and lengths[-1] != lengths[0] else ""
        missing = f", {count - len(parts)} empty" if row and parts and len(parts) < count else ""
        found = len(parts) or count
        lines.append(f"dim {dim}: {size} in {found} piece{'s' if found > 1 else ''}{each}{rest}{by}{missing}")
    return lines


def mesh_text(holding: Placement) -> str:
    """Returns the mesh, such as `mesh y=2, x=4`, or `one device`."""
    if holding.axes == LONELY:
        return "one device"
    return "mesh " + ", ".join(f"{name}={size}" for name, size in holding.axes)
