"""Which values share a buffer after a loop, against a run of the loop over names of buffers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import LOOP, Op, Port, Program, Type
from jaxmesh.passes.hold_arguments import keep_arguments
from jaxmesh.passes.memory import aliases, manage_memory
from tests.generators.oracles import count_of

KIND = Type((64, 32), np.dtype("f4"), tile=True)


def random_body(rng: random.Random, states: int, fixed: int) -> Program:
    """A body of sines and reshapes that are views; it gives back any of its values."""
    body = Program("body", {"x": 1})
    body.arguments = [Port(body.new(KIND), True) for _ in range(states + fixed)]
    for _ in range(rng.randint(0, 3)):
        source, name = rng.randrange(len(body.types)), rng.choice(["ttnn.sin", "ttnn.reshape"])
        body.ops.append(Op(name, (source,), (body.new(KIND),)))
    body.results = [Port(rng.randrange(len(body.types)), True) for _ in range(states)]
    return body


def run(body: Program, buffers: Sequence[object], trips: int) -> list[object]:
    """The buffers of the results after some iterations."""
    states, fixed = list(buffers[: len(body.results)]), buffers[len(body.results) :]
    for _ in range(trips):
        held = dict(enumerate([*states, *fixed]))
        for op in body.ops:
            held[op.results[0]] = held[op.operands[0] or 0] if op.name == "ttnn.reshape" else object()
        states = [held[port.value] for port in body.results]
    return states


def test_buffers_after_a_loop() -> None:
    for seed in range(count_of(2000, 200)):
        check_loop(random.Random(seed))


def check_loop(rng: random.Random) -> None:
    states, fixed, known = rng.randint(1, 4), rng.randint(0, 1), rng.random() < 0.6
    body, trips = random_body(rng, states, fixed), rng.randint(1, 9)
    program = Program("f", {"x": 1})
    operands = tuple(program.new(KIND) for _ in range(states + fixed))
    results = tuple(program.new(KIND) for _ in range(states))
    op = Op(LOOP, operands, results, {"body": body, "trips": trips if known else None})
    first = aliases([op], program.types)
    shared: set[tuple[int, int]] = set()
    for count in (trips,) if known else range(12):
        buffers: list[object] = [object() for _ in operands]
        held = dict(zip((*operands, *results), [*buffers, *run(body, buffers, count)], strict=True))
        shared |= {(a, b) for a in held for b in held if a < b and held[a] is held[b]}
    # Sharing goes from value to value.
    near = {v: {v} for v in (*operands, *results)}
    for a, b in sorted(shared):
        joined = near[a] | near[b]
        near.update(dict.fromkeys(joined, joined))
    found = {(a, b) for a in near for b in near if a < b and first.get(a, a) == first.get(b, b)}
    assert found == {(a, b) for a in near for b in near[a] if a < b}


def test_arguments_that_a_loop_swaps_are_kept_together() -> None:
    body = Program("body", {"x": 1})
    body.arguments = [Port(body.new(KIND), True) for _ in range(2)]
    body.results = body.arguments[::-1]
    program = Program("f", {"x": 1})
    program.arguments = [Port(program.new(KIND), True) for _ in range(2)]
    first, second, result = (program.new(KIND) for _ in range(3))
    program.ops = [
        Op(LOOP, (0, 1), (first, second), {"body": body, "trips": None}),
        Op("ttnn.add", (first, second), (result,)),
    ]
    program.results = [Port(result, True)]
    for donated, freed in (((), 0), ((0,), 0), ((1,), 0), ((0, 1), 1)):
        made = keep_arguments(manage_memory(program), donated)
        assert sum(op.name == "ttnn.deallocate" for op in made.ops) == freed, donated
