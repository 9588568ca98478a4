"""The reference executor: the oracle of every faster executor.

A value is a host array or a dict from mesh coordinate to that device's array. Transfers use NumPy, in plain loops
over mesh coordinates. Arithmetic evaluates each primitive eagerly, one device after the other; devices whose
operands are the same objects share the results. The executor does not use JAX's shardings.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.residency import DEVICE, Residency
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import evaluate, source_locations, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Literal, off_explicit_axes
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow
from jaxmesh.jaxprs.primitives import RETYPES
from jaxmesh.jaxprs.strip_mesh import strip_eqn
from jaxmesh.jaxprs.tracing_state import set_within
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.runtime.launch import check_process
from jaxmesh.runtime.reference_collectives import COLLECTIVE_RULES, run_collective
from jaxmesh.sharding.distribution import resolve_composer, resolve_mapper

Coordinate = tuple[int, ...]
Value = Any
"""A host array, or a `Shards`."""
_LONG = 1 << 10
"""The iterations of a loop that is never cut."""
_most_rounds: contextvars.ContextVar[Callable[[], int] | None] = contextvars.ContextVar("loops are cut", default=None)
_ARRAYS: Any = (jax.Array, np.ndarray, np.generic)


class Shards(dict[Coordinate, Any]):
    """One array per device, by mesh coordinate."""


Transfer = Callable[[Mapping[Coordinate, Any], Mapping[str, int], Mapping[str, Any]], Any]
"""A function that evaluates a primitive of another dialect on one array per device; returns an array per device, or
one full array."""


class Observer:
    """An observer of a run that does nothing; a subclass records values."""

    def observe(self, eqn: Eqn, results: Sequence[Value], active: Sequence[Coordinate]) -> None:
        """Reports the results of an equation, which are meaningful only on the active devices."""

    def enter_body(self, eqn: Eqn, part: str, index: int) -> contextlib.AbstractContextManager[None]:
        """Returns the context of a body: its part (`body`, `cond`, `branch`) and the iteration or branch number."""
        return contextlib.nullcontext()


def run_reference(
    program: Jaxpr,
    inputs: Sequence[Residency],
    mesh: Mapping[str, int],
    args: Sequence[Any],
    rules: Mapping[str, Transfer] | None = None,
    observer: Observer | None = None,
) -> list[Value]:
    """Runs a closed jaxpr of TTNN-level primitives, and of primitives of another dialect with `rules`.

    Arguments and results are arrays, and dicts from mesh coordinate to array for tensors on the devices; `inputs` has
    the residency of each argument. The observer receives every value.
    """
    check_process()
    everywhere = list(itertools.product(*map(range, mesh.values())))
    values = list(map(_entered, args, inputs))
    outs = _MeshInterpreter(mesh, rules or {}, observer or Observer()).body(program, values, everywhere)
    return [{c: _own(v) for c, v in x.items()} if isinstance(x, Shards) else _own(x) for x in outs]


def cut_loops(most: Callable[[], int] | None) -> contextlib.AbstractContextManager[None]:
    """Ends loops under a condition after more than twice so many iterations: they may go on forever."""
    return set_within(_most_rounds, most)


def run_steps(
    program: Jaxpr,
    inputs: Sequence[Residency],
    mesh: Mapping[str, int],
    args: Sequence[Array],
    rules: Mapping[str, Transfer],
    bind: Callable[[Eqn, Sequence[Any]], list[Any]] = evaluate.bind,
) -> Generator[tuple[object, Value]]:
    """Runs a closed jaxpr as `run_reference` does; yields each variable with its value, in order.

    The arguments come first. `bind` evaluates an equation on one device. A value is freed after its last use, so that a
    large program needs the memory of its live values.
    """
    check_process()
    everywhere = list(itertools.product(*map(range, mesh.values())))
    interpreter = _MeshInterpreter(mesh, rules, Observer(), bind)
    body = walk.open_jaxpr(program)
    env: dict[Any, Value] = dict(walk.constants(program))
    env.update(zip(body.invars, map(_entered, args, inputs), strict=True))
    yield from env.items()
    for eqn, results in interpreter.steps(body, env, everywhere):
        yield from zip(eqn.outvars, results, strict=True)


def run_again(
    eqns: Iterable[Eqn],
    mesh: Mapping[str, int],
    known: Mapping[Any, Value],
    changed: dict[Any, Value],
    rules: Mapping[str, Transfer],
    bind: Callable[[Eqn, Sequence[object]], list[object]],
    is_needed: Callable[[Eqn], bool],
    is_same: Callable[[Value, Value], bool],
) -> None:
    """Runs equations of a jaxpr again with other values of some variables; adds the variables that change.

    `known` has the values of a run of `run_steps`. Only equations that read a changed value are performed, if
    `is_needed`; a result that is `is_same` as before changes nothing.
    """
    everywhere = list(itertools.product(*map(range, mesh.values())))
    interpreter = _MeshInterpreter(mesh, rules, Observer(), bind)
    values = ChainMap(changed, cast("dict[Any, Value]", known))
    for eqn in eqns:
        is_read = any(not isinstance(v, Literal) and v in changed for v in eqn.invars)
        if is_read and is_needed(eqn) and not all(v in changed for v in eqn.outvars):
            results = interpreter.equation(eqn, [_read(values, a) for a in eqn.invars], everywhere)
            for v, result in zip(eqn.outvars, results, strict=True):
                if v not in changed and v in known and not is_same(known[v], result):
                    changed[v] = result


def _entered(argument: Any, residency: Residency) -> Value:
    """Returns an argument as a value: JAX would check the types of an array on Explicit axes in eager arithmetic."""
    return Shards(argument) if residency is DEVICE else off_explicit_axes(argument)


def _own(x: jax.Array) -> Array:
    """Returns a copy of a result, which may share the memory of an argument or of another device."""
    value = np_or_keys(jnp.asarray(x))
    return value.copy() if type(value) is np.ndarray else value


def np_or_keys(x: jax.Array) -> Any:
    """Converts an array to NumPy; random keys, which NumPy does not support, stay JAX arrays."""
    return x if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x)


class _MeshInterpreter:
    def __init__(
        self,
        mesh: Mapping[str, int],
        rules: Mapping[str, Transfer],
        observer: Observer,
        bind: Callable[[Eqn, Sequence[Any]], list[Any]] = evaluate.bind,
    ) -> None:
        self.mesh = mesh
        self.bind = bind
        self.rules = rules
        self.observer = observer
        self.sizes = tuple(mesh.values())
        self.axis = {name: i for i, name in enumerate(mesh)}

    def body(self, jaxpr: Jaxpr, args: Sequence[Value], active: list[Coordinate]) -> list[Value]:
        """Runs one body on the active devices, in lock step."""
        opened = walk.open_jaxpr(jaxpr)
        env: dict[object, Value] = {**walk.constants(jaxpr), **dict(zip(opened.invars, args, strict=True))}
        for eqn, results in self.steps(opened, env, active):
            self.observer.observe(eqn, results, active)
        return [_read(env, a) for a in opened.outvars]

    def steps(self, body: Jaxpr, env: dict[Any, Value], active: list[Coordinate]) -> Generator[tuple[Eqn, list[Value]]]:
        """Runs the equations of an open jaxpr, and yields the results of each; removes values after their last use."""
        last = {v: i for i, eqn in enumerate(body.eqns) for v in eqn.invars if not isinstance(v, Literal)}
        last.update((v, len(body.eqns)) for v in body.outvars if not isinstance(v, Literal))
        for number, eqn in enumerate(body.eqns):
            results = self.equation(eqn, [_read(env, a) for a in eqn.invars], active)
            env.update(zip(eqn.outvars, results, strict=True))
            yield eqn, results
            del results
            for v in (*eqn.invars, *eqn.outvars):
                if not isinstance(v, Literal) and last.get(v, number) == number:
                    env.pop(v, None)

    def within(
        self, eqn: Eqn, part: str, index: int, jaxpr: Jaxpr, args: Sequence[Value], active: list[Coordinate]
    ) -> list[Value]:
        """Runs one body of an equation."""
        with self.observer.enter_body(eqn, part, index):
            return self.body(jaxpr, args, active)

    def equation(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        match control_flow(eqn):
            case Call() as call:
                return self.within(eqn, "body", 0, call.body, operands, active)
            case Scan() as loop:
                return self.scan(eqn, loop, operands, active)
            case While() as loop:
                return self.while_loop(eqn, loop, operands, active)
            case Cond() as choice:
                return self.cond(eqn, choice, operands, active)
            case None:
                return self.primitive(eqn, operands, active)

    def primitive(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        name = eqn.primitive.name
        if name in _RULES:
            return _RULES[name](self, eqn, operands, active)
        if name in self.rules:
            return [self.transfer(eqn, operands[0], active)]
        if name in COLLECTIVE_RULES:
            everywhere = self.to_shards(operands[0], active)
            shards = Shards({c: everywhere[c] for c in active})
            # Integer overflow on devices is silent.
            with np.errstate(all="ignore"):
                return [Shards(run_collective(name, shards, self.axis, self.sizes, eqn.params))]
        plain = strip_eqn(eqn)
        with evaluate.at_source_of(eqn):
            if not any(isinstance(x, Shards) for x in operands):
                return self.bind(plain, operands)
            results: dict[object, list[object]] = {}
            by_device: dict[Coordinate, list[Any]] = {}
            for c in active:
                arguments = [self.at(x, c) for x in operands]
                # A callback runs on each device.
                key = (c, *map(id, arguments)) if eqn.effects else tuple(map(id, arguments))
                if key not in results:
                    results[key] = self.bind(plain, arguments)
                by_device[c] = results[key]
        return [Shards({c: outs[i] for c, outs in by_device.items()}) for i in range(len(eqn.outvars))]

    def at(self, x: Value, coordinate: Coordinate) -> Any:
        return x[coordinate] if isinstance(x, Shards) else x

    def to_shards(self, x: Value, active: list[Coordinate]) -> Shards:
        return x if isinstance(x, Shards) else Shards(dict.fromkeys(active, x))

    def check_all_active(self, eqn: Eqn, active: list[Coordinate]) -> None:
        if len(active) != int(np.prod(self.sizes)):
            raise UnsupportedError(
                f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) is reached by {len(active)} of "
                f"{int(np.prod(self.sizes))} devices only, because a branch or a loop depends on the device; every "
                "device must take part in a transfer."
            )

    def linear_solve(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        """Runs the solver's body; the other bodies are for derivatives."""
        lengths = eqn.params["const_lengths"]
        start = lengths.matvec + lengths.vecmat
        consts, right = operands[start : start + lengths.solve], operands[sum(lengths) :]
        return self.within(eqn, "body", 0, eqn.params["jaxprs"].solve, [*consts, *right], active)

    # --- transfers ---

    def transfer(self, eqn: Eqn, operand: Value, active: list[Coordinate]) -> Value:
        self.check_all_active(eqn, active)
        shards = self.to_shards(operand, active)
        result = self.rules[eqn.primitive.name](shards, self.mesh, eqn.params)
        # A transfer that moves nothing leaves a host tensor on the host.
        if result is shards:
            return operand
        moved: Any = result
        return Shards(moved) if isinstance(result, dict) else result

    def distribute(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        self.check_all_active(eqn, active)
        full = operands[0]
        if isinstance(full, Shards):
            full = next(iter(full.values()))
        resolved = resolve_mapper(eqn.params["mapper_config"], self.sizes, np.shape(full))
        array = np_or_keys(jnp.asarray(full))
        # Devices with equal pieces share them.
        pieces = {str(index): array[index] for _, p in resolved.shard_coordinates() for index in [resolved.index(p)]}
        return [Shards({c: pieces[str(resolved.index(p))] for c, p in resolved.shard_coordinates()})]

    def aggregate(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        self.check_all_active(eqn, active)
        shards = self.to_shards(operands[0], active)
        first = next(iter(shards.values()))
        resolved = resolve_composer(eqn.params["composer_config"], self.sizes, np.shape(first))
        distributed = itertools.product(*map(range, resolved.landing.shape))
        pairs = zip(distributed, resolved.landing.coordinates(), strict=True)
        pieces: dict[Coordinate, object] = {p: np_or_keys(jnp.asarray(shards[c])) for p, c in pairs}
        # Join the last distribution axis first; each step removes one axis.
        for dim in reversed(resolved.dims):
            heads = dict.fromkeys(p[:-1] for p in pieces)
            groups = {h: [x for p, x in pieces.items() if p[:-1] == h] for h in heads}
            pieces = {h: group[0] if dim is None else _concatenate(group, dim) for h, group in groups.items()}
        return [pieces[()]]

    # --- control ---

    def scan(self, eqn: Eqn, loop: Scan, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        consts, carry, xs = loop.split(operands)
        length = loop.length
        outputs: dict[int, list[Value]] = {}
        for i in range(length)[:: -1 if loop.reverse else 1]:
            inputs = [*consts, *carry, *[_slice(x, i) for x in xs]]
            carry, outputs[i] = loop.split_results(self.within(eqn, "body", i, loop.body, inputs, active))
        if not length:
            return [*carry, *[jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars[len(carry) :]]]
        stacked = [_stack([outputs[i][j] for i in range(length)]) for j in range(len(outputs[0]))]
        return [*carry, *stacked]

    def while_loop(self, eqn: Eqn, loop: While, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        test, step, carry = loop.split(operands)
        going, iteration = active, 0
        while True:
            (more,) = self.within(eqn, "cond", iteration, loop.cond, [*test, *carry], going)
            if not isinstance(more, Shards):
                if not bool(more):
                    return carry
            else:
                going = [c for c in going if bool(more[c])]
                if not going:
                    return carry
            new = self.within(eqn, "body", iteration, loop.body, [*step, *carry], going)
            carry = [self.merge(a, b, going, active) for a, b in zip(carry, new, strict=True)]
            iteration += 1
            if iteration >= _LONG and (most := _most_rounds.get()) is not None:
                with cut_loops(None):
                    if iteration > _LONG + 2 * most():
                        return carry

    def cond(self, eqn: Eqn, choice: Cond, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        index, inputs = choice.split(operands)
        if not isinstance(index, Shards):
            number = choice.clamp(index)
            return self.within(eqn, "branch", number, choice.branches[number], inputs, active)
        outs: list[Value] = [Shards() for _ in eqn.outvars]
        for number, branch in enumerate(choice.branches):
            group = [c for c in active if choice.clamp(index[c]) == number]
            if group:
                news = self.within(eqn, "branch", number, branch, inputs, group)
                for out, new in zip(outs, news, strict=True):
                    out.update({c: self.at(new, c) for c in group})
        return outs

    def merge(self, old: Value, new: Value, changed: list[Coordinate], active: list[Coordinate]) -> Value:
        if changed == active:
            return new
        return Shards({c: self.at(new if c in changed else old, c) for c in active})

    def axis_index(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        name = eqn.params["axis_name"]
        return [Shards({c: np.int32(c[self.axis[name]]) for c in active})]

    def keep(self, eqn: Eqn, operands: list[Value], active: list[Coordinate]) -> list[Value]:
        return [self.to_shards(operands[0], active)]


_RULES: Mapping[str, Callable[[_MeshInterpreter, Eqn, list[Value], list[Coordinate]], list[Value]]] = {
    "distribute_tensor": _MeshInterpreter.distribute,
    "aggregate_tensor": _MeshInterpreter.aggregate,
    "axis_index": _MeshInterpreter.axis_index,
    "custom_linear_solve": _MeshInterpreter.linear_solve,
    **dict.fromkeys(RETYPES, _MeshInterpreter.keep),
}


def _read(env: Mapping[object, Value], atom: Atom) -> Value:
    """Returns the value of an operand; a literal of a Python number has the literal's dtype, not NumPy's default."""
    if not isinstance(atom, Literal):
        return env[atom]
    literal: Any = atom
    value = evaluate.literal_value(literal)
    return value if isinstance(value, _ARRAYS) else np.asarray(value, literal.aval.dtype)


def _slice(x: Value, i: int) -> Value:
    return Shards({c: v[i] for c, v in x.items()}) if isinstance(x, Shards) else x[i]


def _stack(values: list[Value]) -> Value:
    # Iterations may differ in residency: a carry may start on the host and continue on the devices.
    sharded = next((r for r in values if isinstance(r, Shards)), None)
    if sharded is None:
        return jnp.stack([jnp.asarray(r) for r in values])
    return Shards({c: jnp.stack([jnp.asarray(r[c] if isinstance(r, Shards) else r) for r in values]) for c in sharded})


def _concatenate(pieces: list[Any], dim: int) -> Any:
    return np.concatenate(pieces, dim) if isinstance(pieces[0], np.ndarray) else jnp.concatenate(pieces, dim)
