"""A small program for Tenstorrent's compiler: a JAX expression, its arguments, and how they lie on the 2x4 mesh."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from tests.generators.plain_programs import MESH

NAMES = "xyz"
_INTEGERS = {"i8": np.int8, "i32": np.int32, "i64": np.int64, "ui8": np.uint8, "ui32": np.uint32, "ui64": np.uint64}
_ARGUMENT = re.compile(r"(\w+)\[([\d, ]*)\](?:<(\d+))?")


@dataclass(frozen=True)
class Candidate:
    """A program to be compiled.

    Attributes:
      family: what it is a program of.
      text: the program in one line.
      fun: the function with its constraints.
      plain: the function without shardings.
      args: the arguments.
      options: the options of `jaxmesh.jit`.
      key: what programs with the same values have in common.
      wide: whether JAX has 64-bit types.
    """

    family: str
    text: str
    fun: Callable[..., Any]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    key: str
    wide: bool = False


@functools.cache
def compiled_text(source: str) -> Any:
    return compile(source, "<program>", "eval")


def function_of(source: str, names: str, *, sharded: bool) -> Callable[..., Any]:
    """Returns the function of an expression; without shardings, `wsc` gives its operand."""

    def wsc(x: Any, spec: P) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(MESH, spec)) if sharded else x

    scope = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "P": P, "wsc": wsc}
    return eval(compiled_text(f"lambda {', '.join(names)}: {source}"), scope)


def argument(written: str, number: int) -> Any:
    """Returns random numbers of a written type: `f32[8,16]`, or `i32[8]<16` for numbers below 16.

    >>> argument("i32[3]<1", 0).tolist()
    [0, 0, 0]
    """
    found = _ARGUMENT.fullmatch(written)
    assert found, written
    shape = tuple(int(n) for n in found[2].split(",") if n.strip())
    rng = np.random.default_rng([number, *shape])
    if found[1] in _INTEGERS:
        return rng.integers(0, int(found[3] or 10), shape).astype(_INTEGERS[found[1]])
    if found[1] == "bool":
        return rng.random(shape) < 0.5
    drawn = rng.standard_normal(shape).astype(np.float64 if found[1] == "f64" else np.float32)
    return drawn.astype(jnp.bfloat16) if found[1] == "bf16" else drawn


def shape_of(written: str) -> tuple[int, ...]:
    found = _ARGUMENT.fullmatch(written)
    assert found, written
    return tuple(int(n) for n in found[2].split(",") if n.strip())


@dataclass(frozen=True)
class Program:
    """A program in one line.

    Attributes:
      source: an expression of `x`, `y`, `z`; `wsc(x, P("y"))` is a constraint.
      args: the types of the arguments.
      specs: their shardings; None for an array of the host.
      out: the sharding of the result, if it is asked for.
      mesh: the mesh, that of the families if it is not another.
    """

    source: str
    args: tuple[str, ...]
    specs: tuple[P | None, ...]
    out: P | None = None
    mesh: Mesh = MESH

    def __str__(self) -> str:
        names = NAMES[: len(self.args)]
        ends = ", ".join(f"{n}: {a} {show(s)}" for n, a, s in zip(names, self.args, self.specs, strict=True))
        mesh = "" if self.mesh is MESH else f"; mesh {'x'.join(map(str, self.mesh.shape.values()))}"
        return f"{self.source}; {ends}" + ("" if self.out is None else f"; result {show(self.out)}") + mesh

    def candidate(self, family: str = "") -> Candidate:
        """Returns the program as it is compiled."""
        names = NAMES[: len(self.args)]
        options: dict[str, Any] = {"mesh": self.mesh, "in_shardings": self.specs}
        if self.out is not None:
            options["out_shardings"] = self.out
        return Candidate(
            family,
            str(self),
            function_of(self.source, names, sharded=True),
            function_of(self.source, names, sharded=False),
            tuple(argument(a, n) for n, a in enumerate(self.args)),
            options,
            f"{self.source}; {self.args}",
            any("64[" in a for a in self.args),
        )


def show(spec: P | None) -> str:
    """Writes a spec as JAX code.

    >>> show(P("y", ("y", "x"), None))
    "P('y', ('y', 'x'), None)"
    """
    return "of the host" if spec is None else f"P({', '.join(map(repr, spec))})"


def placements(shape: Sequence[int]) -> list[P]:
    """Returns every sharding of a shape on the mesh by whole axes, two axes on a dim in both orders."""
    sizes = dict(MESH.shape)
    found: list[P] = []

    def extend(dims: tuple[tuple[str, ...], ...]) -> None:
        if len(dims) == len(shape):
            found.append(P(*[row[0] if len(row) == 1 else row or None for row in dims]))
            return
        used = {a for row in dims for a in row}
        for row in ((), ("y",), ("x",), ("y", "x"), ("x", "y")):
            if not used & set(row) and shape[len(dims)] % math.prod(sizes[a] for a in row) == 0:
                extend((*dims, row))

    extend(())
    return found
