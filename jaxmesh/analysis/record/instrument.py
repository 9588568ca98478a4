"""A lowered program that also gives back every value it makes.

The program is traced again, equation by equation, and every value becomes a result: one on the devices through an
`aggregate_tensor` that joins all copies, one dim per mesh axis. So the planner and the executor see an ordinary
program, and the copies leave a mapped region by its `out_specs`. In a loop inside a mapped region the copies of all
turns are stacked first, and leave with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from jaxmesh.analysis.record.buffer_layout import CondNode, Leaf, Node, Nodes, Saved, ScanNode, WhileNode, shifted
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.recording import is_recorded, key_kind, words
from jaxmesh.analysis.record.source_path import ARGUMENT, INLINED, Place, Walk
from jaxmesh.dialects.residency import DEVICE, Analysis, Residency, of_atom
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p
from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow
from jaxmesh.jaxprs.source_locations import Source
from jaxmesh.jaxprs.typed_trace import trace_typed
from jaxmesh.sharding.configs import MeshComposerConfig

_lax: Any = jax.lax
Places = Sequence[Residency]

FIRST_TURNS = 16
"""For how many turns of a while loop places are kept at first."""


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A program that gives every value it makes, and what its results are."""

    jaxpr: Jaxpr
    nodes: Nodes

    @property
    def nbytes(self) -> int:
        """How many bytes it gives."""
        return sum(a.size * a.dtype.itemsize for a in self.jaxpr.out_avals)


def instrument(
    program: Jaxpr,
    inputs: Sequence[Residency],
    varying: Sequence[Sequence[str]],
    mesh: AbstractMesh,
    wanted: Wanted,
    name: str,
    turns: Mapping[Place, int],
) -> Instrumented:
    """A closed, lowered jaxpr whose results are the values that are wanted, each a full array.

    Args:
      program: the program.
      inputs: where each argument lives.
      varying: per argument the mesh axes it varies over.
      mesh: the mesh of the program.
      wanted: what is recorded.
      name: of the program.
      turns: how many turns a while loop may take; by default `FIRST_TURNS`.
    """
    nodes: list[Nodes] = []

    def run(*args: Any) -> list[Any]:
        tracer = _Tracer(mesh, wanted, turns)
        scope = _Scope(Walk())
        for number, (x, place, aval) in enumerate(zip(args, inputs, program.in_avals, strict=True)):
            tracer.keep(scope, Place(Source(function=name), ARGUMENT, number), 0, x, place, aval)
        tracer.body(scope, program, args, inputs)
        nodes.append(tuple(scope.nodes))
        return scope.values

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals]
    return Instrumented(trace_typed(run, avals, varying, mesh), nodes[-1])


@dataclass(slots=True)
class _Scope:
    """One body while it is traced: what its values are, and the arrays that hold them.

    `mapped` is a body that runs on the devices as a whole; there every array is one per device, with dims of size 1
    for the axes of the mesh. Elsewhere every array is a full one. `dims` counts the dims of turns in front.
    """

    walk: Walk
    mapped: bool = False
    nodes: list[Node] = field(default_factory=list[Node])
    values: list[Any] = field(default_factory=list[Any])
    dims: list[int] = field(default_factory=list[int])

    def hold(self, value: Any, dims: int) -> int:
        """Takes an array; gives its number."""
        self.values.append(value)
        self.dims.append(dims)
        return len(self.values) - 1


class _Tracer:
    def __init__(self, mesh: AbstractMesh, wanted: Wanted, turns: Mapping[Place, int]) -> None:
        self.names, self.sizes = tuple(mesh.axis_names), tuple(mesh.axis_sizes)
        self.wanted, self.turns = wanted, turns
        self.analysis = Analysis()

    # --- one value ---

    def keep(self, scope: _Scope, place: Place, result: int, value: Any, residency: Residency, aval: Any) -> None:
        """Records a value that is wanted."""
        if is_recorded(aval) and self.wanted(place):
            saved = self.save(scope, value, residency is DEVICE)
            scope.nodes.append(Leaf(saved, place, result, key_kind(aval.dtype)))

    def save(self, scope: _Scope, value: Any, on_devices: bool) -> Saved:
        """Makes a value a result of the body."""
        value = words(jnp.asarray(value))
        if not scope.mapped and not on_devices:
            return Saved(scope.hold(value, 0), False)
        copies = self.spread(_lax.reshape(value, (*[1] * len(self.sizes), *value.shape)))
        return Saved(scope.hold(copies if scope.mapped else self.gathered(copies, 0), 0), True)

    def spread(self, value: Any) -> Any:
        """Typed as different on every device: so every copy is read, also of what is the same by its type."""
        known = compat.varying_axes(jax.typeof(value))
        missing = [a for a in self.names if a not in known]
        return compat.vary(value, missing) if missing else value

    def gathered(self, value: Any, start: int) -> Any:
        """All copies in one full array; from dim `start` on it has one dim per mesh axis."""
        config = MeshComposerConfig(list(range(start, start + len(self.sizes))), self.sizes)
        return aggregate_tensor_p.bind(value, composer_config=config)

    def room(self, inner: _Scope, struct: Any, *lead: int) -> Any:
        """Zeros for an array of a body, with dims in front."""
        zeros = jnp.zeros((*lead, *struct.shape), struct.dtype)
        return self.spread(zeros) if inner.mapped else zeros

    def adopt(self, scope: _Scope, inner: _Scope, values: Sequence[Any], turns: int) -> Nodes:
        """Makes the arrays of a body, with so many more dims of turns, arrays of the body around it."""
        start = len(scope.values)
        for value, dims in zip(values, inner.dims, strict=True):
            leaves = inner.mapped and not scope.mapped
            scope.hold(self.gathered(value, dims + turns) if leaves else value, dims + turns)
        return tuple(shifted(n, start) for n in inner.nodes)

    # --- bodies ---

    def body(self, scope: _Scope, jaxpr: Jaxpr, args: Sequence[Any], places: Places) -> list[Any]:
        """Traces a body, whose values become those of the scope."""
        where = self.analysis.environment(jaxpr, tuple(places))

        def trace(eqn: Eqn, operands: list[Any]) -> list[Any]:
            kinds = [of_atom(a, where) for a in eqn.invars]
            with evaluate.at_source_of(eqn):
                return self.equation(scope, eqn, operands, kinds, [where[v] for v in eqn.outvars])

        return evaluate.interpret(jaxpr, args, trace)

    def equation(self, scope: _Scope, eqn: Eqn, operands: list[Any], kinds: Places, outs: Places) -> list[Any]:
        flow = control_flow(eqn)
        if isinstance(flow, Call) and eqn.primitive.name in INLINED:
            with scope.walk.call(eqn):
                return self.body(scope, flow.body, operands, kinds)
        place = scope.walk.place(eqn)
        loop = _Loop(place, eqn, operands, kinds, outs)
        match flow:
            case Scan():
                results = self.scan(scope, loop, flow)
            case While():
                results = self.while_loop(scope, loop, flow)
            case Cond():
                results = self.cond(scope, loop, flow)
            case Call() | None:
                results = evaluate.bind(eqn, operands)
        scope.walk.made(place)
        for number, (value, var, kind) in enumerate(zip(results, eqn.outvars, outs, strict=True)):
            self.keep(scope, place, number, value, kind, var.aval)
        return results

    def inner(self, scope: _Scope, loop: _Loop, part: str, index: int = 0) -> _Scope:
        """The scope of a body of a loop. One that holds tensors on the devices runs there as a whole."""
        mapped = scope.mapped or DEVICE in (*loop.kinds, *loop.outs)
        return _Scope(scope.walk.inside(loop.place, part, index), mapped)

    # --- loops and branches ---

    def scan(self, scope: _Scope, loop: _Loop, flow: Scan) -> list[Any]:
        fixed, carry, xs = flow.split(loop.operands)
        fixed_kinds, _, xs_kinds = flow.split(loop.kinds)
        places = [*fixed_kinds, *flow.split_results(loop.outs)[0], *xs_kinds]
        scopes: list[_Scope] = []

        def step(carried: list[Any], sliced: list[Any]) -> tuple[list[Any], Any]:
            inner = self.inner(scope, loop, "body")
            results, rows = flow.split_results(self.body(inner, flow.body, [*fixed, *carried, *sliced], places))
            # JAX may trace a body twice; the last time is the one that counts.
            scopes.append(inner)
            return results, (rows, inner.values)

        length, reverse = flow.length, flow.reverse
        last, (ys, stacked) = _lax.scan(step, list(carry), list(xs), length=length, reverse=reverse)
        body = self.adopt(scope, scopes[-1], stacked, 1)
        indices = tuple(range(length))
        scope.nodes.append(ScanNode(loop.place, indices[::-1] if reverse else indices, body))
        return [*last, *ys]

    def while_loop(self, scope: _Scope, loop: _Loop, flow: While) -> list[Any]:
        limit = self.turns.get(loop.place, FIRST_TURNS)
        tests, fixed, carry = flow.split(loop.operands)
        test_kinds, fixed_kinds, _ = flow.split(loop.kinds)

        def ask(carried: Sequence[Any]) -> tuple[Any, _Scope]:
            inner = self.inner(scope, loop, "cond")
            (more,) = self.body(inner, flow.cond, [*tests, *carried], [*test_kinds, *loop.outs])
            return more, inner

        def turn(carried: Sequence[Any]) -> tuple[list[Any], _Scope]:
            inner = self.inner(scope, loop, "body")
            return self.body(inner, flow.body, [*fixed, *carried], [*fixed_kinds, *loop.outs]), inner

        def go_on(state: Any) -> Any:
            count, _, carried, asked, made = state
            carried, inner = turn(carried)
            more, condition = ask(carried)
            made = _put(made, inner.values, count)
            return count + 1, more, carried, _put(asked, condition.values, count + 1), made

        # The condition is asked once before the first turn and then at the end of each, where its values can be kept.
        more, condition = ask(carry)
        body, structs = _shapes(lambda: turn(carry))
        count: Any = jnp.int32(0)
        count = self.spread(count) if body.mapped else count
        asked = [self.room(condition, x, limit + 1) for x in condition.values]
        made = [self.room(body, x, limit) for x in structs]
        state = count, more, list(carry), _put(asked, condition.values, count), made
        count, _, last, asked, made = _lax.while_loop(_goes_on, go_on, state)
        nodes = self.adopt(scope, condition, asked, 1), self.adopt(scope, body, made, 1)
        scope.nodes.append(WhileNode(loop.place, self.save(scope, count, body.mapped), limit, *nodes))
        return list(last)

    def cond(self, scope: _Scope, loop: _Loop, flow: Cond) -> list[Any]:
        index, rest = flow.split(loop.operands)

        def run(number: int) -> tuple[list[Any], _Scope]:
            inner = self.inner(scope, loop, "branch", number)
            return self.body(inner, flow.branches[number], rest, loop.kinds[1:]), inner

        count = len(flow.branches)
        shapes = [_shapes(lambda n=n: run(n)) for n in range(count)]

        def branch(number: int) -> tuple[list[Any], list[list[Any]]]:
            results, inner = run(number)
            empty = [[self.room(s, x) for x in structs] for s, structs in shapes]
            return results, [inner.values if n == number else row for n, row in enumerate(empty)]

        index = _lax.convert_element_type(index, jnp.int32)
        results, rows = _lax.switch(index, [lambda n=n: branch(n) for n in range(count)])
        nodes = tuple(self.adopt(scope, s, row, 0) for (s, _), row in zip(shapes, rows, strict=True))
        scope.nodes.append(CondNode(loop.place, self.save(scope, index, shapes[0][0].mapped), nodes))
        return list(results)


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop or a branch: the equation, its operands, and where operands and results live."""

    place: Place
    eqn: Eqn
    operands: list[Any]
    kinds: Places
    outs: Places


def _goes_on(state: Any) -> Any:
    return state[1]


def _put(rooms: Sequence[Any], values: Sequence[Any], turn: Any) -> list[Any]:
    """Writes the values of one turn; those of a turn too many go where nobody looks, and the program is run again."""
    return [_lax.dynamic_update_index_in_dim(r, v, turn, 0) for r, v in zip(rooms, values, strict=True)]


def _shapes(run: Callable[[], tuple[list[Any], _Scope]]) -> tuple[_Scope, list[Any]]:
    """The scope of a body, and the types of its arrays."""
    scopes: list[_Scope] = []

    def values() -> list[Any]:
        scopes.append(run()[1])
        return scopes[-1].values

    structs: Any = jax.eval_shape(values)
    return scopes[-1], structs
