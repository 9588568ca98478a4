"""The cells of the transformation matrix: every operation under every transformation, against the unsharded program.

Programs of one operation are compiled together; where that fails, each is run alone to name the one at fault. A cell
that cannot have a value has a reason, and is shown to raise the error that the reason speaks of.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from jaxmesh.jaxprs import compat
from jaxmesh.stages.jit import jit
from jaxmesh.stages.shard_map import shard_map
from jaxmesh.tensor.mesh_tensor import MeshTensor
from tests.generators.matrix.operation import Fun, Operation, square, triple
from tests.generators.matrix.transformations import WHILES, Part, parts, vjp

_jax: Any = jax


@dataclass(frozen=True)
class Reason:
    """Why a cell has no value, and the error that says so."""

    number: int
    text: str
    error: type[Exception]
    message: str

    def explains(self, error: BaseException) -> bool:
        """Whether it is the error that was expected."""
        return isinstance(error, self.error) and re.search(self.message, str(error)) is not None


NO_DERIVATIVE = Reason(
    1,
    "JAX has no derivative of `pmax` and `pmin`: `NotImplementedError`, as from `jax.shard_map`",
    NotImplementedError,
    "(?i)rule.* for 'pm(ax|in)' not implemented",
)
NO_REVERSE = Reason(
    2,
    "a loop of a dynamic count has no reverse mode in JAX: `ValueError`; its value and its `jvp` are compared",
    ValueError,
    "Reverse-mode differentiation does not work",
)
WRONG_BATCHING = Reason(
    3,
    "JAX's batching of an untiled `psum_scatter` counts dims wrongly where the batch comes after the scattered dim: "
    "`IndexError`, as from `jax.shard_map`",
    IndexError,
    "tuple index out of range",
)
REASONS = (NO_DERIVATIVE, NO_REVERSE, WRONG_BATCHING)

_AFTER = frozenset(
    {
        "vmap 1 to 1", "vmap 2 to 0", "vmap -1 to 2", "vmap -2 to -2", "vmap of vmap", "vmap of grad", "grad of vmap",
    }
)  # fmt: skip
"""Parts that batch behind dim 0."""


def reason_of(operation: Operation, part: Part) -> Reason | None:
    """Why a cell has no value; none where it has one."""
    if part.derivative and not operation.differentiable:
        return NO_DERIVATIVE
    if part.reverse_of_while:
        return NO_REVERSE
    if operation.name == "psum_scatter, untiled" and part.name in _AFTER:
        return WRONG_BATCHING
    return None


@dataclass(frozen=True)
class Result:
    """What one part of a cell gave: nothing to say, a reason that was shown to hold, or what is wrong."""

    operation: str
    column: str
    part: str
    place: str
    reason: int | None = None
    fault: str | None = None


@dataclass(frozen=True)
class _Job:
    """A function of the argument, and the part of the unsharded program whose result it must have."""

    column: str
    name: str
    run: Fun
    wanted: str


Compile = Callable[[Fun], Fun]

COLUMNS = (
    "jit", "ahead of time", "make_jaxpr", "export", "nested jit", "nested shard_map", "grad", "jvp", "vjp", "linearize",
    "linear_transpose", "hessian", "jacobian", "vmap", "vmap of vmap", "vmap of grad", "remat", "custom_jvp",
    "custom_vjp", "scan", "while_loop", "fori_loop", "cond", "switch",
)  # fmt: skip
"""The transformations, in the order of the table."""

LONG = frozenset(
    {"value_and_grad", "jacfwd", "hessian-vector product", "vmap 2 to 0", "vmap -2 to -2", "vmap -3 to -3"}
)  # fmt: skip
"""What the short form leaves out beside all policies of remat but two: its column has another of the kind."""
SHORT_POLICIES = frozenset({"no policy", "save_only_these_names"})
SHORT_OUTSIDE = frozenset({"jit", "vjp", "vmap 1 to 1", "vmap of grad", "make_jaxpr and eval_jaxpr"})
"""Of what is outside of a program JAX transforms what runs, not the operations: the short form takes one of a kind."""
SHORT_PIECES = frozenset({"remat, no policy", "scan", "cond"})


class Matrix:
    """The cells of some operations, with one unsharded program for all that mean the same."""

    def __init__(self, *, short: bool, dtype: Any = np.float32, extra: Sequence[Part] = ()) -> None:
        self._short = short
        self._dtype = dtype
        # Only floating-point numbers have derivatives, here and in JAX.
        smooth = np.issubdtype(dtype, np.floating)
        self._parts = [p for p in (*parts(), *extra) if smooth or not (p.derivative or p.reverse_of_while)]
        self._smooth = smooth
        self._known: dict[tuple[Fun, tuple[int, ...]], dict[str, Any]] = {}

    def results(self, operation: Operation) -> Iterator[Result]:
        """Every part of every cell of a row."""
        x = operation.argument(self._dtype)
        wanted = self._wanted(operation, x)
        mesh: Any = operation.mesh
        for place, compile_, jobs in self._groups(operation):
            yield from _compared(operation, place, compile_, jobs, x, wanted)
        yield from self._refusals(operation, x)
        yield from _compared(operation, "alone", lambda f: f, self._alone(operation, mesh), x, wanted)

    def _chosen(self, place: str, operation: Operation) -> list[Part]:
        if not self._short:
            return self._parts
        if place == "outside":
            return [p for p in self._parts if p.name in SHORT_OUTSIDE]
        kept = [p for p in self._parts if not _is_long(p)]
        if not self._derived(operation):
            return kept
        # A derivative gives the value too.
        names = {p.name for p in kept if not p.reverse_of_while}
        told = {p.name for p in kept if f"vjp of {p.name}" in names}
        told |= {f"jvp of {name}" for name in told} | {n for n in WHILES if f"jvp of {n}" in names}
        return [p for p in kept if p.name not in told]

    def _wanted(self, operation: Operation, x: Any) -> dict[str, Any]:
        key = operation.plain, x.shape
        if key not in self._known:
            f, linear = operation.unsharded(square), operation.unsharded(triple)
            ready = [p for p in self._needed(operation) if not p.reverse_of_while]
            jobs = [_Job(p.column, p.name, p.apply(linear if p.linear else f), p.name) for p in ready]
            self._known[key] = jax.device_get(_quick_jit(_together(jobs))(x))
        return self._known[key]

    def _needed(self, operation: Operation) -> list[Part]:
        """The parts whose unsharded results are compared with; values of loops also with those on a shard."""
        chosen = [*self._chosen("inside", operation), *self._chosen("outside", operation)]
        names = {p.name for p in chosen} | {"jit", "vjp"} | {p.name for p in self._parts if p.name in WHILES}
        return [p for p in self._parts if p.name in names and (operation.differentiable or not p.derivative)]

    def _groups(self, operation: Operation) -> Iterator[tuple[str, Compile, list[_Job]]]:
        mesh = operation.mesh

        def lowered(f: Fun) -> Fun:
            program = jit(f, mesh=mesh)
            # What a call alone does is shown by `_alone`.
            return _quick_jit(program) if self._short else program

        f, linear = operation.sharded(square), operation.sharded(triple)
        yield "inside", lowered, [*self._jobs(operation, "inside", f, linear), *self._nested(operation)]
        f, linear = jit(f, mesh=mesh), jit(linear, mesh=mesh)
        yield "outside", _quick_jit, [*self._jobs(operation, "outside", f, linear), *self._mapped(operation)]
        if operation.specs is not None:
            yield "on a shard", lowered, self._pieces(operation)

    def _jobs(self, operation: Operation, place: str, f: Fun, linear: Fun) -> list[_Job]:
        chosen = [p for p in self._chosen(place, operation) if reason_of(operation, p) is None]
        return [_Job(p.column, p.name, p.apply(linear if p.linear else f), p.name) for p in chosen]

    def _both(self, operation: Operation, column: str, name: str, f: Fun) -> list[_Job]:
        """A function's value and derivative."""
        value = _Job(column, name, f, "jit")
        if not self._derived(operation):
            return [value]
        derivative = _Job(column, f"vjp of {name}", vjp(f), "vjp")
        return [derivative] if self._short else [value, derivative]

    def _derived(self, operation: Operation) -> bool:
        return self._smooth and operation.differentiable

    def _nested(self, operation: Operation) -> list[_Job]:
        """Maps in the body of a program, which is one region of all axes already, and maps that are the program."""
        column, f = "nested shard_map", operation.sharded(square)
        anywhere: Any = {"in_specs": P(), "out_specs": P()}
        jobs = self._both(operation, column, "jax.shard_map", compat.shard_map(f, **anywhere))
        jobs += self._both(operation, column, "jaxmesh.shard_map", shard_map(f, **anywhere))
        return jobs

    def _mapped(self, operation: Operation) -> list[_Job]:
        """`shard_map`s of the work on a shard, raised to programs."""
        if operation.specs is None:
            return []
        ins, outs = operation.specs
        said: Any = {"mesh": operation.mesh, "in_specs": ins, "out_specs": outs}
        piece = operation.piece(square)
        raised = jit(compat.shard_map(piece, **said), mesh=operation.mesh)
        jobs = self._both(operation, "nested shard_map", "jaxmesh.shard_map alone", shard_map(piece, **said))
        return jobs + self._both(operation, "nested shard_map", "jaxmesh.jit of jax.shard_map", raised)

    def _pieces(self, operation: Operation) -> list[_Job]:
        jobs: list[_Job] = []
        wraps = [p for p in self._parts if p.shards and (p.name in SHORT_PIECES or not self._short)]
        for part in wraps:
            work = part.apply(operation.piece(square))

            def program(x: Any, work: Fun = work) -> Any:
                return operation.join(work(operation.split(x)))

            derived = self._derived(operation) and part.name not in WHILES
            if not (derived and self._short):
                jobs.append(_Job(part.column, part.name, program, part.name))
            if derived:
                jobs.append(_Job(part.column, f"vjp of {part.name}", vjp(program), f"vjp of {part.name}"))
        return jobs

    def _alone(self, operation: Operation, mesh: Any) -> list[_Job]:
        """What is a program of its own: calls, stages, exports."""
        f = jit(operation.sharded(square), mesh=mesh)
        # A check of copies calls back, which JAX cannot write into an export.
        unchecked = jit(operation.sharded(square), mesh=mesh, check_replication=False)
        jobs = [
            _Job("jit", "a call", f, "jit"),
            _Job("ahead of time", "jaxmesh's stages", lambda x: f.trace(x).lower().compile()(x), "jit"),
        ]
        if not self._short:
            stages = _Job("ahead of time", "JAX's stages", lambda x: _jax.jit(f).trace(x).lower().compile()(x), "jit")
            jobs.append(stages)
        if not (self._short and self._derived(operation)):
            read = _Job("export", "export", lambda x: _reimported(unchecked, x, mesh, 0).call(_copies(x, mesh)), "jit")
            jobs.append(read)
        if self._derived(operation):
            jobs.append(_Job("export", "vjp of an export", lambda x: _exported_vjp(unchecked, x, mesh), "vjp"))
        return jobs

    def _refusals(self, operation: Operation, x: Any) -> Iterator[Result]:
        mesh = operation.mesh
        f, linear = operation.sharded(square), operation.sharded(triple)
        outer, outer_linear = jit(f, mesh=mesh), jit(linear, mesh=mesh)
        for part in self._parts:
            reason = reason_of(operation, part)
            if reason is None:
                continue
            if part in self._chosen("inside", operation):
                inside = jit(part.apply(linear if part.linear else f), mesh=mesh)
                yield _refused(operation, part, "inside", reason, lambda i=inside: i.trace(x))
            if part in self._chosen("outside", operation):
                outside = part.apply(outer_linear if part.linear else outer)
                yield _refused(operation, part, "outside", reason, lambda o=outside: jax.eval_shape(o, x))


@functools.cache
def _quick_options() -> Mapping[str, Any]:
    """Options for XLA that halve the time it takes, which is nearly all that there is; none where it does not know."""
    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        _jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:
        return {}
    return options


def _quick_jit(f: Fun) -> Fun:
    return _jax.jit(f, compiler_options=_quick_options())


def _is_long(part: Part) -> bool:
    return part.name in LONG or (part.column == "remat" and part.name.rpartition(", ")[2] not in SHORT_POLICIES)


def _together(jobs: Sequence[_Job]) -> Fun:
    return lambda x: {job.name: job.run(x) for job in jobs}


def _compared(
    operation: Operation, place: str, compile_: Compile, jobs: Sequence[_Job], x: Any, wanted: Mapping[str, Any]
) -> Iterator[Result]:
    got: Mapping[str, Any] = {}
    # Where one fails all do: each then speaks for itself.
    if place != "alone":
        try:
            got = _jax.block_until_ready(compile_(_together(jobs))(x))
        except Exception:
            got = {}
    for job in jobs:
        try:
            value: Any = got[job.name] if job.name in got else compile_(job.run)(x)
            fault = difference(value, wanted[job.wanted])
        except Exception as error:
            fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield Result(operation.name, job.column, job.name, place, fault=fault)


def _refused(operation: Operation, part: Part, place: str, reason: Reason, call: Callable[[], Any]) -> Result:
    said = operation.name, part.column, part.name, place
    try:
        call()
    except Exception as error:
        if reason.explains(error):
            return Result(*said, reason=reason.number)
        fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Result(*said, fault=f"{fault}, where reason {reason.number} speaks of {reason.error.__name__}")
    return Result(*said, fault=f"no error, where reason {reason.number} speaks of {reason.error.__name__}")


# --- values ----------------------------------------------------------------------------------------------------------


def _whole(x: Any) -> np.ndarray:
    """A result as one array; one that stays on the devices must be the same on all."""
    if not isinstance(x, MeshTensor):
        return np.asarray(x)
    copies = [np.asarray(s) for _, s in x.shards()]
    if any(not np.array_equal(c, copies[0]) for c in copies):
        raise ValueError(f"a result that stays on the devices differs between them: {copies}")
    return copies[0]


def difference(got: Any, wanted: Any) -> str | None:
    """The first place where two trees of arrays differ, with both values; none if they are equal."""
    leaves: list[Any] = jax.tree.leaves(got, is_leaf=lambda v: isinstance(v, MeshTensor))
    targets: list[Any] = jax.tree.leaves(wanted)
    if len(leaves) != len(targets):
        return f"{len(leaves)} results where {len(targets)} are expected"
    for number, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
        a, b = _whole(leaf), np.asarray(target)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"result {number} is {a.dtype}{list(a.shape)} where {b.dtype}{list(b.shape)} is expected"
        if not np.array_equal(a, b):
            at = tuple(map(int, np.argwhere(a != b)[0]))
            return f"result {number} at {list(at)} is {a[at]} where {b[at]} is expected"
    return None


def _copies(x: Any, mesh: Any) -> Any:
    return jax.device_put(x, NamedSharding(mesh, P()))


def _reimported(f: Fun, x: Any, mesh: Any, order: int) -> Any:
    """Exported, written, and read back; an export keeps how many devices it is for, so its argument lies on them.

    JAX writes exports with flatbuffers, which nothing else here needs: without it they are called as they are.
    """
    from jax import export

    exported: Any = export.export(_jax.jit(f))(_copies(x, mesh))
    if importlib.util.find_spec("flatbuffers") is None:
        return exported
    return export.deserialize(exported.serialize(vjp_order=order))


def _exported_vjp(f: Fun, x: Any, mesh: Any) -> Any:
    read = _reimported(f, x, mesh, 1)
    return _jax.jit(vjp(read.call))(_copies(x, mesh))


def faults(results: Iterable[Result]) -> tuple[str, ...]:
    """One line per part that failed."""
    return tuple(f"{r.operation}, {r.part} ({r.place}): {r.fault}" for r in results if r.fault is not None)
