"""The placements of a program over meshes, and what each way to run them gives.

Programs of one batch are one function of all their arguments: they share the cost of tracing and compilation, and no
value. A batch that raises is divided until each error has its program.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.errors import JaxmeshError
from jaxmesh.ttnn import beyond, helpers
from tests.generators.placements.programs import Array, Program, Shape
from tests.generators.programs.execution_paths import Utilities

MESHES = {"2x4": ((2, 4), ("y", "x")), "8": ((8,), ("x",)), "2x2x2": ((2, 2, 2), ("z", "y", "x"))}
BATCH = 32
"""Programs that are compiled together."""
_KEPT = 8
"""The batches whose compiled operations are kept."""
_RUN = itertools.count(1)


def make_mesh(name: str) -> Mesh:
    """Returns the mesh of a name."""
    return jm.make_mesh(*MESHES[name])


@dataclass(frozen=True)
class Placement:
    """A program with the shardings of its arguments and of its result.

    Attributes:
      program: the program.
      mesh: the mesh.
      ins: per argument its spec.
      out: the spec of the result; None leaves it to the partitioner.
      inside: True if constraints inside of the program ask for the shardings, and not the options of `jit`.
    """

    program: Program
    mesh: Mesh
    ins: tuple[P | None, ...]
    out: P | None
    inside: bool = False

    def function(self, *args: Any) -> Any:
        """Calls the program, with the constraints inside."""
        if not self.inside:
            return self.program.fun(*args)
        args = tuple(map(self._placed, args, self.ins))
        return self._placed(self.program.fun(*args), self.out)

    def _placed(self, x: Any, spec: P | None) -> Any:
        return x if spec is None else lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    @property
    def shardings(self) -> tuple[Any, Any]:
        """The options `in_shardings` and `out_shardings`."""
        named = [None if s is None or self.inside else NamedSharding(self.mesh, s) for s in (*self.ins, self.out)]
        return tuple(named[:-1]), named[-1]

    def __str__(self) -> str:
        where = "inside" if self.inside else "at the ends"
        return f"{self.program.name}, mesh {dict(self.mesh.shape)}, {self.ins} to {self.out} {where}"


def specs_of(shape: Shape, mesh: Mesh, *, uneven: bool = False) -> list[P]:
    """Returns every spec of a shape, with the axes of a dim in every order; those that divide it, unless `uneven`."""
    axes = list(mesh.axis_names)
    rows = [row for n in range(len(axes) + 1) for row in itertools.permutations(axes, n)]
    found: list[P] = []
    for choice in itertools.product(rows, repeat=len(shape)):
        used = [a for row in choice for a in row]
        counts = [math.prod(mesh.shape[a] for a in row) for row in choice]
        if len(used) == len(set(used)) and (uneven or all(n % k == 0 for n, k in zip(shape, counts, strict=True))):
            found.append(P(*[row or None for row in choice]))
    return found


def placements(program: Program, mesh: Mesh, *, inside: bool = False, uneven: bool = False) -> Iterator[Placement]:
    """Yields every placement of a program's arguments and result over a mesh."""
    shapes = (*program.shapes, program.wanted[0].shape)
    for *ins, out in itertools.product(*[specs_of(s, mesh, uneven=uneven) for s in shapes]):
        yield Placement(program, mesh, tuple(ins), out, inside)


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What a way to run a placement gave that is not the oracle's value.

    Attributes:
      way: the way to run it.
      placement: the placement.
      kind: `wrong` for a wrong value, else the name of the exception.
      text: both values, or the message.
    """

    way: str
    placement: Placement
    kind: str
    text: str

    @property
    def named(self) -> bool:
        """True for an error of jaxmesh, raised for a text."""
        return self.kind.startswith("named ")


class Batch:
    """Placements that run as one function."""

    def __init__(self, placed: Sequence[Placement]) -> None:
        self.placed = placed
        self.mesh = placed[0].mesh
        rows = [p.shardings for p in placed]
        self.options = {"in_shardings": tuple(r[0] for r in rows), "out_shardings": tuple(r[1] for r in rows)}
        self.calls = max(len(p.program.calls) for p in placed)

        def batch(*groups: Any) -> tuple[Any, ...]:
            return tuple(p.function(*g) for p, g in zip(placed, groups, strict=True))

        self.batch = batch
        self.jitted: Any = jm.jit(batch, mesh=self.mesh, **self.options)
        self._lowered: Any = None

    def args(self, call: int) -> tuple[Any, ...]:
        """Returns the arguments of a call."""
        return tuple(p.program.calls[call % len(p.program.calls)] for p in self.placed)

    def wanted(self, call: int) -> list[Array]:
        """Returns the oracle's results of a call."""
        return [p.program.wanted[call % len(p.program.calls)] for p in self.placed]

    @property
    def lowered(self) -> Any:
        """The lowered program, which has a text."""
        if self._lowered is None:
            traced = self.jitted.trace(*self.args(0))
            if traced.inexpressible is not None:
                raise traced.inexpressible
            self._lowered = traced.lower()
        return self._lowered


def _call(batch: Batch) -> Callable[..., Any]:
    return batch.jitted


def _compiled(batch: Batch) -> Callable[..., Any]:
    return batch.lowered.compile()


def _reference(batch: Batch) -> Callable[..., Any]:
    return batch.lowered.reference


def _jax(batch: Batch) -> Callable[..., Any]:
    return jax.jit(batch.batch, **batch.options)


def _unsharded(batch: Batch) -> Callable[..., Any]:
    return jax.jit(lambda *groups: tuple(p.program.fun(*g) for p, g in zip(batch.placed, groups, strict=True)))


def _python(batch: Batch) -> Callable[..., Any]:
    """Emitted Python on the emulated TTNN."""
    text = batch.lowered.as_text("python", strict=False)
    space: dict[str, Any] = {"__name__": "emitted", "ttnn": ttnn, "utils": Utilities()}
    exec(compile(text.replace("import ttnn\nimport utils\n", "", 1), "<emitted>", "exec"), space)

    def run(*groups: Any) -> list[Array]:
        with beyond.enabled():
            outs = space["batch"]([helpers.from_numpy(np.asarray(x)) for x in jax.tree.leaves(groups)])
            return [helpers.to_numpy(y) for y in outs]

    return run


WAYS: dict[str, Callable[[Batch], Callable[..., Any]]] = {
    "call": _call,
    "compile": _compiled,
    "reference": _reference,
    "python": _python,
    "jax.jit": _jax,
    "unsharded": _unsharded,
}
"""The ways to run a batch, by the name that reports use."""


def findings(placed: Iterable[Placement], ways: Sequence[str], size: int = BATCH) -> Iterator[Finding]:
    """Runs placements, and yields what is not the oracle's value."""
    for rows in _batched(placed, size):
        batch = Batch(rows)
        for way in ways:
            yield from _findings(batch, way)
        # Other placements of a program run the same operations, compiled for the same shapes.
        if next(_RUN) % _KEPT == 0:
            jax.clear_caches()


def _batched(rows: Iterable[Placement], size: int) -> Iterator[tuple[Placement, ...]]:
    iterator = iter(rows)
    while part := tuple(itertools.islice(iterator, size)):
        yield part


def _findings(batch: Batch, way: str) -> Iterator[Finding]:
    try:
        found = list(_wrong(batch, way))
    except Exception as error:
        if len(batch.placed) == 1:
            kind = type(error).__name__
            yield Finding(
                way, batch.placed[0], f"named {kind}" if isinstance(error, JaxmeshError) else kind, str(error)
            )
            return
        middle = len(batch.placed) // 2
        for half in (batch.placed[:middle], batch.placed[middle:]):
            yield from _findings(Batch(half), way)
        return
    yield from found


def _wrong(batch: Batch, way: str) -> Iterator[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = WAYS[way](batch)
        seen: set[int] = set()
        for call in range(batch.calls):
            outs = [np.asarray(y) for y in run(*batch.args(call))]
            for i, (got, want) in enumerate(zip(outs, batch.wanted(call), strict=True)):
                if i in seen or (got.shape == want.shape and np.array_equal(got, want)):
                    continue
                seen.add(i)
                given = [x for x in batch.args(call)[i] if not x.ndim]
                text = f"scalars {list(map(int, given))}: got {got.tolist()}, expected {want.tolist()}"
                yield Finding(way, batch.placed[i], "wrong", text)
