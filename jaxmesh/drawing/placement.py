"""The placement of a tensor on a mesh: the piece on each device. Every picture is drawn from a placement."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""Start and stop per dim."""
Axis = TypeVar("Axis", str, int)
LONELY = (("device", 1),)
"""The axes of an array on a single device, without a mesh."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """One device of a mesh: its id (None on an abstract mesh), its piece (None if it stores none), and a remark."""

    coordinate: Shape
    id: int | None
    piece: int | None
    note: str = ""

    @property
    def name(self) -> str:
        """Its name; empty on an abstract mesh."""
        return "" if self.id is None else f"device {self.id}"


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A part of a tensor, stored on one or more devices.

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

    def text(self, shape: Shape | None = None) -> str:
        """Returns its box, or its distinction from other pieces; whole dims are `:` if the global shape is given."""
        return self.which if self.box is None else index_text(self.box, shape)


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

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> one = make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')")
    >>> one.axis_ranges(one.pieces[1]), one.coordinate_text(one.devices[1]), one.varying_axes, one.mesh_text
    ('x=1', 'x=1', ['x'], 'mesh x=2')
    """

    title: str
    how: str
    axes: tuple[tuple[str, int], ...]
    shape: Shape | None
    dtype: str
    itemsize: int
    devices: tuple[PlacedDevice, ...]
    pieces: tuple[TensorPiece, ...]
    over: tuple[tuple[str, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def bytes_of(self, piece: TensorPiece) -> int:
        """Returns the bytes of a piece."""
        return math.prod(piece.shape) * self.itemsize

    def intervals(self, dim: int) -> list[tuple[int, int]]:
        """Returns the intervals that the pieces cut from a dim of the full tensor."""
        return sorted({p.box[dim] for p in self.pieces if p.box is not None and math.prod(p.shape)})

    def type_of(self, piece: TensorPiece) -> str:
        """Returns the local type of a piece and its bytes, e.g. `float32[8, 8], 256 B`."""
        size = self.bytes_of(piece)
        return f"{self.dtype}{list(piece.shape)}, {size} B" + (f" ({size_text(size)})" if size >= 1024 else "")

    def axis_ranges(self, piece: TensorPiece) -> str:
        """Returns the coordinates of a piece's holders, such as `y=0, x=0-3`; empty without a product of ranges."""
        coordinates = [self.devices[at].coordinate for at in piece.holders]
        sets = [sorted(set(column)) for column in zip(*coordinates, strict=True)]
        if math.prod(map(len, sets)) != len(coordinates):
            return ""
        axes = zip(self.axes, sets, strict=True)
        texts = [f"{name}={range_text(which)}" for (name, size), which in axes if len(which) < size]
        return ", ".join(texts) or "every device"

    def holders_text(self, piece: TensorPiece) -> str:
        """Returns the ids of the holders of a piece, or their coordinates on an abstract mesh."""
        ids = [self.devices[at].id for at in piece.holders]
        known = [n for n in ids if n is not None]
        if len(known) < len(ids):
            return self.axis_ranges(piece) or f"{len(ids)} devices"
        return f"device{'s' if len(known) > 1 else ''} {range_text(known)}"

    def coordinate_text(self, device: PlacedDevice) -> str:
        """Returns the coordinate of a device, by axis."""
        return ", ".join(f"{name}={at}" for (name, _), at in zip(self.axes, device.coordinate, strict=True))

    @property
    def varying_axes(self) -> list[str]:
        """Returns the mesh axes along which devices hold different pieces."""
        names: list[str] = []
        step = len(self.devices)
        for name, size in self.axes:
            step //= size
            ahead = ((a, b) for a, b in zip(self.devices, self.devices[step:], strict=False) if a.piece != b.piece)
            if any(sum(map(operator.ne, a.coordinate, b.coordinate)) == 1 for a, b in ahead):
                names.append(name)
        return names

    @property
    def summary(self) -> str:
        """Returns one line that states the bytes per device and the number of pieces and copies."""
        if not self.pieces:
            return f"{len(self.devices)} devices"
        shapes = sorted({p.shape for p in self.pieces}, reverse=True)
        largest = max(self.bytes_of(p) for p in self.pieces)
        parts: list[str] = []
        if len(shapes) == 1:
            of = "" if self.shape is None else f" of {size_text(math.prod(self.shape) * self.itemsize)}"
            whole = self.shape is not None and shapes[0] == self.shape
            parts.append(f"each device holds {'all of it, ' if whole else f'{list(shapes[0])}, '}{size_text(largest)}"
                         + ("" if whole else of))  # fmt: skip
        else:
            parts.append(f"a device holds up to {size_text(largest)}")
        copies = sorted({len(p.holders) for p in self.pieces})
        count = len(self.pieces)
        pieces = f"{count} piece{'s' if count > 1 else ''}"
        if copies == [1]:
            parts.append(f"{pieces}, no copies" if count > 1 else pieces)
        else:
            each = " each" if count > 1 else ""
            parts.append(f"{pieces} on {'-'.join(map(str, {copies[0]: 0, copies[-1]: 0}))} devices{each}")
        empty = sum(d.piece is None for d in self.devices)
        return "; ".join([*parts, f"{empty} devices hold nothing"] if empty else parts)

    @property
    def dims(self) -> list[str]:
        """Returns one line per dim of the full tensor: its pieces, and the axes that split it."""
        if self.shape is None:
            return []
        lines: list[str] = []
        for dim, size in enumerate(self.shape):
            dim_axes = () if self.over is None else self.over[dim]
            by = f" over {', '.join(dim_axes)}" if dim_axes else ""
            parts = self.intervals(dim)
            count = math.prod(dict(self.axes)[a] for a in dim_axes) if dim_axes else len(parts)
            if count <= 1:
                lines.append(f"dim {dim}: {size}, whole{by}")
                continue
            lengths = [b - a for a, b in parts]
            each = f" of {lengths[0]}" if lengths else ""
            rest = f", the last of {lengths[-1]}" if lengths and lengths[-1] != lengths[0] else ""
            missing = f", {count - len(parts)} empty" if dim_axes and parts and len(parts) < count else ""
            piece_count = len(parts) or count
            lines.append(
                f"dim {dim}: {size} in {piece_count} piece{'s' if piece_count > 1 else ''}{each}{rest}{by}{missing}"
            )
        return lines

    @property
    def mesh_text(self) -> str:
        """Returns the mesh, such as `mesh y=2, x=4`, or `one device`."""
        if self.axes == LONELY:
            return "one device"
        return "mesh " + ", ".join(f"{name}={size}" for name, size in self.axes)

    def panels(self, across: int) -> list[tuple[Shape, list[DeviceRow]]]:
        """Returns the rows of devices for each coordinate on the earlier axes; rows longer than `across` are folded."""
        sizes = [size for _, size in self.axes]
        columns, rows = sizes[-1], sizes[-2] if len(sizes) > 1 else 1
        panels: list[tuple[Shape, list[DeviceRow]]] = []
        for number, front in enumerate(itertools.product(*map(range, sizes[:-2]))):
            devices = self.devices[number * rows * columns : (number + 1) * rows * columns]
            lines = [
                DeviceRow(row, first, devices[row * columns + first : row * columns + min(first + across, columns)])
                for row, first in itertools.product(range(rows), range(0, columns, across))
            ]
            panels.append((front, lines))
        return panels


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of one device: its box in the full tensor, or its distinction from others, and its local shape."""

    box: Box | None
    which: str
    shape: Shape
    order: tuple[int, ...] = field(default=())

    @staticmethod
    def of_box(box: Box) -> Shard:
        """Returns the shard of a box of the full tensor."""
        return Shard(box, "", tuple(stop - start for start, stop in box))

    @staticmethod
    def at(named: Mapping[str, int], shape: Shape) -> Shard:
        """Returns the shard of an unknown box, named by its coordinates along the varying axes."""
        return Shard(None, ", ".join(f"{n}={at}" for n, at in named.items()), shape, tuple(named.values()))

    @property
    def key(self) -> Hashable:
        """A key that is equal for devices with equal shards."""
        return self.which if self.box is None else self.box


def make_placement(
    axes: Mapping[str, int],
    shards: Sequence[Shard | None],
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
    """Returns the placement of the shards of each device, row-major over the mesh; None for an empty device.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> [p.label for p in make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')").pieces]
    ['A', 'B']
    """
    holders: dict[Hashable, list[int]] = {}
    first: dict[Hashable, Shard] = {}
    for number, shard in enumerate(shards):
        if shard is not None:
            holders.setdefault(shard.key, []).append(number)
            first.setdefault(shard.key, shard)
    keys = sorted(first, key=lambda k: (first[k].box or (), first[k].order))
    numbers = {key: i for i, key in enumerate(keys)}
    pieces = tuple(
        TensorPiece(piece_label(i, len(keys)), first[k].box, first[k].which, first[k].shape, tuple(holders[k]))
        for i, k in enumerate(keys)
    )
    devices = tuple(
        PlacedDevice(
            coordinate,
            None if ids is None else ids[number],
            None if shard is None else numbers[shard.key],
            "" if device_notes is None else device_notes[number],
        )
        for number, (coordinate, shard) in enumerate(
            zip(itertools.product(*map(range, axes.values())), shards, strict=True)
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


def cut_boxes(shape: Shape, over: Sequence[Sequence[Axis]], axes: Mapping[Axis, int]) -> list[Box]:
    """Returns the box of each device; the first axis of a dim is the most significant.

    A dim that does not divide is split into chunks of `ceil(size / count)`; the last chunks are shorter, or empty.

    >>> cut_boxes((5,), [("x",)], {"x": 2})
    [((0, 3),), ((3, 5),)]
    """
    names = list(axes)
    boxes: list[Box] = []
    for coordinate in itertools.product(*map(range, axes.values())):
        box: list[tuple[int, int]] = []
        for size, dim_axes in zip(shape, over, strict=True):
            count, index = 1, 0
            for name in dim_axes:
                count, index = count * axes[name], index * axes[name] + coordinate[names.index(name)]
            chunk = -(-size // count)
            box.append((min(size, index * chunk), min(size, (index + 1) * chunk)))
        boxes.append(tuple(box))
    return boxes


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Adjacent devices: their coordinate on the last axis but one, and the first coordinate on the last axis."""

    row: int
    first: int
    devices: Sequence[PlacedDevice]


def row_head(names: Sequence[str], row: DeviceRow, is_folded: bool) -> str:
    """Returns the coordinates of a row of devices on the last two axes, of these names; empty for a single row."""
    above = [f"{names[-2]}={row.row}"] if len(names) > 1 else []
    last = [f"{names[-1]}={row.first}-{row.first + len(row.devices) - 1}"] if is_folded else []
    return ", ".join([*above, *last])


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
    ranges: list[list[int]] = []
    for n in sorted(numbers):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
