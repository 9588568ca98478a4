"""Random plain programs with shardings, nested: programs inside programs, remat, loops, Explicit axes, gradients.

A program of `sharded_programs`, or one whose axes are Explicit, with blocks of its steps made programs of their own.
`jax.jit` and the program unsharded say what it gives, which shardings its results have, and what it may move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators import sharded_programs as base
from tests.generators.sharded_programs import MESHES, Step

REMAT: dict[str, Callable[[Any], Any]] = {
    "checkpoint": jax.checkpoint,
    "checkpoint, dots": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
    "checkpoint, dots without batch": lambda f: jax.checkpoint(
        f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "checkpoint, everything": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "checkpoint, nothing": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable),
    "checkpoint, no barrier": lambda f: jax.checkpoint(f, prevent_cse=False),
}
NESTING = ("jax.jit", "jm.jit", "jax.jit with shardings", "jm.jit with shardings")
LOOPS = ("scan", "scan of checkpoint", "scan of checkpoint, dots")
KINDS = (*NESTING, *NESTING, *REMAT, *LOOPS)
Jit = Callable[..., Any]


@dataclass(frozen=True)
class Block:
    """Steps `start` to `stop` as a program in the program; `specs` are of values, by number, at its ends."""

    kind: str
    start: int
    stop: int
    specs: tuple[tuple[int, P], ...] = ()
    inner: tuple[Block, ...] = ()

    def __str__(self) -> str:
        specs = f" {dict(self.specs)}" if self.kind.endswith("shardings") else ""
        return f"{self.kind}{specs} of steps {self.start}:{self.stop}" + "".join(f", in it {b}" for b in self.inner)


@dataclass(frozen=True)
class NestedProgram(base.ShardedProgram):
    """A program with blocks, and how it is called."""

    blocks: tuple[Block, ...] = ()
    placed: tuple[P | None, ...] = field(default=())
    """By argument, how it lies on the mesh; None for an array of the host."""
    gradient: bool = False
    full_results: bool | None = None
    whole_mesh: bool = True
    """Whether `mesh=` is given, with specs; else NamedShardings."""

    @property
    def explicit(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def names(self) -> list[str]:
        return [s.name for s in self.steps]

    def about(self) -> Iterator[str]:
        first, *lines = super().about()
        yield f"{'Explicit ' if self.explicit else ''}{first}, placed {self.placed}"
        yield from lines
        yield from (f"  {block}" for block in self.blocks)
        yield f"  gradient={self.gradient}, full_results={self.full_results}, mesh={self.whole_mesh}"

    # --- the function ------------------------------------------------------------------------------------------------

    def function(self, jit: Jit | None) -> Callable[..., Any]:
        """Returns the program; `jit` makes its inner programs, without one it is neither sharded nor nested."""

        def run(*args: Any) -> tuple[Any, ...]:
            values = dict(enumerate(args))
            self._run_steps(values, 0, len(self.steps), self.blocks if jit else (), jit)
            return tuple(values[i] for i in self.results)

        def loss(*args: Any) -> Any:
            return sum(jnp.sum(jnp.sin(v)) for v in run(*args))

        return jax.grad(loss, tuple(range(len(self.shapes)))) if self.gradient else run

    def _run_steps(self, values: dict[int, Any], at: int, stop: int, blocks: Sequence[Block], jit: Jit | None) -> None:
        starts = {b.start: b for b in blocks}
        while at < stop:
            if at in starts:
                self._run_block(values, starts[at], jit)
                at = starts[at].stop
                continue
            step = self.steps[at]
            fun = step.function(sharded=jit is not None)
            values[len(self.shapes) + at] = fun(*[values[i] for i in step.operands])
            at += 1

    def ends_of(self, block: Block) -> tuple[list[int], list[int]]:
        """Returns the values that a block takes and gives."""
        first, last = len(self.shapes) + block.start, len(self.shapes) + block.stop
        inside, after = self.steps[block.start : block.stop], self.steps[block.stop :]
        taken = sorted({i for s in inside for i in s.operands if i < first})
        used = {i for s in after for i in s.operands} | {*self.results}
        return taken, [i for i in range(first, last) if i in used]

    def _run_block(self, values: dict[int, Any], block: Block, jit: Jit | None) -> None:
        taken, given = self.ends_of(block)
        specs = {i: NamedSharding(self.mesh, s) for i, s in block.specs}

        def body(*args: Any) -> tuple[Any, ...]:
            inner = dict(zip(taken, args, strict=True))
            self._run_steps(inner, block.start, block.stop, block.inner, jit)
            return tuple(inner[i] for i in given)

        name, _, how = block.kind.partition(" with ")
        if name in NESTING:
            ends = {"in_shardings": tuple(map(specs.get, taken)), "out_shardings": tuple(map(specs.get, given))}
            maker = jax.jit if name == "jax.jit" else jit
            assert maker is not None
            body = maker(body, **(ends if how else {}))
        elif name in LOOPS:
            body = _repeated(REMAT.get(name.removeprefix("scan of "), lambda f: f)(body))
        else:
            body = REMAT[name](body)
        values |= zip(given, body(*[values[i] for i in taken]), strict=True)

    def shardings(self, specs: Sequence[P | None]) -> tuple[Any, ...]:
        return tuple(None if s is None else NamedSharding(self.mesh, s) for s in specs)

    def by_jax(self) -> Any:
        """Returns `jax.jit` of the program."""
        fun = self.function(jax.jit)
        if self.explicit:
            return jax.jit(fun)
        return jax.jit(fun, in_shardings=self.shardings(self.in_specs), out_shardings=self.shardings(self.out_specs))

    def by_jaxmesh(self) -> Any:
        """Returns `jaxmesh.jit` of the program."""
        fun = self.function(jm.jit)
        if self.explicit:
            return jm.jit(fun, full_results=self.full_results)
        ins, outs = self.in_specs, self.out_specs
        if self.whole_mesh:
            return jm.jit(fun, mesh=self.mesh, in_shardings=ins, out_shardings=outs, full_results=self.full_results)
        ins, outs = self.shardings(ins), self.shardings(outs)
        return jm.jit(fun, in_shardings=ins, out_shardings=outs, full_results=self.full_results)

    def context(self) -> Any:
        return jax.set_mesh(self.mesh) if self.explicit else contextlib.nullcontext()


def _repeated(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs another one twice in a loop, and gives the later results."""

    def run(*args: Any) -> Any:
        return jax.tree.map(lambda y: y[-1], lax.scan(lambda c, _: (c, body(*c)), args, None, length=2)[1])

    return run


# --- drawing ---------------------------------------------------------------------------------------------------------


def make_meshes(explicit: bool = False) -> dict[tuple[int, ...], Mesh]:
    """Returns the meshes of the programs."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return {s: jm.make_mesh(s, names, axis_types=(kind,) * len(s)) for s, names in MESHES.items()}


def draw(seed: int, meshes: dict[tuple[int, ...], Mesh], explicit: dict[tuple[int, ...], Mesh]) -> NestedProgram:
    """Draws a program; every third has Explicit axes."""
    rng = np.random.default_rng([seed, 1])
    drawn = _typed(rng, explicit) if seed % 3 == 2 else _plain(rng, seed, meshes)
    gradient = bool(rng.random() < 0.35)
    drawn = replace(drawn, gradient=gradient, full_results=[None, True, False][int(rng.integers(3))])
    if gradient:
        drawn = replace(drawn, out_specs=tuple(s if rng.random() < 0.5 else None for s in drawn.in_specs))
    return replace(drawn, blocks=_blocks(rng, drawn, 0, len(drawn.steps), 2), whole_mesh=bool(rng.random() < 0.5))


def _pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _plain(rng: np.random.Generator, seed: int, meshes: dict[tuple[int, ...], Mesh]) -> NestedProgram:
    """Draws a program over Auto axes: some arguments lie on the mesh, also where no sharding is asked for."""
    p = base.draw(seed, meshes)
    steps = list(p.steps)
    for i, s in enumerate(steps):
        if s.name == "constraint":
            # Some constraints ask for copies.
            whole = NamedSharding(p.mesh, P())
            if rng.random() >= 0.7:
                fun = lambda x, s=whole: lax.with_sharding_constraint(x, s)  # noqa: E731
                steps[i] = replace(s, name="constraint P()", fun=fun)
    placed = [
        (s or _pick(rng, base.specs_of(shape, p.mesh))) if rng.random() < 0.4 else None
        for s, shape in zip(p.in_specs, p.shapes, strict=True)
    ]
    return NestedProgram(p.mesh, p.shapes, tuple(steps), p.results, p.in_specs, p.out_specs, (), tuple(placed))


def _typed(rng: np.random.Generator, meshes: dict[tuple[int, ...], Mesh]) -> NestedProgram:
    """Draws a program over Explicit axes, of operations whose types JAX can tell."""
    mesh = meshes[_pick(rng, list(MESHES))]
    count = int(rng.integers(1, 4))
    shapes = tuple(tuple(int(rng.choice(base.SIZES)) for _ in range(int(rng.integers(1, 4)))) for _ in range(count))
    specs = tuple(_pick(rng, base.specs_of(s, mesh)) for s in shapes)
    values: list[Any] = [
        jax.ShapeDtypeStruct(s, np.float32, sharding=NamedSharding(mesh, p)) for s, p in zip(shapes, specs, strict=True)
    ]
    steps: list[Step] = []
    with jax.set_mesh(mesh):
        while len(steps) < int(rng.integers(3, 9)):
            i, j = (int(n) for n in rng.integers(0, len(values), 2))
            step = _typed_step(rng, mesh, values, i, j)
            if step is None:
                continue
            try:
                made = jax.eval_shape(step.fun, *[values[k] for k in step.operands])
            except Exception:  # JAX refuses the operation on such types, each primitive with an error of its own.
                continue
            if made.size <= base.MOST and len(made.shape) <= 3:
                steps.append(step)
                values.append(made)
    results = tuple(sorted({len(values) - 1, int(rng.integers(count, len(values)))}))
    return NestedProgram(mesh, shapes, tuple(steps), results, specs, (None,) * len(results), (), specs)


def _typed_step(rng: np.random.Generator, mesh: Mesh, values: Sequence[Any], i: int, j: int) -> Step | None:
    x, y = values[i], values[j]
    if rng.random() < 0.2:
        spec = _pick(rng, base.specs_of(x.shape, mesh))
        return Step(f"reshard {spec}", lambda x: jax.sharding.reshard(x, spec), (i,), lambda x: x)
    if rng.random() < 0.3 and len(x.shape) == len(y.shape) == 2 and x.shape[1] == y.shape[0]:
        spec = _pick(rng, base.specs_of((x.shape[0], y.shape[1]), mesh))
        return Step(
            f"matmul out_sharding={spec}",
            lambda x, y: jnp.matmul(x, y, out_sharding=spec) / x.shape[1],
            (i, j),
            lambda x, y: x @ y / x.shape[1],
        )
    if rng.random() < 0.4:
        drawn = base._two(rng, x, y)
        return drawn and Step(*drawn, (i, j))
    return None if min(x.shape, default=0) < 2 else Step(*base._one(rng, x), (i,))


def _blocks(rng: np.random.Generator, program: NestedProgram, start: int, stop: int, deep: int) -> tuple[Block, ...]:
    """Draws the blocks among some steps, one to three of them, each with blocks in it."""
    found: list[Block] = []
    at = start
    while deep and at < stop and len(found) < 3:
        first = int(rng.integers(at, stop))
        last = int(rng.integers(first, stop)) + 1
        kinds = [k for k in KINDS if not (program.explicit and k.endswith("shardings"))]
        block = Block(str(_pick(rng, kinds)), first, last)
        taken, given = program.ends_of(block)
        if given:
            specs = _specs(rng, program, [*taken, *given]) if block.kind.endswith("shardings") else ()
            found.append(replace(block, specs=specs, inner=_blocks(rng, program, first, last, deep - 1)))
        at = last
    return tuple(found)


def _specs(rng: np.random.Generator, program: NestedProgram, values: Sequence[int]) -> tuple[tuple[int, P], ...]:
    """Draws shardings of some values."""
    args = [jax.ShapeDtypeStruct(s, np.float32) for s in program.shapes]
    every = replace(program, results=tuple(values), gradient=False, blocks=())
    types = jax.eval_shape(every.function(None), *args)
    chosen = [(i, t) for i, t in zip(values, types, strict=True) if rng.random() < 0.7]
    return tuple((i, _pick(rng, base.specs_of(t.shape, program.mesh))) for i, t in chosen)
