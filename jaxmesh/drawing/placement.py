"""The placement of a tensor on a mesh: the piece on each device. Every picture is drawn from a placement."""

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
class PlacedDevice:
    """One device of a mesh: its id (None on an abstract mesh), its piece (None if it stores none), and a remark."""

    coordinate: Shape
    id: int | None
    piece: int | None
    note: str = ""


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


def cut_boxes(shape: Shape, over: Sequence[Sequence[str]], axes: Mapping[str, int]) -> list[Box]:
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


def device_panels(placement: Placement, across: int) -> list[tuple[Shape, list[DeviceRow]]]:
    """Returns the rows of devices for each coordinate on the earlier axes; rows longer than `across` are folded."""
    sizes = [size for _, size in placement.axes]
    columns, rows = sizes[-1], sizes[-2] if len(sizes) > 1 else 1
    panels: list[tuple[Shape, list[DeviceRow]]] = []
    for number, front in enumerate(itertools.product(*map(range, sizes[:-2]))):
        devices = placement.devices[number * rows * columns : (number + 1) * rows * columns]
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


def piece_type(placement: Placement, piece: TensorPiece) -> str:
    """Returns the local type of a piece and its bytes, e.g. `float32[8, 8], 256 B`."""
    size = placement.bytes_of(piece)
    return f"{placement.dtype}{list(piece.shape)}, {size} B" + (f" ({size_text(size)})" if size >= 1024 else "")


def piece_text(piece: TensorPiece) -> str:
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
    ranges: list[list[int]] = []
    for n in sorted(numbers):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def axis_ranges(placement: Placement, piece: TensorPiece) -> str:
    """Returns the coordinates of a piece's holders, such as `y=0, x=0-3`; empty if they form no product of ranges.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> one = make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')")
    >>> axis_ranges(one, one.pieces[1])
    'x=1'
    """
    coordinates = [placement.devices[at].coordinate for at in piece.holders]
    sets = [sorted(set(column)) for column in zip(*coordinates, strict=True)]
    if math.prod(map(len, sets)) != len(coordinates):
        return ""
    axes = zip(placement.axes, sets, strict=True)
    texts = [f"{name}={range_text(which)}" for (name, size), which in axes if len(which) < size]
    return ", ".join(texts) or "every device"


def holders_text(placement: Placement, piece: TensorPiece) -> str:
    """Returns the ids of the holders of a piece, or their coordinates on an abstract mesh."""
    ids = [placement.devices[at].id for at in piece.holders]
    known = [n for n in ids if n is not None]
    if len(known) < len(ids):
        return axis_ranges(placement, piece) or f"{len(ids)} devices"
    return f"device{'s' if len(known) > 1 else ''} {range_text(known)}"


def coordinate_text(placement: Placement, device: PlacedDevice) -> str:
    """Returns the coordinate of a device, by axis.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> one = make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')")
    >>> coordinate_text(one, one.devices[1])
    'x=1'
    """
    return ", ".join(f"{name}={at}" for (name, _), at in zip(placement.axes, device.coordinate, strict=True))


def varying_axes(placement: Placement) -> list[str]:
    """Returns the mesh axes along which devices hold different pieces.

    >>> where = [Shard(((0, 2),), "", (2,)), Shard(((2, 4),), "", (2,))]
    >>> varying_axes(make_placement({"x": 2}, where, dtype="int8", itemsize=1, shape=(4,), how="P('x')"))
    ['x']
    """
    names: list[str] = []
    step = len(placement.devices)
    for name, size in placement.axes:
        step //= size
        ahead = zip(placement.devices, placement.devices[step:], strict=False)
        if any(a.piece != b.piece for a, b in ahead if _neighbours(a, b)):
            names.append(name)
    return names


def _neighbours(a: PlacedDevice, b: PlacedDevice) -> bool:
    """Returns True if two devices differ in exactly one coordinate."""
    return sum(m != n for m, n in zip(a.coordinate, b.coordinate, strict=True)) == 1


def device_text(device: PlacedDevice) -> str:
    """Returns the name of a device; empty on an abstract mesh."""
    return "" if device.id is None else f"device {device.id}"


def summarise(placement: Placement) -> str:
    """Returns one line that states the bytes per device and the number of pieces and copies."""
    if not placement.pieces:
        return f"{len(placement.devices)} devices"
    shapes = sorted({p.shape for p in placement.pieces}, reverse=True)
    largest = max(placement.bytes_of(p) for p in placement.pieces)
    parts: list[str] = []
    if len(shapes) == 1:
        of = "" if placement.shape is None else f" of {size_text(math.prod(placement.shape) * placement.itemsize)}"
        whole = placement.shape is not None and shapes[0] == placement.shape
        parts.append(f"each device holds {'all of it, ' if whole else f'{list(shapes[0])}, '}{size_text(largest)}"
                     + ("" if whole else of))  # fmt: skip
    else:
        parts.append(f"a device holds up to {size_text(largest)}")
    copies = sorted({len(p.holders) for p in placement.pieces})
    count = len(placement.pieces)
    pieces = f"{count} piece{'s' if count > 1 else ''}"
    if copies == [1]:
        parts.append(f"{pieces}, no copies" if count > 1 else pieces)
    else:
        each = " each" if count > 1 else ""
        parts.append(f"{pieces} on {'-'.join(map(str, {copies[0]: 0, copies[-1]: 0}))} devices{each}")
    empty = sum(d.piece is None for d in placement.devices)
    return "; ".join([*parts, f"{empty} devices hold nothing"] if empty else parts)


def describe_dims(placement: Placement) -> list[str]:
    """Returns one line per dim of the full tensor: its pieces, and the axes that split it."""
    if placement.shape is None:
        return []
    lines: list[str] = []
    for dim, size in enumerate(placement.shape):
        dim_axes = () if placement.over is None else placement.over[dim]
        by = f" over {', '.join(dim_axes)}" if dim_axes else ""
        parts = placement.intervals(dim)
        count = math.prod(dict(placement.axes)[a] for a in dim_axes) if dim_axes else len(parts)
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


def mesh_text(placement: Placement) -> str:
    """Returns the mesh, such as `mesh y=2, x=4`, or `one device`."""
    if placement.axes == LONELY:
        return "one device"
    return "mesh " + ", ".join(f"{name}={size}" for name, size in placement.axes)
