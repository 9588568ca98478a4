"""What random programs mean: the oracle, which runs every device in plain loops, and the types of values by axes.

Nothing here uses another part of the package.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np

from tests.generators.programs import shapes as shapes_rules  # noqa: F401
from tests.generators.programs.collectives import MOVES, several
from tests.generators.programs.elementwise import TABLE
from tests.generators.programs.values import Array, Axes, Body, Coordinate, Copies, Misfit, Statement, World, on_each

Values = Mapping[str, Copies]
Types = Mapping[str, Axes]


def one_number(copies: Copies) -> int:
    """A scalar that is the same on every device.

    Raises:
      Misfit: it is not.
    """
    found = {int(x) for x in copies.values()}
    if len(found) != 1:
        raise Misfit("devices part ways")
    return found.pop()


class Oracle:
    """Runs statements: every device, one after the other, in NumPy."""

    def __init__(self, world: World) -> None:
        self.world = world

    def body(self, body: Body, given: Sequence[Copies], around: Values) -> list[Copies]:
        """The results of a function."""
        env: ChainMap[str, Copies] = ChainMap(dict(zip(body.parameters, given, strict=True)), *[dict(around)])
        for s in body.statements:
            env.update(zip(s.results, self.statement(s, env), strict=True))
        return [env[r] for r in body.results]

    def statement(self, s: Statement, env: Values) -> list[Copies]:
        """The results of a statement."""
        operands = [env[o] for o in s.operands]
        if s.op in MOVES:
            given: Copies = operands[0] if operands else {}
            return [MOVES[s.op].meaning(self.world, given, s.params)]
        if s.op in TABLE:
            row = TABLE[s.op]
            if row.results == 1:
                return [on_each(operands, lambda *xs: np.asarray(row.meaning(s.params, *xs)), self.world)]
            rows = on_each(operands, lambda *xs: row.meaning(s.params, *xs), self.world)
            return [{c: row[i] for c, row in rows.items()} for i in range(len(s.results))]
        found: list[Copies] = getattr(self, s.op)(s, operands, env)
        return found

    def call(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """A nested function."""
        return self.body(s.bodies[0], operands, env)

    def scan(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """`lax.scan`."""
        count, length = s.params["carries"], s.params["length"]
        carry, xs = operands[:count], operands[count:]
        rows: dict[int, list[Copies]] = {}
        for i in reversed(range(length)) if s.params["reverse"] else range(length):
            outs = self.body(s.bodies[0], [*carry, *[{c: x[i] for c, x in v.items()} for v in xs]], env)
            carry, rows[i] = outs[:count], outs[count:]
        stacked = [
            {c: np.stack([np.asarray(rows[i][j][c]) for i in range(length)]) for c in self.world.coordinates}
            for j in range(len(rows[0]))
        ]
        return [*carry, *stacked]

    def _repeat(self, s: Statement, carry: list[Copies], env: Values, count: int) -> list[Copies]:
        for i in range(count):
            number = self.world.everywhere(np.asarray(i, np.int32))
            carry = self.body(s.bodies[0], [number, *carry], env)
        return carry

    def fori(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """`lax.fori_loop`."""
        return self._repeat(s, operands, env, s.params["count"])

    def loop(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """`lax.while_loop`."""
        if "count" in s.params:
            return self._repeat(s, operands, env, s.params["count"])
        *carry, stop = operands
        count = one_number(stop)
        if count > 6:
            raise Misfit("a long loop")
        return self._repeat(s, carry, env, max(count, 0))

    def cond(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """`lax.cond` and `lax.switch`."""
        outs = [self.body(b, [], env) for b in s.bodies]
        # Of two, the first is taken for a number other than zero.
        order = [1, 0] if s.params["two"] else list(range(len(outs)))
        chosen = operands[0] if operands else self.world.everywhere(np.asarray(s.params["index"]))
        pick: dict[Coordinate, int] = {c: order[min(max(int(x), 0), len(outs) - 1)] for c, x in chosen.items()}
        return [{c: outs[pick[c]][j][c] for c in self.world.coordinates} for j in range(len(s.results))]

    def region(self, s: Statement, operands: list[Copies], env: Values) -> list[Copies]:
        """`jax.shard_map`."""
        given = [self.world.split(x, r) for x, r in zip(operands, s.params["in_rows"], strict=True)]
        outs = self.body(s.bodies[0], given, {})
        return [self.world.everywhere(self.world.join(x, r)) for x, r in zip(outs, s.params["out_rows"], strict=True)]


class Typing:
    """The axes over which each value may differ between devices, as JAX types them.

    Raises:
      Misfit: a statement does not fit its operands.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def body(self, body: Body, given: Sequence[Axes], around: Types) -> list[Axes]:
        """The types of a function's results."""
        env = self.inside(body, given, around)
        return [env[r] for r in body.results]

    def inside(self, body: Body, given: Sequence[Axes], around: Types) -> ChainMap[str, Axes]:
        """The types of all that a function names."""
        env: ChainMap[str, Axes] = ChainMap(dict(zip(body.parameters, given, strict=True)), *[dict(around)])
        for s in body.statements:
            env.update(zip(s.results, self.statement(s, env), strict=True))
        return env

    def statement(self, s: Statement, env: Types) -> list[Axes]:
        """The types of a statement's results."""
        given = [env[o] for o in s.operands]
        if s.op in MOVES:
            return [MOVES[s.op].typed(self.world, given[0] if given else frozenset(), s.params)]
        if s.op in TABLE:
            return [frozenset[str]().union(*given)] * len(s.results)
        match s.op:
            case "call":
                return self.body(s.bodies[0], given, env)
            case "cond":
                return self.branches(s, env)
            case "region":
                return self._region(s, given)
            case _:
                carry = self.carry(s, env)
                outs = self.body(s.bodies[0], self.given(s, env, carry), env)
                return [*carry, *outs[len(carry) :]]

    def carries(self, s: Statement) -> int:
        """How many operands of a loop are carried."""
        if s.op == "scan":
            return int(s.params["carries"])
        return len(s.operands) - (s.op == "loop" and "count" not in s.params)

    def given(self, s: Statement, env: Types, carry: Sequence[Axes]) -> list[Axes]:
        """The types of what a loop's body is given."""
        if s.op == "scan":
            return [*carry, *[env[o] for o in s.operands[len(carry) :]]]
        if any(env[o] for o in s.operands[len(carry) :]):
            raise Misfit("how long a loop is depends on the device")
        return [frozenset(), *carry]

    def carry(self, s: Statement, env: Types) -> list[Axes]:
        """The types of what a loop carries: where one step ends with more axes, it begins with them too."""
        carry = [env[o] for o in s.operands[: self.carries(s)]]
        while True:
            outs = self.body(s.bodies[0], self.given(s, env, carry), env)
            more = [a | b for a, b in zip(carry, outs[: len(carry)], strict=True)]
            if more == carry:
                return carry
            carry = more

    def branches(self, s: Statement, env: Types) -> list[Axes]:
        """The types of a branch's results: what any of them, or the choice, differs over."""
        choice = frozenset[str]().union(*[env[o] for o in s.operands])
        if choice and not all(_alone(b) for b in s.bodies):
            raise Misfit("only some devices would take part")
        rows = [self.body(b, [], env) for b in s.bodies]
        return [choice.union(*row) for row in zip(*rows, strict=True)]

    def _region(self, s: Statement, given: list[Axes]) -> list[Axes]:
        if any(given):
            raise Misfit("a mapped function is given shards")
        named = [frozenset(a for row in rows for a in row) for rows in s.params["in_rows"]]
        for axes, rows in zip(self.body(s.bodies[0], named, {}), s.params["out_rows"], strict=True):
            if not axes <= {a for row in rows for a in row}:
                raise Misfit("a result differs over an axis that its spec does not name")
        return [frozenset()] * len(s.results)


def _alone(body: Body) -> bool:
    """Whether a device can run a function without the others."""
    return all(
        (s.op not in MOVES or s.op in ("pcast", "axis_index")) and all(_alone(b) for b in s.bodies)
        for s in body.statements
    )


def stays(world: World, axes: Axes) -> bool:
    """Whether a value of a type is surely on the devices: it differs between them."""
    return bool(several(world, axes))


def first_of(copies: Copies) -> Array:
    """What the first device holds."""
    return next(iter(copies.values()))
