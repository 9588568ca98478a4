"""Records a run on the devices: the program, instrumented to return every value it computes, compiled as one program.

The program is traced again, equation by equation, and every value becomes a result. A value on the devices leaves
through an `aggregate_tensor` that joins all copies, one dim per mesh axis. So the planner and the executor see an
ordinary program, and the copies leave a mapped region by its `out_specs`. In a loop inside a mapped region, the copies
of all iterations are stacked first.

Callbacks on the devices would be shorter, but they deadlock: with 1 MB shards, a callback between two collectives waits
for the thread that waits for the collective.

XLA compiles the program together with its recording, so it may fuse and round differently from the plain program. The
buffers of a while loop store a fixed number of iterations. If a loop runs longer, the program is compiled and run again
with larger buffers, including its callbacks. Every copy is read from its device, even if types prove them equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from jaxmesh.analysis.record.buffer_layout import Buffer, CondNode, Node, Reader, ScanNode, ValueNode, WhileNode
from jaxmesh.analysis.record.entry import Array, check_bytes, is_recorded, key_kind
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.source_path import ARGUMENT, INLINED, Place, Walk
from jaxmesh.dialects.residency import DEVICE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p
from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr, words_of
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import SourceLocation
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.jaxprs.walk import same_bits
from jaxmesh.runtime.distributed.collectives import fetch_array
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.sharding.configs import MeshComposerConfig
from jaxmesh.tensor.mesh_tensor import MeshTensor

FlatFunction = Callable[..., list[Any]]
"""A function of a program's flat arguments."""


def record_devices(
    residency: ResidencyMap,
    boundary: Boundary,
    wanted: Wanted,
    compile_and_call: Callable[[FlatFunction], Sequence[Any]],
) -> Recording:
    """Runs a closed, lowered jaxpr on the devices and returns every value that it computes.

    `compile_and_call` compiles a function of the flat arguments, calls it with the run's arguments, and returns its
    results. Raises an error before compilation if the values exceed `wanted.max_bytes`.
    """
    mesh = boundary.mesh
    abstract: Any = getattr(mesh, "abstract_mesh", mesh)
    varying = [a.varying or () for a in boundary.arguments]
    capacities: dict[Place, int] = {}
    while True:
        program, structure = instrument(residency, varying, abstract, wanted, boundary.name, capacities)
        used = sum(a.size * a.dtype.itemsize for a in program.out_avals)
        check_bytes(used, wanted.max_bytes, "all values on all devices")
        plan = plan_regions(ResidencyMap(program, residency.inputs))

        def run(*leaves: object, plan: Plan = plan) -> list[Any]:
            return execute(plan, mesh, [x.data if isinstance(x, MeshTensor) else x for x in leaves])

        with progress("compiling and running"):
            results: list[Any] = list(compile_and_call(run))
            values: list[Array] = []
            while results:
                # Free each value on its devices before the next is copied.
                values.append(_array(results.pop()))
            values.reverse()
        reader = Reader(tuple(boundary.sizes.values()))
        reader.read(jax.tree.unflatten(structure, values))
        if not reader.missing:
            return Recording(tuple(reader.entries), boundary.sizes, "devices", boundary.name, wanted.partial)
        # The next power of two.
        capacities |= {place: 1 << (count - 1).bit_length() for place, count in reader.missing.items()}


def _array(x: Any) -> Array:
    """Copies a result to the host's memory; equal copies of a value share the memory of one."""
    array = fetch_array(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
    if isinstance(array, jax.Array) and not array.is_fully_replicated:
        first, *others = (np.asarray(s.data) for s in array.addressable_shards)
        copies = all(m in (n, 1) for n, m in zip(array.shape, first.shape, strict=True))
        if copies and all(same_bits(first, x) for x in others):
            return np.broadcast_to(first, array.shape)
    return np.asarray(array)


# --- instrumenting ---------------------------------------------------------------------------------------------------

Residencies = Sequence[Residency]

INITIAL_CAPACITY = 16
"""Initial capacity, in iterations, of the buffers of a while loop."""


def instrument(
    residency: ResidencyMap,
    varying: Sequence[Sequence[str]],
    mesh: AbstractMesh,
    wanted: Wanted,
    name: str,
    capacities: Mapping[Place, int],
) -> tuple[Jaxpr, Any]:
    """Traces a closed, lowered jaxpr whose results are the wanted values, each a full array.

    Returns the program and the structure of its results, which is that of a list of nodes.
    `varying` has, for each argument, the mesh axes it varies over; `capacities` has the number of iterations of a
    while loop that its buffers store, by default `INITIAL_CAPACITY`.
    """
    structures: list[object] = []
    program, inputs = residency.program, residency.inputs

    def run(*args: Any) -> list[Any]:
        tracer = _Tracer(mesh, wanted, capacities, residency)
        scope = _TracedBody(Walk())
        for number, (x, each, aval) in enumerate(zip(args, inputs, program.in_avals, strict=True)):
            tracer.record(scope, Place(SourceLocation(function=name), ARGUMENT, number), 0, x, each, aval)
        tracer.body(scope, program, args, inputs)
        structures.append(jax.tree.structure(scope.nodes))
        return jax.tree.leaves(scope.nodes)

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals]
    return trace_typed(run, avals, varying, mesh), structures[-1]


@dataclass(slots=True)
class _TracedBody:
    """One body while it is traced, and its values.

    A `mapped` body runs on the devices as a whole: each of its arrays has one copy per device, with dims of size 1
    for the mesh axes. The arrays of any other body are full arrays.
    """

    walk: Walk
    mapped: bool = False
    nodes: list[Node] = field(default_factory=list[Node])


@dataclass(frozen=True, slots=True)
class _LoopOrBranch:
    """A loop or a conditional: its operands, and the residencies of operands and results."""

    place: Place
    operands: list[Any]
    inputs: Residencies
    outputs: Residencies


class _Tracer:
    def __init__(
        self, mesh: AbstractMesh, wanted: Wanted, capacities: Mapping[Place, int], residency: ResidencyMap
    ) -> None:
        self.names, self.sizes = tuple(mesh.axis_names), tuple(mesh.axis_sizes)
        self.wanted, self.capacities, self.residency = wanted, capacities, residency

    # --- one value ---

    def record(
        self, scope: _TracedBody, place: Place, result: int, value: object, residency: Residency, aval: Aval
    ) -> None:
        """Adds a value to the results of the body if it is wanted."""
        if is_recorded(aval) and self.wanted(place):
            buffer = self.save(scope.mapped, value, residency is DEVICE)
            scope.nodes.append(ValueNode(buffer, place, result, key_kind(aval.dtype)))

    def save(self, mapped: bool, value: Any, on_devices: bool) -> Buffer:
        """Returns a value as a result of a body."""
        value = words_of(jnp.asarray(value))
        if not mapped and not on_devices:
            return Buffer(value, False, value.ndim)
        copies = self.vary(lax.reshape(value, (*[1] * len(self.sizes), *value.shape)))
        return Buffer(copies if mapped else self.gather(copies, 0), True, value.ndim)

    def vary(self, value: Any) -> Any:
        """Marks a value as varying over every axis, so that every copy is read, even if types prove them equal."""
        varying = compat.varying_axes(jax.typeof(value))
        missing = [a for a in self.names if a not in varying]
        return compat.vary(value, missing) if missing else value

    def gather(self, value: Any, start: int) -> Any:
        """Joins all copies into one full array, with one dim per mesh axis, from dim `start` on."""
        config = MeshComposerConfig(list(range(start, start + len(self.sizes))), self.sizes)
        return aggregate_tensor_p.bind(value, composer_config=config)

    def zeros(self, mapped: bool, nodes: object, *lead: int) -> Any:
        """Returns zeros for the arrays of a body, with leading dims `lead`."""

        def of(array: Any) -> Any:
            zeros = jnp.zeros((*lead, *array.shape), array.dtype)
            return self.vary(zeros) if mapped else zeros

        return jax.tree.map(of, nodes)

    def leave(self, scope: _TracedBody, mapped: bool, nodes: object) -> Any:
        """Returns the values of a body as results of the body around it."""

        def join(buffer: Buffer) -> Buffer:
            loops = buffer.array.ndim - buffer.rank - len(self.sizes)
            return replace(buffer, array=self.gather(buffer.array, loops))

        leaves = mapped and not scope.mapped
        return jax.tree.map(join, nodes, is_leaf=lambda x: isinstance(x, Buffer)) if leaves else nodes

    # --- bodies ---

    def body(self, scope: _TracedBody, jaxpr: Jaxpr, args: Sequence[Any], inputs: Residencies) -> list[Any]:
        """Traces a body and adds its values to the scope."""
        known = self.residency.body(jaxpr, inputs)

        def trace(eqn: Eqn, operands: list[Any]) -> list[Any]:
            residencies = [known.of(a) for a in eqn.invars]
            with evaluate.at_source_of(eqn):
                return self.equation(scope, eqn, operands, residencies, [known.of(v) for v in eqn.outvars])

        return evaluate.interpret(jaxpr, args, trace)

    def equation(
        self, scope: _TracedBody, eqn: Eqn, operands: list[Any], inputs: Residencies, outputs: Residencies
    ) -> list[Any]:
        flow = control_flow(eqn)
        if isinstance(flow, Call) and eqn.primitive.name in INLINED:
            with scope.walk.call(eqn):
                return self.body(scope, flow.body, operands, inputs)
        place = scope.walk.place(eqn)
        site = _LoopOrBranch(place, operands, inputs, outputs)
        match flow:
            case Scan():
                results = self.scan(scope, site, flow)
            case While():
                results = self.while_loop(scope, site, flow)
            case Cond():
                results = self.cond(scope, site, flow)
            case _:
                results = evaluate.bind(eqn, operands)
        scope.walk.advance(place)
        for number, (value, var, residency) in enumerate(zip(results, eqn.outvars, outputs, strict=True)):
            self.record(scope, place, number, value, residency, var.aval)
        return results

    def is_mapped(self, scope: _TracedBody, site: _LoopOrBranch) -> bool:
        """Returns True for a loop or a conditional with a tensor on the devices, which runs there as a whole."""
        return scope.mapped or DEVICE in (*site.inputs, *site.outputs)

    def inner(self, scope: _TracedBody, site: _LoopOrBranch, part: str, index: int = 0) -> _TracedBody:
        return _TracedBody(scope.walk.inside(site.place, part, index), self.is_mapped(scope, site))

    # --- loops and branches ---

    def scan(self, scope: _TracedBody, site: _LoopOrBranch, flow: Scan) -> list[Any]:
        consts, carry, xs = flow.split(site.operands)
        const_inputs, _, x_inputs = flow.split(site.inputs)
        # The residency of the carry is its residency after the loop.
        inputs = [*const_inputs, *flow.split_results(site.outputs)[0], *x_inputs]

        def step(carry: Sequence[object], x: list[Any]) -> tuple[list[Any], Any]:
            inner = self.inner(scope, site, "body")
            carry, y = flow.split_results(self.body(inner, flow.body, [*consts, *carry, *x], inputs))
            return carry, (y, inner.nodes)

        last, (ys, nodes) = lax.scan(step, carry, xs, length=flow.length, reverse=flow.reverse)
        order, body = range(flow.length), self.leave(scope, self.is_mapped(scope, site), nodes)
        scope.nodes.append(ScanNode(site.place, order[::-1] if flow.reverse else order, body))
        return [*last, *ys]

    def while_loop(self, scope: _TracedBody, site: _LoopOrBranch, flow: While) -> list[Any]:
        capacity, mapped = self.capacities.get(site.place, INITIAL_CAPACITY), self.is_mapped(scope, site)
        cond_consts, body_consts, carry = flow.split(site.operands)
        cond_inputs, body_inputs, _ = flow.split(site.inputs)

        def test(carry: Sequence[Any]) -> tuple[Any, list[Node]]:
            inner = self.inner(scope, site, "cond")
            (more,) = self.body(inner, flow.cond, [*cond_consts, *carry], [*cond_inputs, *site.outputs])
            return more, inner.nodes

        def iterate(carry: Sequence[object]) -> tuple[list[Any], list[Node]]:
            inner = self.inner(scope, site, "body")
            return self.body(inner, flow.body, [*body_consts, *carry], [*body_inputs, *site.outputs]), inner.nodes

        def step(state: Any) -> Any:
            count, _, carry, tested, computed = state
            carry, values = iterate(carry)
            more, condition = test(carry)
            computed = _write(computed, values, count)
            return count + 1, more, carry, _write(tested, condition, count + 1), computed

        # Test the condition before the first iteration and at the end of each iteration, where it can be recorded.
        more, condition = test(carry)
        count: object = jnp.int32(0)
        count = self.vary(count) if mapped else count
        tested = _write(self.zeros(mapped, condition, capacity + 1), condition, count)
        computed = self.zeros(mapped, typed.eval_shape(lambda: iterate(carry)[1]), capacity)
        state = count, more, carry, tested, computed
        count, _, last, tested, computed = lax.while_loop(_is_running, step, state)
        nodes = self.leave(scope, mapped, tested), self.leave(scope, mapped, computed)
        scope.nodes.append(WhileNode(site.place, self.save(scope.mapped, count, mapped), capacity, *nodes))
        return list(last)

    def cond(self, scope: _TracedBody, site: _LoopOrBranch, flow: Cond) -> list[Any]:
        index, operands = flow.split(site.operands)
        mapped, numbers = self.is_mapped(scope, site), range(len(flow.branches))

        def run(number: int) -> tuple[list[Any], list[Node]]:
            inner = self.inner(scope, site, "branch", number)
            return self.body(inner, flow.branches[number], operands, site.inputs[1:]), inner.nodes

        shapes = [typed.eval_shape(functools.partial(run, n))[1] for n in numbers]

        def branch(number: int) -> tuple[list[Any], list[list[Node]]]:
            results, nodes = run(number)
            return results, [nodes if n == number else self.zeros(mapped, shape) for n, shape in enumerate(shapes)]

        index = lax.convert_element_type(index, jnp.int32)
        results, recorded = lax.switch(index, [functools.partial(branch, n) for n in numbers])
        branches = self.leave(scope, mapped, recorded)
        scope.nodes.append(CondNode(site.place, self.save(scope.mapped, index, mapped), branches))
        return list(results)


def _is_running(state: Any) -> object:
    return state[1]


def _write(buffers: object, values: object, iteration: object) -> Any:
    """Writes the values of one iteration; an iteration beyond the capacity overwrites the last, and the program runs
    again."""

    def write(buffer: Any, value: object) -> Any:
        return lax.dynamic_update_index_in_dim(buffer, value, iteration, 0)

    return jax.tree.map(write, buffers, values)
