"""Random programs as Python source, which is what runs: a failing one is shown as it is."""

from __future__ import annotations

from collections.abc import Sequence

from tests.generators.programs.collectives import MOVES
from tests.generators.programs.elementwise import TABLE
from tests.generators.programs.oracle import Types, Typing
from tests.generators.programs.values import Axes, Body, Statement, World, spec_text

INDENT = "    "


class Writer:
    """Writes statements; loops and branches whose values gain axes are given the `pcast`s that JAX asks for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.typing = Typing(world)

    def block(self, statements: Sequence[Statement], env: dict[str, Axes]) -> list[str]:
        """The lines of statements; `env` gets their types."""
        lines: list[str] = []
        for s in statements:
            lines += self.statement(s, env)
            env.update(zip(s.results, self.typing.statement(s, env), strict=True))
        return lines

    def statement(self, s: Statement, env: Types) -> list[str]:
        """The lines of one statement."""
        left = ", ".join(s.results)
        if s.op in MOVES:
            said = MOVES[s.op].text(s.operands[0] if s.operands else "", s.params, self.world)
            return [f"{left} = {said}"]
        if s.op in TABLE:
            return [f"{left} = {TABLE[s.op].text(s.operands, s.params)}"]
        lines: list[str] = getattr(self, f"_{s.op}")(s, env)
        return lines

    def _function(
        self, name: str, head: str, first: Sequence[str], body: Body, given: Sequence[Axes], env: Types, back: str = ""
    ) -> list[str]:
        """A function; `back` is its return, by default a tuple of all results."""
        inside = {**env, **dict(zip(body.parameters, given, strict=True))}
        lines = [*first, *self.block(body.statements, inside), f"return {back or row(body.results)}"]
        return [f"def {name}({head}):", *[INDENT + line for line in lines]]

    def vary(self, name: str, has: Axes, needs: Axes) -> str:
        """A value, typed as varying over more axes if it must be."""
        more = tuple(a for a in self.world.names if a in needs - has)
        return f'lax.pcast({name}, {more}, to="varying")'.replace("'", '"') if more else name

    def _call(self, s: Statement, env: Types) -> list[str]:
        (body,), name = s.bodies, f"{s.results[0]}_part"
        given = [env[o] for o in s.operands]
        lines = self._function(name, ", ".join(body.parameters), [], body, given, env)
        return [*lines, f"{unpacked(s.results)} = jax.{s.params['how']}({name})({', '.join(s.operands)})"]

    def _loop_parts(self, s: Statement, env: Types) -> tuple[list[Axes], list[Axes], list[str], list[str]]:
        """Types of the carry and of what the body is given; the carry as it goes in and as a step ends."""
        (body,) = s.bodies
        carry = self.typing.carry(s, env)
        given = self.typing.given(s, env, carry)
        outs = self.typing.body(body, given, env)
        start = [self.vary(o, env[o], a) for o, a in zip(s.operands, carry, strict=False)]
        end = [self.vary(r, b, a) for r, a, b in zip(body.results, carry, outs, strict=False)]
        return carry, given, start, end

    def _scan(self, s: Statement, env: Types) -> list[str]:
        (body,), name = s.bodies, f"{s.results[0]}_step"
        carry, given, start, end = self._loop_parts(s, env)
        count = len(carry)
        xs, ys = body.parameters[count:], body.results[count:]
        first = [f"{unpacked(body.parameters[:count])} = carry"] + ([f"{unpacked(xs)} = xs"] if xs else [])
        lines = self._function(name, "carry, xs", first, body, given, env, f"{row(end)}, {row(ys)}")
        left = f"{pattern(s.results[:count])}, {pattern(s.results[count:])}"
        over = row(s.operands[count:]) if xs else "None"
        return [
            *lines,
            f"{left} = lax.scan({name}, {row(start)}, {over}, length={s.params['length']}, "
            f"reverse={s.params['reverse']})",
        ]

    def _fori(self, s: Statement, env: Types) -> list[str]:
        (body,), name = s.bodies, f"{s.results[0]}_step"
        _, given, start, end = self._loop_parts(s, env)
        first = [f"{unpacked(body.parameters[1:])} = carry"]
        lines = self._function(name, f"{body.parameters[0]}, carry", first, body, given, env, row(end))
        return [*lines, f"{unpacked(s.results)} = lax.fori_loop(0, {s.params['count']}, {name}, {row(start)})"]

    def _loop(self, s: Statement, env: Types) -> list[str]:
        (body,), name = s.bodies, f"{s.results[0]}_step"
        carry, given, start, end = self._loop_parts(s, env)
        number = body.parameters[0]
        stop = str(s.params["count"]) if "count" in s.params else s.operands[len(carry)]
        first = [f"{unpacked(body.parameters)} = carry"]
        lines = self._function(name, "carry", first, body, given, env, row([f"{number} + 1", *end]))
        begin = row(["jnp.int32(0)", *start])
        return [
            *lines,
            f"{unpacked([f'{s.results[0]}_count', *s.results])} = "
            f"lax.while_loop(lambda carry: carry[0] < {stop}, {name}, {begin})",
        ]

    def _cond(self, s: Statement, env: Types) -> list[str]:
        wanted, names, lines = self.typing.branches(s, env), list[str](), list[str]()
        for number, body in enumerate(s.bodies):
            names.append(f"{s.results[0]}_case{number}")
            has = self.typing.body(body, [], env)
            back = row([self.vary(r, a, b) for r, a, b in zip(body.results, has, wanted, strict=True)])
            lines += self._function(names[-1], "", [], body, [], env, back)
        choice = s.operands[0] if s.operands else repr(s.params["index"])
        call = f"lax.cond({choice}, {', '.join(names)})" if s.params["two"] else f"lax.switch({choice}, {row(names)})"
        return [*lines, f"{unpacked(s.results)} = {call}"]

    def _region(self, s: Statement, env: Types) -> list[str]:
        (body,), name = s.bodies, f"{s.results[0]}_mapped"
        specs = f"in_specs={row(map_specs(s.params['in_rows']))}, out_specs={row(map_specs(s.params['out_rows']))}"
        given = [frozenset(a for r in rows for a in r) for rows in s.params["in_rows"]]
        lines = self._function(name, ", ".join(body.parameters), [], body, given, {})
        call = f"jax.shard_map({name}, mesh=mesh, {specs})({', '.join(s.operands)})"
        return [*lines, f"{unpacked(s.results)} = {call}"]


def map_specs(rows: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Partition specs as source."""
    return [spec_text(tuple(tuple(r) for r in one)) for one in rows]


def row(names: Sequence[str]) -> str:
    """A tuple as source."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def unpacked(names: Sequence[str]) -> str:
    """The left side of an assignment from a tuple."""
    return ", ".join(names) + ("," if len(names) == 1 else "")


def pattern(names: Sequence[str]) -> str:
    """A tuple inside the left side of an assignment; `_` for an empty one."""
    return row(names) if names else "_"
