"""Draws random programs: statement by statement, each run by the oracle as it is drawn, so that all of them fit."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.generators.programs.collectives import MOVES, drawn_rows
from tests.generators.programs.elementwise import TABLE
from tests.generators.programs.oracle import Oracle, Typing, first_of
from tests.generators.programs.values import Array, Axes, Body, Copies, Draw, Misfit, Rows, Statement, World, whole

MESHES = [
    (2, 4), (2,), (4,), (2, 2), (1, 2), (2, 1), (4, 2), (8,), (2, 3), (2, 2, 2), (2, 1, 4), (1, 2, 2, 2), (2, 2, 2, 2),
    (2, 2, 1), (3,), (16,), (4, 4),
]  # fmt: skip
DTYPES = ["float32"] * 6 + ["int32", "int32", "bfloat16", "uint8", "bool", "float16", "int8", "uint32", "int16"]
STYLES = ["shards", "shards", "shards", "mapped", "drop-in"]
LONGEST = 4
"""Steps of a loop at most: texts write every one."""


@dataclass(frozen=True)
class Argument:
    """An argument: whole numbers of a seed, on the devices before the program starts where `placed` says so."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    seed: int
    placed: Rows | None

    @property
    def full(self) -> Array:
        """The full array."""
        return whole(self.shape, self.dtype, self.seed)


@dataclass
class Scope:
    """What is known where a statement is drawn: values of a first step, their axes, whether they are exact."""

    values: ChainMap[str, Copies] = field(default_factory=lambda: ChainMap[str, Copies]())
    axes: ChainMap[str, Axes] = field(default_factory=lambda: ChainMap[str, Axes]())
    exact: ChainMap[str, bool] = field(default_factory=lambda: ChainMap[str, bool]())
    statements: list[Statement] = field(default_factory=list[Statement])
    depth: int = 0
    together: bool = True
    """Whether devices may communicate here."""
    mapped: bool = False
    """Whether it is inside of a mapped function, where there are no mesh_shards."""

    @property
    def names(self) -> list[str]:
        """All names, the newest first."""
        return sorted(self.values, key=lambda n: -int(n[1:]))

    def inside(self, together: bool = True, empty: bool = False, mapped: bool = False) -> Scope:
        """The scope of a function in this one."""
        made = Scope() if empty else Scope(self.values.new_child(), self.axes.new_child(), self.exact.new_child())
        made.depth, made.together, made.mapped = self.depth + 1, self.together and together, self.mapped or mapped
        return made


class Builder:
    """Draws statements into scopes."""

    def __init__(self, draw: Draw, world: World, mapped_only: bool) -> None:
        self.draw, self.world = draw, world
        self.oracle, self.typing = Oracle(world), Typing(world)
        self.mapped_only = mapped_only
        self.count = 0

    def fresh(self, letter: str = "v") -> str:
        """A new name."""
        self.count += 1
        return f"{letter}{self.count}"

    def put(self, scope: Scope, name: str, value: Copies, axes: Axes, exact: bool) -> None:
        """Makes a value known."""
        scope.values[name], scope.axes[name], scope.exact[name] = value, axes, exact

    def add(self, scope: Scope, s: Statement, exact: Sequence[bool]) -> bool:
        """Adds a statement if it fits."""
        try:
            axes = self.typing.statement(s, scope.axes)
            values = self.oracle.statement(s, scope.values)
        except Misfit:
            return False
        if any(first_of(v).size > 4096 or first_of(v).ndim > 5 for v in values):
            return False
        for name, value, kind, sure in zip(s.results, values, axes, exact, strict=True):
            self.put(scope, name, value, kind, sure)
        scope.statements.append(s)
        return True

    # --- one statement ---

    def statement(self, scope: Scope) -> None:
        """Draws a statement; sometimes none fits."""
        kind = self.draw.integers(0, 99)
        if kind < 52 or (kind >= 80 and scope.depth >= 2):
            self.compute(scope)
        elif self.mapped_only and not scope.mapped:
            self.region(scope) if kind < 92 else self.control(scope)
        elif kind < 80:
            self.move(scope)
        else:
            self.control(scope)

    def pick(self, scope: Scope, fits: Callable[[str], bool] = lambda name: True) -> str | None:
        """A name of the scope that fits, the newest the simplest."""
        names = [n for n in scope.names if fits(n)]
        return self.draw.choice(names) if names else None

    def compute(self, scope: Scope) -> None:
        """What devices do each alone."""
        for _ in range(4):
            name = self.draw.choice(list(TABLE))
            row = TABLE[name]
            operands = self._operands(scope, name, row.arity)
            if operands is None or (row.settled and not all(scope.exact[o] for o in operands)):
                continue
            params = row.drawn(self.draw, [first_of(scope.values[o]) for o in operands])
            if params is None:
                continue
            results = tuple(self.fresh() for _ in range(row.results))
            exact = row.exact and all(scope.exact[o] for o in operands)
            if self.add(scope, Statement(results, name, tuple(operands), params), [exact] * row.results):
                return

    def _operands(self, scope: Scope, op: str, arity: int) -> list[str] | None:
        found: list[str] = []
        for number in range(arity):
            wanted: np.dtype[Any] | None = None
            if op in ("take", "dynamic_slice", "dynamic_update") and number == 1:
                wanted = np.dtype(np.int32)
            elif op == "where" and number == 0:
                wanted = np.dtype(np.bool_)
            elif number > (op == "where"):
                wanted = first_of(scope.values[found[-1]]).dtype
            name = self.pick(scope, lambda n, w=wanted: w is None or first_of(scope.values[n]).dtype == w)
            if name is None:
                return None
            found.append(name)
        return found

    def move(self, scope: Scope) -> None:
        """What devices do together."""
        for _ in range(4):
            name = self.draw.choice([n for n, m in MOVES.items() if not (m.splits and scope.mapped)])
            row = MOVES[name]
            if not scope.together and name not in ("pcast", "axis_index"):
                continue
            operand = self.pick(scope) if row.arity else None
            if row.arity and operand is None:
                continue
            x = first_of(scope.values[operand]) if operand else np.zeros(())
            params = row.drawn(self.draw, self.world, x, scope.axes[operand] if operand else frozenset())
            if params is None:
                continue
            operands = (operand,) if operand else ()
            made = Statement((self.fresh(),), name, operands, params)
            if self.add(scope, made, [not operand or scope.exact[operand]]):
                return

    # --- functions inside ---

    def body(self, scope: Scope, at_most: int = 3) -> None:
        """Draws the statements of a function."""
        for _ in range(self.draw.integers(1, at_most)):
            self.statement(scope)

    def control(self, scope: Scope) -> None:
        """A call, a loop or a branch."""
        kind = self.draw.choice(["call", "scan", "fori", "loop", "cond"])
        getattr(self, f"_{kind}")(scope)

    def _some(self, scope: Scope, most: int) -> list[str]:
        names = [self.pick(scope) for _ in range(self.draw.integers(1, most))]
        return list(dict.fromkeys(n for n in names if n))

    def _call(self, scope: Scope) -> None:
        operands, inner = self._some(scope, 2), scope.inside()
        parameters = [self.fresh("p") for _ in operands]
        for p, o in zip(parameters, operands, strict=True):
            self.put(inner, p, scope.values[o], scope.axes[o], scope.exact[o])
        self.body(inner)
        results = [n for n in (self.pick(inner) for _ in range(self.draw.integers(1, 2))) if n]
        if not operands or not results:
            return
        body = Body(tuple(parameters), tuple(inner.statements), tuple(results))
        how = self.draw.choice(["jit", "checkpoint"])
        made = Statement(tuple(self.fresh() for _ in results), "call", tuple(operands), {"how": how}, (body,))
        self.add(scope, made, [inner.exact[r] for r in results])

    def _carried(self, scope: Scope, inner: Scope) -> tuple[list[str], list[str]]:
        """Operands and parameters of a carry, known inside as they start."""
        operands = self._some(scope, 2)
        parameters = [self.fresh("p") for _ in operands]
        for p, o in zip(parameters, operands, strict=True):
            self.put(inner, p, scope.values[o], scope.axes[o], scope.exact[o])
        return operands, parameters

    def _ends(self, inner: Scope, parameters: Sequence[str]) -> list[str]:
        """What a step hands on: of the carry's types, the newest the simplest."""
        ends: list[str] = []
        for p in parameters:
            x = first_of(inner.values[p])

            def fits(n: str, p: str = p, x: Array = x) -> bool:
                y = first_of(inner.values[n])
                return (y.shape, y.dtype) == (x.shape, x.dtype) and inner.exact[n] >= inner.exact[p]

            ends.append(self.pick(inner, fits) or p)
        return ends

    def _scan(self, scope: Scope) -> None:
        inner = scope.inside()
        operands, carry = self._carried(scope, inner)
        xs = [n for n in scope.names if 0 < (*first_of(scope.values[n]).shape, 0)[0] <= LONGEST]
        over = [self.draw.choice(xs)] if xs and self.draw.boolean() else []
        reverse = self.draw.boolean()
        length = len(first_of(scope.values[over[0]])) if over else self.draw.integers(1, 3)
        parameters = [self.fresh("p") for _ in over]
        for p, o in zip(parameters, over, strict=True):
            row = {c: x[-1 if reverse else 0] for c, x in scope.values[o].items()}
            self.put(inner, p, {c: np.asarray(x) for c, x in row.items()}, scope.axes[o], scope.exact[o])
        self.body(inner)
        ends = self._ends(inner, carry)
        ys = [n for n in (self.pick(inner) for _ in range(self.draw.integers(0, 1))) if n]
        if not operands:
            return
        body = Body((*carry, *parameters), tuple(inner.statements), (*ends, *ys))
        said = {"carries": len(carry), "length": length, "reverse": reverse}
        results = tuple(self.fresh() for _ in body.results)
        exact = [inner.exact[p] for p in carry] + [inner.exact[y] for y in ys]
        self.add(scope, Statement(results, "scan", (*operands, *over), said, (body,)), exact)

    def _counted(self, scope: Scope, op: str, said: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
        inner, number = scope.inside(), self.fresh("p")
        self.put(inner, number, self.world.everywhere(np.asarray(0, np.int32)), frozenset(), True)
        operands, carry = self._carried(scope, inner)
        self.body(inner)
        ends = self._ends(inner, carry)
        if not operands:
            return
        body = Body((number, *carry), tuple(inner.statements), tuple(ends))
        results = tuple(self.fresh() for _ in ends)
        self.add(scope, Statement(results, op, (*operands, *more), said, (body,)), [inner.exact[p] for p in carry])

    def _fori(self, scope: Scope) -> None:
        self._counted(scope, "fori", {"count": self.draw.integers(0, 3)})

    def _loop(self, scope: Scope) -> None:
        stops = [n for n in scope.names if self._scalar(scope, n, "i") and not scope.axes[n]]
        if stops and self.draw.boolean():
            self._counted(scope, "loop", {}, (self.draw.choice(stops),))
        else:
            self._counted(scope, "loop", {"count": self.draw.integers(0, 3)})

    def _scalar(self, scope: Scope, name: str, kinds: str) -> bool:
        x = first_of(scope.values[name])
        return x.ndim == 0 and x.dtype.kind in kinds and x.dtype.name in ("int32", "bool") and scope.exact[name]

    def _cond(self, scope: Scope) -> None:
        two = self.draw.boolean()
        choices = [n for n in scope.names if self._scalar(scope, n, "b" if two else "i")]
        dynamic = bool(choices) and self.draw.integers(0, 2) > 0
        choice = self.draw.choice(choices) if dynamic else None
        index = (self.draw.boolean() if two else self.draw.integers(-1, 3)) if choice is None else None
        together = choice is None or not scope.axes[choice]
        wanted = self.pick(scope)
        if wanted is None:
            return
        x, bodies, exact = first_of(scope.values[wanted]), list[Body](), list[bool]()
        for _ in range(2 if two else self.draw.integers(1, 3)):
            inner = scope.inside(together)
            self.body(inner, 2)

            def fits(n: str, inner: Scope = inner) -> bool:
                y = first_of(inner.values[n])
                return (y.shape, y.dtype) == (x.shape, x.dtype)

            result = self.pick(inner, fits) or wanted
            exact.append(inner.exact[result])
            bodies.append(Body((), tuple(inner.statements), (result,)))
        said: dict[str, Any] = {"two": two} if choice else {"two": two, "index": index}
        operands = (choice,) if choice else ()
        self.add(scope, Statement((self.fresh(),), "cond", operands, said, tuple(bodies)), [all(exact)])

    # --- mapped functions ---

    def region(self, scope: Scope, operands: Sequence[str] = ()) -> bool:
        """A mapped function of full values."""
        given = list(operands) or self._some(scope, 2)
        inner = scope.inside(empty=True, mapped=True)
        parameters, in_rows = [self.fresh("p") for _ in given], list[Rows]()
        for p, o in zip(parameters, given, strict=True):
            x = first_of(scope.values[o])
            rows = list(drawn_rows(self.draw, self.world, x.shape) or ())
            for d in range(len(rows)):
                while x.shape[d] % self.world.size(rows[d]):
                    rows[d] = rows[d][:-1]
            in_rows.append(tuple(rows))
            named = frozenset(a for row in rows for a in row)
            self.put(inner, p, self.world.split(scope.values[o], in_rows[-1]), named, scope.exact[o])
        self.body(inner, 5)
        results, out_rows = list[str](), list[Rows]()
        for name in [n for n in (self.pick(inner) for _ in range(self.draw.integers(1, 2))) if n]:
            rows = drawn_rows(self.draw, self.world, first_of(inner.values[name]).shape, inner.axes[name])
            if rows is not None:
                results.append(name)
                out_rows.append(rows)
        if not given or not results:
            return False
        body = Body(tuple(parameters), tuple(inner.statements), tuple(results))
        said = {"in_rows": tuple(in_rows), "out_rows": tuple(out_rows)}
        made = Statement(tuple(self.fresh() for _ in results), "region", tuple(given), said, (body,))
        return self.add(scope, made, [inner.exact[r] for r in results])
