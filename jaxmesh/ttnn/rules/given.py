"""The arguments of a call as the rules of the real functions see them: forms of tensors, numbers, names.

A rule refuses a call or returns the element type and layout of each result. Rules are facts about the real library;
which of the accepted forms a program uses is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxmesh.dialects.ttnn.forms import BLOCKS
from jaxmesh.errors import VerifyError

TILE, ROWS = "TILE", "ROW_MAJOR"


@dataclass(frozen=True, slots=True)
class Form:
    """The type of a tensor.

    Attributes:
      shape: the local shape.
      dtype, layout: `DataType` and `Layout` by name.
      host: True if it is in host memory.
      memory: the kind of its memory on the devices.
      mesh: the shape of its mesh.
      l1_small: True if the device was opened with memory for the indices of windows.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str
    host: bool = False
    memory: str = "DRAM"
    mesh: tuple[int, ...] = (1,)
    l1_small: bool = True

    @property
    def is_tile(self) -> bool:
        """True for tiles."""
        return self.layout == TILE

    @property
    def is_empty(self) -> bool:
        """True without elements, which the real functions return from before they look at anything else."""
        return 0 in self.shape

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.layout}{' in host memory' if self.host else ''}"


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of one call.

    Attributes:
      callee: the dotted name of the function.
      values: the arguments by parameter; tensors are `Form`s, element types and layouts their names.
    """

    callee: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def tensors(self) -> list[Form]:
        """Returns the forms of all tensors, also of a list."""
        found: list[Form] = []
        for value in self.values.values():
            rows = value
            found += [v for v in (rows if isinstance(value, (list, tuple)) else [rows]) if isinstance(v, Form)]
        return found

    def refuse(self, rule: str, real: str) -> NoReturn:
        """Raises the refusal of the call, in our words and in the library's."""
        shown = ", ".join(map(str, self.tensors()))
        raise VerifyError(f"{self.callee} {rule}; got {shown or 'no tensor'}. In ttnn: {real}.")

    def require(self, condition: bool, rule: str, real: str) -> None:
        """Refuses the call unless a condition holds."""
        if not condition:
            self.refuse(rule, real)

    def dim(self, dim: int, rank: int, real: str, purpose: str = "") -> int:
        """Returns a dim counted from the front, after a check against the rank."""
        self.require(-rank <= dim < rank, f"has no dim {dim}{purpose}", real)
        return dim % rank

    def on_devices(self, *forms: object) -> None:
        """Requires tensors on the devices."""
        rule = "takes tensors on the devices; use ttnn.to_device"
        for form in forms:
            if isinstance(form, Form):
                self.require(not form.host, rule, "expected device tensors as inputs")

    def on_device(self, name: str) -> Any:
        """Returns an argument, after a check that a tensor is on the devices."""
        self.on_devices(self[name])
        return self[name]

    def types(self, form: Form, allowed: frozenset[str], what: str = "its operand") -> None:
        """Requires an element type."""
        rule = f"takes {', '.join(sorted(allowed))} as {what}; use ttnn.typecast"
        self.require(form.dtype in allowed, rule, f"unsupported data type DataType::{form.dtype}")

    def tiles(self, *forms: Form) -> None:
        """Requires tiles."""
        good = all(f.is_tile for f in forms)
        self.require(good, "takes tensors in TILE layout; use ttnn.to_layout", "input must be in TILE layout")


@dataclass(frozen=True, slots=True)
class Result:
    """The type of a result; its shape is the computation's unless given.

    `computed` is the element type to convert the operands to, where they or the meaning have another one.
    """

    dtype: str
    layout: str
    computed: str | None = None
    shape: tuple[int, ...] | None = None


Rule = Callable[[Given], Sequence[Result]]


def checked(given: Given, results: list[Result]) -> list[Result]:
    """Returns results that a tensor can have: block floats are tiled."""
    for r in results:
        if r.dtype in BLOCKS and r.layout != TILE:
            given.refuse(
                f"gives {r.dtype} in {r.layout}, but block floats are tiled",
                f"Only TILE layout is supported for {r.dtype} dtype",
            )
    return results


def like(form: Form, dtype: str | None = None) -> list[Result]:
    """Returns one result in the form of an operand, or in another element type."""
    return [Result(dtype or form.dtype, form.layout)]


def tiled(form: Form) -> list[Result]:
    """Returns one result in tiles."""
    return [Result(form.dtype, TILE)]
