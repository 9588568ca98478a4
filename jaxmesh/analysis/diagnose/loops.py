"""Writes out the iterations of a loop, or the branches that are taken, of a text, so that operations can be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxmesh.analysis.diagnose.movements import is_collective
from jaxmesh.analysis.diagnose.reference_value import Rounds
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.stage import StageProgram
from jaxmesh.dialects.program import Op, Port, Value
from jaxmesh.frontends.mlir.control_flow import CONTROL_FLOW
from jaxmesh.frontends.mlir.module import BoundaryAttributes
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS

MOST = 4000
"""The most operations of a text whose loops are written out."""
_DEEPEST = 4
"""The most loops and branches within each other that are written out."""


def is_opaque(op: Op) -> bool:
    """Returns True for loops and branches, which are one operation of a text; False if they only choose."""
    return op.name in CONTROL_FLOW and any(f.program.ops for f in op.attributes[FUNCTIONS])


def _is_local(functions: Sequence[Any]) -> bool:
    """Returns True if a device may perform functions that it does not take: they end, and they never exchange data."""
    ops = [op for f in functions for op in f.program.ops]
    inner = [op for op in ops if is_opaque(op)]
    alone = all(op.name != "ttcore.while_loop" and _is_local(op.attributes[FUNCTIONS]) for op in inner)
    return alone and not any(map(is_collective, ops))


def written_out(
    stage: StageProgram, placed: Sequence[Any], rounds: Sequence[Sequence[Rounds]]
) -> tuple[StageProgram, list[int]] | None:
    """Returns a stage with the iterations of each loop, and the branches that are taken; None if it has neither.

    If the tests of loops are known, they are further results; their numbers are returned.

    Args:
      stage: the stage.
      placed: its arguments.
      rounds: by depth within other loops and branches, how often each loop of the program goes round, in order.
    """
    written, tests = stage, list[int]()
    for depth in range(_DEEPEST):
        outer, known = written, list(rounds[depth]) if depth < len(rounds) else []
        number = 0
        for op in outer.text.program.ops:
            size, number = len(written.text.program.ops), number + 1
            if is_opaque(op):
                found = known.pop(0) if op.name != "ttcore.case" and known else Rounds()
                inner = _one(written, placed, number - 1, found)
                if inner is None and depth:
                    # The counts of its loops would be taken for the counts of other loops.
                    return outer, tests[: len(outer.text.program.results) - len(stage.text.program.results)]
                written = inner or written
                tests += found.tests if len(written.text.results) > len(stage.text.results) + len(tests) else []
                number += len(written.text.program.ops) - size
        if written is outer:
            break
    return None if written is stage else (written, tests)


def _one(stage: StageProgram, placed: Sequence[Any], number: int, rounds: Rounds) -> StageProgram | None:
    """Returns a stage with one operation written out; None if it is too long, or its branches cannot stand beside each
    other."""
    op = stage.text.program.ops[number]
    functions: Sequence[Any] = op.attributes[FUNCTIONS]
    read, writer = list(op.used), _Unrolled(stage, number)
    if op.name == "ttcore.case":
        # Loops before the branch go round as often as in the program.
        replay = Replay.of(stage, placed)
        copies = replay.copies(read[0]) if read[0] in replay.variables else {}
        index, *others = {int(x.reshape(())) for x in copies.values()} or {0, 1}
        if others:
            return writer.chosen(functions, read[1:]) if copies and _is_local(functions) else None
        chosen = functions[index if 0 <= index < len(functions) else -1]
        return writer.written([chosen], read[1:], [], 1, range(len(op.results)))
    states, count = int(op.attributes["state_count"]), rounds.count
    if count is None or count * len(functions[0].program.ops) + len(stage.text.program.ops) > MOST:
        return None
    called = functions if rounds.tests else functions[:1]
    return writer.written(called, read[:states], read[states:], count, op.attributes["output_indices"])


class _Unrolled:
    """Writes the operations of a function in place of one operation."""

    def __init__(self, stage: StageProgram, number: int) -> None:
        self.stage, self.number, self.text = stage, number, stage.text
        source = self.text.program
        self.program = replace(source, types=list(source.types), ops=list(source.ops[:number]))
        self.lines, self.names = list(self.text.lines[:number]), list(self.text.names[:number])

    def written(
        self,
        functions: Sequence[Any],
        states: Sequence[Value],
        fixed: Sequence[Value],
        count: int,
        outputs: Sequence[int],
    ) -> StageProgram:
        """Returns the stage with a function performed so many times, each for the results of the time before; the
        results of a second one, before each time and at last, are further results."""
        tests = list[Value]()
        iterations, outer = dict(self.stage.iterations), self.stage.iterations.get(self.number, ())
        for iteration in range(count + len(functions[1:])):
            first = len(self.program.ops)
            tests += [v for f in functions[1:] for v in self._once(f, [*states, *fixed])]
            states = self._once(functions[0], [*states, *fixed]) if iteration < count else states
            own = (*outer, iteration) if count > 1 else outer
            iterations.update((n, own) for n in range(first, len(self.program.ops)) if own)
        results = self.text.program.ops[self.number].results
        names = {r: states[i] for r, i in zip(results, outputs, strict=True)}
        for value in results:
            # Nothing makes it any more.
            self.program.types[value] = replace(self.program.types[value], kind="")
        return self._ended(names, iterations, tests)

    def chosen(self, functions: Sequence[Any], operands: Sequence[Value]) -> StageProgram:
        """Returns the stage with all branches performed, and the operation as the choice between their results."""
        first, source = len(self.program.ops), self.text.program
        made = [self._once(f, operands) for f in functions]
        iterations, outer = dict(self.stage.iterations), self.stage.iterations.get(self.number, ())
        iterations.update((n, outer) for n in range(first, len(self.program.ops) + 1) if outer)
        op, every = source.ops[self.number], [v for values in made for v in values]
        types, ports = [self.program.types[v] for v in every], [Port(n, False) for n in range(len(every))]
        size = len(op.results)
        own = [
            replace(
                f,
                program=replace(f.program, types=types, arguments=ports, ops=[], results=ports[k * size :][:size]),
                lines=(),
                names=(),
            )
            for k, f in enumerate(functions)
        ]
        attributes = {**op.attributes, FUNCTIONS: tuple(own)}
        self.program.ops.append(replace(op, operands=(op.used[0], *every), attributes=attributes))
        self.lines.append(self.text.lines[self.number])
        self.names.append(self.text.names[self.number])
        return self._ended({}, iterations, [])

    def _ended(
        self, names: Mapping[Value, Value], iterations: dict[int, tuple[int, ...]], tests: Sequence[Value]
    ) -> StageProgram:
        """Returns the stage with the operations after a written-out one, whose results have other names."""
        rest = slice(self.number + 1, None)
        after = [replace(o, operands=_renamed(o.operands, names)) for o in self.text.program.ops[rest]]
        shift = len(self.program.ops) - self.number - 1
        iterations.update((n + shift, k) for n, k in self.stage.iterations.items() if n > self.number)
        self.program.ops += after
        self.program.results = [replace(p, value=names.get(p.value, p.value)) for p in self.program.results]
        self.program.results += [Port(v, False) for v in tests]
        lines, labels = [*self.lines, *self.text.lines[rest]], [*self.names, *self.text.names[rest]]
        results = (*self.text.results, *(BoundaryAttributes(None, None),) * len(tests))
        text = replace(self.text, program=self.program, lines=lines, names=labels, results=results)
        return replace(self.stage, text=text, iterations=iterations)

    def _once(self, function: Any, operands: Sequence[Value]) -> list[Value]:
        own = function.program
        names: dict[Value, Value] = {p.value: v for p, v in zip(own.arguments, operands, strict=True)}
        for op, line, label in zip(own.ops, function.lines, function.names, strict=True):
            names.update((r, self.program.new(own.types[r])) for r in op.results)
            made = replace(op, operands=_renamed(op.operands, names), results=tuple(names[r] for r in op.results))
            self.program.ops.append(made)
            self.lines.append(line)
            self.names.append(label)
        return [names[p.value] for p in own.results]


def _renamed(operands: Sequence[Value | None], names: Mapping[Value, Value]) -> tuple[Value | None, ...]:
    return tuple(None if v is None else names.get(v, v) for v in operands)
