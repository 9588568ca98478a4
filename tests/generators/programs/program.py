"""A random program: drawn, shown as a Python file that runs, made a function, and run by the oracle."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

import jaxmesh as jm
from jaxmesh.sharding.mesh import storage_spec
from tests.generators.programs.collectives import drawn_rows
from tests.generators.programs.draw import DTYPES, MESHES, STYLES, Argument, Builder, Scope
from tests.generators.programs.oracle import Oracle, Typing
from tests.generators.programs.source import INDENT, Writer, map_specs, row, unpacked
from tests.generators.programs.values import Axes, Copies, Draw, Statement, World, spec_text

IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

"""
TREES = ("row", "row", "dict", "nested")
ROWS = ("row", "row")


@dataclass(frozen=True)
class Program:
    """A whole program.

    Attributes:
      world: the mesh.
      style: `shards` (mesh_shards by hand), `mapped` (calls of jax.shard_map), `drop-in` (one jm.shard_map).
      arguments: in order.
      statements: in order.
      results: names, some perhaps twice.
      exact: per result whether it is free of rounding.
      sure: the names of all values that are.
      trees: the forms of the arguments and of the results: `row`, `dict`, or `nested`.
    """

    world: World
    style: str
    arguments: tuple[Argument, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    exact: tuple[bool, ...]
    sure: frozenset[str]
    trees: tuple[str, str] = ROWS

    # --- the function ---

    def source(self) -> str:
        """The function and its mesh, after the imports."""
        mesh = f"mesh = jm.make_mesh({self.world.sizes}, {self.world.names})".replace("'", '"')
        return "\n".join([mesh, "", "", *self._lines(), ""])

    def _lines(self) -> list[str]:
        writer = Writer(self.world)
        if self.style == "drop-in":
            (s,) = self.statements
            (lines, body) = self._types(s), s.bodies[0]
            block = writer.block(body.statements, lines)
            rows = [row(map_specs(s.params[k])) for k in ("in_rows", "out_rows")]
            head = f"@jm.shard_map(mesh=mesh, in_specs={rows[0]}, out_specs={rows[1]})"
            names, back = row(body.parameters)[1:-1], row(body.results)
            return [head, f"def program({names}):", *[INDENT + x for x in [*block, f"return {back}"]]]
        names = [a.name for a in self.arguments]
        parameters, first = ", ".join(names), list[str]()
        if self.trees[0] == "dict":
            parameters, first = "given", [f"{n} = given[{n!r}]".replace("'", '"') for n in names]
        elif self.trees[0] == "nested":
            parameters = f"{names[0]}, given"
            first = [f"{unpacked(names[1:])} = given[0]"] if names[1:] else []
        block = writer.block(self.statements, dict(self.argument_axes()))
        body = [*first, *self._opening(block), *block, f"return {self._returned()}"]
        return ["@jm.jit(mesh=mesh)", f"def program({parameters}):", *[INDENT + line for line in body]]

    def _opening(self, block: Sequence[str]) -> list[str]:
        """A first split by hand, where one is needed to give values the types of varying axes that `pcast` reads."""
        typed = next((i for i, line in enumerate(block) if "pcast" in line), len(block))
        splits = any("_shard(" in line for line in block[:typed]) or any(a.placed is not None for a in self.arguments)
        needed = self.style == "shards" and not splits and typed < len(block)
        return ["jm.full_to_shard(jnp.zeros(1), P())"] if needed else []

    def _types(self, s: Statement) -> dict[str, Axes]:
        named = [frozenset(a for r in rows for a in r) for rows in s.params["in_rows"]]
        return dict(zip(s.bodies[0].parameters, named, strict=True))

    def argument_axes(self) -> dict[str, Axes]:
        """The axes over which each argument varies."""
        return {a.name: frozenset(x for r in a.placed or () for x in r) for a in self.arguments}

    def _returned(self) -> str:
        if self.trees[1] == "dict":
            return "{" + ", ".join(f'"r{i:02}": {n}' for i, n in enumerate(self.results)) + "}"
        if self.trees[1] == "nested":
            return f"({self.results[0]}, [{row(self.results[1:]) if self.results[1:] else ''}])"
        return row(self.results)

    def function(self) -> Any:
        """The function, made from its source; its lines are found by tracebacks and messages."""
        text = IMPORTS + self.source()
        name = f"<random program {hash(text) & 0xFFFFFFFF:08x}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = {"__name__": "random_program"}
        exec(compile(text, name, "exec"), space)
        return space["program"]

    # --- a file that runs ---

    def shown(self) -> str:
        """The program as a Python file that prints its results."""
        lines = [f"jm.emulate({max(8, self.world.size(self.world.names))})", "", "", "def whole(shape, dtype, seed):"]
        lines += ['    low, high = (0, 1) if dtype == "bool" else (0, 5) if dtype.startswith("u") else (-4, 4)']
        lines += ["    numbers = np.random.default_rng(seed).integers(low, high + 1, shape)"]
        lines += ["    return np.asarray(numbers).astype(jnp.dtype(dtype))", "", ""]
        made: list[str] = []
        for a in self.arguments:
            full = f'whole({a.shape}, "{a.dtype}", {a.seed})'
            if a.placed is not None:
                full = f"jm.jit(lambda x: jm.full_to_shard(x, {spec_text(a.placed)}), mesh=mesh)({full})"
            lines_of = f"{a.name} = {full}"
            made.append(lines_of)
        return "\n".join([IMPORTS + "\n".join(lines), self.source(), *made, f"print(program({self._call()}))", ""])

    def _call(self) -> str:
        names = [a.name for a in self.arguments]
        if self.trees[0] == "dict":
            return "{" + ", ".join(f'"{n}": {n}' for n in names) + "}"
        if self.trees[0] == "nested":
            return f"{names[0]}, [{row(names[1:]) if names[1:] else ''}]"
        return ", ".join(names)

    def call(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments in the form in which the function takes them."""
        names = [a.name for a in self.arguments]
        if self.trees[0] == "dict":
            return (dict(zip(names, given, strict=True)),)
        if self.trees[0] == "nested":
            return given[0], [tuple(given[1:])] if given[1:] else []
        return tuple(given)

    def given(self) -> list[Any]:
        """The arguments: arrays, and tensors on the devices."""
        mesh = jm.make_mesh(self.world.sizes, self.world.names)
        return [a.full if a.placed is None else self._tensor(a, mesh) for a in self.arguments]

    def _tensor(self, a: Argument, mesh: Mesh) -> jm.MeshTensor:
        assert a.placed is not None
        copies = self.world.split(self.world.everywhere(a.full), a.placed)
        axes = [n for n in self.world.names if any(n in r for r in a.placed)]
        local = next(iter(copies.values())).shape
        stored = np.empty([*local, *[self.world.size([n]) for n in axes]], a.full.dtype)
        for c, x in copies.items():
            stored[(..., *[c[self.world.names.index(n)] for n in axes])] = x
        sharding = NamedSharding(mesh, storage_spec(len(local), axes))
        return jm.MeshTensor(jax.device_put(stored, sharding), mesh, axes)

    # --- the oracle ---

    def expected(self) -> list[Copies]:
        """What each device holds of each result."""
        env: dict[str, Copies] = {}
        for a in self.arguments:
            full = self.world.everywhere(a.full)
            env[a.name] = full if a.placed is None else self.world.split(full, a.placed)
        oracle = Oracle(self.world)
        for s in self.statements:
            env.update(zip(s.results, oracle.statement(s, env), strict=True))
        return [env[r] for r in self.results]

    def result_axes(self) -> list[Axes]:
        """The axes over which each result varies."""
        env, typing = self.argument_axes(), Typing(self.world)
        for s in self.statements:
            env.update(zip(s.results, typing.statement(s, env), strict=True))
        return [env[r] for r in self.results]

    @property
    def dynamic(self) -> bool:
        """Whether it holds a loop whose length is decided when it runs: such programs may have no texts."""
        return any(_dynamic(s) for s in self.statements)

    def only(self, name: str) -> Program:
        """The program with one result, and the statements alone that it needs."""
        kept, needed = list[Statement](), {name}
        for s in reversed(self.statements):
            if needed & {*s.results}:
                kept.append(s)
                needed |= s.reads
        arguments = tuple(a for a in self.arguments if a.name in needed) or self.arguments[:1]
        if self.style == "drop-in":
            arguments = self.arguments
        statements = tuple(reversed(kept))
        exact = name in self.sure
        return replace(self, arguments=arguments, statements=statements, results=(name,), exact=(exact,), trees=ROWS)


def _dynamic(s: Statement) -> bool:
    inside = any(_dynamic(t) for b in s.bodies for t in b.statements)
    return inside or (s.op == "loop" and "count" not in s.params)


def draw_program(draw: Draw) -> Program:
    """Draws a program."""
    sizes = draw.choice(MESHES)
    world = World(tuple("abcd"[: len(sizes)]), sizes)
    style = draw.choice(STYLES)
    builder, scope = Builder(draw, world, style == "mapped"), Scope()
    arguments: list[Argument] = []
    for number in range(draw.integers(1, 3)):
        arguments.append(_argument(draw, world, builder, scope, number, style))
    if style == "drop-in":
        for _ in range(9):
            if builder.region(scope, [a.name for a in arguments]):
                break
        else:
            style = "mapped"
            builder.mapped_only = True
    else:
        for _ in range(draw.integers(1, 9)):
            builder.statement(scope)
    if style == "drop-in":
        results = scope.statements[0].results
        trees = ROWS
    else:
        results = tuple(_result(draw, scope) for _ in range(draw.integers(1, 4)))
        trees = draw.choice(TREES), draw.choice(TREES)
    exact, sure = tuple(scope.exact[r] for r in results), frozenset(n for n in scope.names if scope.exact[n])
    return Program(world, style, tuple(arguments), tuple(scope.statements), results, exact, sure, trees)


def _result(draw: Draw, scope: Scope) -> str:
    """Mostly one of the newest values: what they need is run too."""
    names = scope.names
    return draw.choice(names[:5] if draw.integers(0, 3) else names)


def _argument(draw: Draw, world: World, builder: Builder, scope: Scope, number: int, style: str) -> Argument:
    """An argument that some sharding divides; mostly it is split at once."""
    rank = draw.choice([2, 1, 3, 0, 2, 4])
    rows = drawn_rows(draw, world, (1,) * rank) or ()
    shape = tuple(draw.integers(1, 2) * world.size(r) for r in rows)
    dtype = draw.choice(DTYPES)
    placed = rows if style == "shards" and draw.integers(0, 3) == 3 else None
    made = Argument(builder.fresh("x"), shape, dtype, number, placed)
    full = world.everywhere(made.full)
    axes = frozenset(a for r in rows for a in r) if placed is not None else frozenset[str]()
    builder.put(scope, made.name, full if placed is None else world.split(full, placed), axes, True)
    if style == "shards" and placed is None and draw.integers(0, 3):
        said = {"rows": rows, "raw": False}
        builder.add(scope, Statement((builder.fresh(),), "distribute", (made.name,), said), [True])
    return made
