"""Tables of a mesh and of what its devices hold, printed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, MeshMismatchError
from jaxmesh.runtime.eager_picture import cells
from jaxmesh.runtime.tensor import MeshTensor
from jaxmesh.ttnn.device import MeshDevice, mesh_of


def visualize_mesh_device(mesh_device: MeshDevice | Mesh, tensor: MeshTensor | None = None) -> None:
    """Prints a table of the mesh: each device with its id and coordinate, and with a tensor what it holds.

    A mesh of more than two axes is printed with one row per place on all but the last axis.

    Raises:
      ArgumentTypeError: no mesh device, or no multi-device tensor.

    >>> from jaxmesh import ttnn
    >>> ttnn.visualize_mesh_device(ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 2)))  # doctest: +SKIP
    """
    mesh = mesh_of(mesh_device)
    _table(f"MeshDevice {list(mesh.devices.shape)}", mesh, tensor)


def visualize_tensor(tensor: MeshTensor) -> None:
    """Prints a table of the mesh of a tensor: each device with what it holds.

    Raises:
      ArgumentTypeError: no multi-device tensor.
    """
    _check(tensor)
    mesh: Any = tensor.mesh
    _table(repr(tensor), mesh, tensor)


def _check(tensor: Any) -> None:
    if not isinstance(tensor, MeshTensor):
        raise ArgumentTypeError(
            f"what is drawn is a multi-device tensor, got {type(tensor).__name__}; distribute_tensor makes one."
        )


def _table(title: str, mesh: Mesh, tensor: MeshTensor | None) -> None:
    *front, last = map(range, mesh.devices.shape)
    rows = [
        [f"device {mesh.devices[(*start, end)].id}\n{[*start, end]}" for end in last]
        for start in itertools.product(*front)
    ]
    if tensor is not None:
        _check(tensor)
        if tensor.mesh != mesh:
            raise MeshMismatchError(
                f"the mesh device to draw has the shape {list(mesh.devices.shape)}, the tensor is on the mesh "
                f"{dict(tensor.mesh.shape)}, or on other devices; draw the tensor's own mesh with visualize_tensor."
            )
        texts = [[text for _, text in row] for row in cells(tensor)]
        rows = [[f"{a}\n{b}" for a, b in zip(r, t, strict=True)] for r, t in zip(rows, texts, strict=True)]
    try:
        _rich(title, rows)
    except ImportError:
        print(plain_table(title, rows))


def _rich(title: str, rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table: Any = Table(show_header=False, show_lines=True)
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(escape(title), highlight=False)
    console.print(table)


def plain_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A table of cells of several lines, in plain characters.

    >>> print(plain_table("numbers", [["1", "22"]]))
    numbers
    +----+----+
    | 1  | 22 |
    +----+----+
    """
    width = max((len(line) for row in rows for cell in row for line in cell.split("\n")), default=0)
    bar = "+" + "+".join("-" * (width + 2) for _ in rows[0]) + "+"
    lines = [title, bar]
    for row in rows:
        for parts in itertools.zip_longest(*[cell.split("\n") for cell in row], fillvalue=""):
            lines.append("|" + "|".join(f" {part:<{width}} " for part in parts) + "|")
        lines.append(bar)
    return "\n".join(lines)
