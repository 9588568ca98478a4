"""A decoded function of a TTIR or TTNN text: its flat program, the lines of its ops, and its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jaxmesh.dialects.program import Program
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, VerifyError
from jaxmesh.frontends.mlir.module import BoundaryAttributes, Function


@dataclass(frozen=True, slots=True)
class Text:
    """A decoded function.

    Attributes:
      function: the function of the file.
      program: its flat program, calls inlined, in the current spelling of each op. Residencies and layouts are those
        that the types of the text name; ports have values alone.
      lines: the line of the file of each op.
      names: the name that the text gives each op, with the dialect.
      end: the line of `func.return`.
      arguments: the boundary attributes of its arguments.
      results: the boundary attributes of its results.
      needs: the first op that needs a mesh, with its line; None if no op does.
      device_mesh: the mesh shape that a `ttnn.get_device` asks for.
      notes: remarks on element types that are read as others.
      deviations: one sentence per op that is not as upstream defines it.
      is_current: True if the text spells every op as the printer does.
    """

    function: Function
    program: Program
    lines: Sequence[int]
    names: Sequence[str]
    end: int
    arguments: tuple[BoundaryAttributes, ...]
    results: tuple[BoundaryAttributes, ...]
    needs: str | None = None
    device_mesh: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    is_current: bool = True

    @property
    def presharded(self) -> tuple[bool, ...]:
        """True for each argument that is on the devices already."""
        return tuple(a.status == "presharded" for a in self.arguments)

    @property
    def avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the arguments; local types of presharded ones."""
        types = [self.program.types[port.value] for port in self.program.arguments]
        return tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types)

    @property
    def has_layouts(self) -> bool:
        """True if types of the text have layouts of TTNN."""
        return any(t.layout for t in self.program.types)

    def varying(self, axes: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Returns the mesh axes along which the shards of each argument may differ; None for a full argument."""
        return [self._axes(i, axes) if p else None for i, p in enumerate(self.presharded)]

    def _axes(self, number: int, axes: Sequence[str]) -> tuple[str, ...]:
        declared = self.arguments[number].varying
        if declared is None:
            return tuple(axes)
        if any(i >= len(axes) for i in declared):
            function = self.function
            raise VerifyError(
                f"line {function.line}: argument {number} of @{function.name}: jaxmesh.varying = {list(declared)}, "
                f"but the mesh has {len(axes)} axes; allowed are 0 to {len(axes) - 1}."
            )
        return tuple(axes[i] for i in declared)


def add_location(line: int, op: str, error: Exception) -> JaxmeshError:
    """Returns the error with its line and op in front, unless it names a line; a Python error becomes a VerifyError."""
    ours = isinstance(error, JaxmeshError)
    if ours and str(error).startswith("line "):
        return error
    text = str(error) if ours else " ".join(str(error).split())
    text = text if len(text) <= 2000 else text[:2000] + " ..."
    name = "" if text.startswith(op) else f"{op[:80]}: "
    if ours:
        # An argument in a file is an attribute's spelling.
        error_class = VerifyError if isinstance(error, ArgumentTypeError) else type(error)
        return error_class(f"line {line}: {name}{text}")
    return VerifyError(f"line {line}: {name}impossible ({type(error).__name__}: {text}).")
