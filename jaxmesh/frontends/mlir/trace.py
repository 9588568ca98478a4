"""The steps of a decoded TTIR function, bound one by one inside a typed trace."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.dialects.definitions import DEFINITIONS, has_trait
from jaxmesh.dialects.imported_op import ImportedOp, imported_op, imported_op_p
from jaxmesh.dialects.op import SEGMENTS, OpDef, Trait
from jaxmesh.dialects.perform import as_declared, compute
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, mesh_shard
from jaxmesh.dialects.ttir.windows import FLATTENED
from jaxmesh.errors import ReplicationError, VerifyError
from jaxmesh.frontends.mlir import quantization, ttnn_configs as ttnn
from jaxmesh.frontends.mlir.decode import EMPTY, Body, Program, Step, add_location
from jaxmesh.frontends.mlir.written_ops import FORMER_OPTIONS, definition_in_any_dialect
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.evaluate import bind, interpret, trace_typed
from jaxmesh.sharding.shard_attributes import counts_per_dim

ASSUMED = "jaxmesh.assume_replicated"
"""The caller's promise, which TTIR has no attribute for."""
_SHARD_ATTRIBUTES = ("shard_type", "shard_direction", "shard_shape", "shard_dims")
_lax: Any = jax.lax


@dataclass(frozen=True, slots=True)
class Empty:
    """The result of `ttir.empty`: the destination of an op in the older style, which writes into its last operand."""

    type: jax.ShapeDtypeStruct


@dataclass(slots=True)
class Outcome:
    """A traced program, and what the trace found.

    Attributes:
      jaxpr: the program; None after an error.
      error: what ended the trace.
      unproven: the first use of copies as equal that no type proves; the trace went on as if they were.
      assumptions: every such use, one sentence each.
      shard_shapes: every `shard_shape` that was corrected, one sentence each.
      casts: the results that are cast to the element types that the text declares, one sentence each.
    """

    jaxpr: Any = None
    error: Exception | None = None
    unproven: ReplicationError | None = None
    assumptions: list[str] = field(default_factory=list[str])
    shard_shapes: list[str] = field(default_factory=list[str])
    casts: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a trace: over which mesh, with presharded arguments as shards or as full values, how strictly."""

    mesh: AbstractMesh
    presharded_vary: bool = True
    strict: bool = False
    replicated: frozenset[int] = frozenset()
    """Results made of constants alone that are declared to live on the devices, by number."""


def trace_program(program: Program, settings: Settings) -> Outcome:
    """Traces a decoded function with JAX's varying-axes types.

    A `shard_to_full` of a value that is not proven to be replicated takes coordinate 0, and is listed among the
    assumptions. The outcome holds an error, with the line of the file, if an op breaks a rule.
    """
    mesh = settings.mesh
    outcome = Outcome()
    run = _Run(dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), settings, outcome)
    every = tuple(a for a in mesh.axis_names if mesh.shape[a] > 1)
    declared = program.varying(mesh.axis_names)
    varying = [tuple(a for a in every if a in v) if v and settings.presharded_vary else () for v in declared]

    def flat(*arguments: Any) -> list[Any]:
        results = run.body(program.body, arguments)
        return [full_to_shard(x, PartitionSpec()) if i in settings.replicated else x for i, x in enumerate(results)]

    body = program.body
    try:
        outcome.jaxpr = trace_typed(flat, body.arguments, varying, mesh)
    except Exception as error:
        outcome.error = add_location(body.line, f"@{body.name}", error)
        if outcome.unproven is None and isinstance(outcome.error, ReplicationError):
            outcome.unproven = outcome.error
    return outcome


class OpCache:
    """The meanings of the ops of one trace: each is traced once, and bound again.

    The layers of a model repeat the same ops of the same types. A meaning checks its attributes and converts its
    operands each time, which costs several times as much as binding its equations.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, ImportedOp | None]] = {}

    def __call__(
        self,
        step: Step,
        operands: Sequence[Any],
        meaning: Callable[..., list[Any]],
        describe: Callable[[], ImportedOp | None],
    ) -> list[Any]:
        """Binds one equation for an op, or the equations of its meaning if only its meaning is kept."""
        # A file's equal attributes are one object, which the step keeps alive.
        key = (step.op, id(step.attributes), step.types, *[jax.typeof(x) for x in operands])
        if key not in self._known:
            self._known[key] = jax.make_jaxpr(meaning)(*operands), describe()
        jaxpr, op = self._known[key]
        if op is not None:
            return imported_op_p.bind(*operands, jaxpr=jaxpr, op=op)
        # The tracing context is the one that the equations were made in.
        return interpret(jaxpr, operands, bind)


@dataclass(slots=True)
class _Run:
    """One trace."""

    mesh: dict[str, int]
    settings: Settings
    outcome: Outcome
    cache: OpCache = field(default_factory=OpCache)
    unflattened: dict[int, tuple[Any, tuple[int, ...], dict[str, Any]]] = field(
        default_factory=dict[int, "tuple[Any, tuple[int, ...], dict[str, Any]]"]
    )
    """By the identity of an op's attributes, which are kept alive: sizes of its images, and its other attributes."""

    def body(self, body: Body, arguments: Sequence[Any]) -> list[Any]:
        """Binds the steps of a function."""
        values: list[Any] = [*arguments, *[None] * (body.values - len(arguments))]
        for step in body.steps:
            operands = [values[i] for i in step.operands]
            if step.callee is not None:
                made = self.body(step.callee, [_tensor(x) for x in operands])
            else:
                try:
                    # The line of the text stays with what is made of it, for who tells where that comes from.
                    with jax.named_scope(f"line {step.line}: {step.op}"):
                        made = self._perform(step, operands)
                    if len(made) != len(step.written):
                        raise VerifyError(f"gives {len(made)} results, but {len(step.results)} are declared.")
                except Exception as error:
                    raise add_location(step.line, step.op, error) from None
            for i, value in zip(step.written, made, strict=True):
                values[i] = value
        return [_tensor(values[i]) for i in body.results]

    def _perform(self, step: Step, operands: list[Any]) -> list[Any]:
        if step.op in EMPTY:
            return [Empty(step.types[0])]
        if step.op == "ttir.mesh_shard":
            return [self._mesh_shard(step, operands)]
        dialect, name = step.op.split(".", 1)
        if dialect == "ttnn":
            operands = [x for x in operands if not isinstance(x, ttnn.Device)]
            special = _TTNN.get(step.op)
            if special is not None:
                return special(self, step, [_tensor(x) for x in operands])
        if has_trait(step.op, Trait.BY_ELEMENT_TYPE):
            return [_quantization(step, [_tensor(x) for x in operands])]
        present = definition_in_any_dialect(step.op)
        assert present is not None, step.op
        if FLATTENED in step.attributes.keys() & present.options:
            return self._unflattened(step, operands)
        definition = present.in_form_of(step.attributes, len(step.results))
        ignored = (present.options | FORMER_OPTIONS) - definition.by_name.keys()
        attributes = {k: v for k, v in step.attributes.items() if k not in ignored}
        # Of these they count the mesh device and semaphores, too.
        counted = {a.name for a in SEGMENTS} if Trait.OPAQUE in definition.traits else set[str]()
        known = {k: v for k, v in attributes.items() if k not in counted}
        if name == "constant":
            _check_constant(step)
        if step.handle:
            return [ttnn.Device()] * len(step.results)
        inputs = _inputs(definition, step, operands)
        types = [_type_of(inputs[i]) for i in step.overwritten] or step.types

        changes: list[str] = []

        def meaning(*values: Any) -> list[Any]:
            made = compute(definition, values, known, types, self.mesh)
            changes.extend(_changes(definition, made, types))
            return as_declared(
                definition,
                [x.astype(t.dtype) for x, t in zip(made, types, strict=True)] if changes else made,
                types,
            )

        def describe() -> ImportedOp | None:
            if changes:
                self.outcome.casts.append(f"line {step.line}: {step.op}: {changes[0]}")
            own = definition is present and not changes
            return imported_op(dialect, name, attributes, inputs) if own else None

        return self.cache(step, inputs, meaning, describe)

    def _unflattened(self, step: Step, operands: list[Any]) -> list[Any]:
        """Performs an op on images whose batch, height and width its operand has as one dim, and its result, too.

        So upstream's FlattenSlidingWindow leaves them (tt-mlir, `lib/Dialect/TTIR/Transforms`).
        """
        if id(step.attributes) not in self.unflattened:
            written = str(step.attributes[FLATTENED])
            sizes = tuple(int(n) for n in re.findall(r"(?:batch_size|input_height|input_width) = (\d+)", written))
            rest = {k: v for k, v in step.attributes.items() if k != FLATTENED}
            self.unflattened[id(step.attributes)] = step.attributes, sizes, rest
        _, sizes, attributes = self.unflattened[id(step.attributes)]
        x, (want,) = _tensor(operands[0]), step.types
        if len(sizes) != 3 or x.shape[:-1] != (1, 1, math.prod(sizes)):
            raise VerifyError(f"{FLATTENED} says images of {list(sizes)}, but the operand is {x.dtype}{list(x.shape)}.")
        images = [_lax.reshape(x, (*sizes, x.shape[-1])), *operands[1:]]
        definition = definition_in_any_dialect(step.op)
        assert definition is not None

        def compute_images(*values: Any) -> list[Any]:
            return compute(definition, values, attributes, step.types, self.mesh)

        inside = jax.make_jaxpr(compute_images)(*map(_tensor, images))
        kind = jax.ShapeDtypeStruct(inside.out_avals[0].shape, want.dtype)
        (made,) = self._perform(replace(step, attributes=attributes, types=(kind,)), images)
        if math.prod(made.shape[:-1]) != math.prod(want.shape[:-1]) or made.shape[-1] != want.shape[-1]:
            raise VerifyError(f"the result is {list(made.shape)}, but the declared type is {list(want.shape)}.")
        return [_lax.reshape(made, want.shape)]

    def _mesh_shard(self, step: Step, operands: list[Any]) -> Any:
        attributes = step.attributes
        for name in attributes:
            if name not in _SHARD_ATTRIBUTES and name != "operandSegmentSizes" and "." not in name:
                raise VerifyError(f"has no attribute {name!r}; its attributes are: {', '.join(_SHARD_ATTRIBUTES)}.")
        for name in _SHARD_ATTRIBUTES:
            if name not in attributes:
                raise VerifyError(f"needs the attribute {name!r}; it is missing.")
        operands = operands[:1] if len(operands) == 2 and isinstance(operands[1], Empty) else operands
        if len(operands) != 1 or len(step.types) != 1:
            raise VerifyError(f"takes 1 operand and gives 1 result, got {len(operands)} and {len(step.types)}.")
        x = _tensor(operands[0])
        if attributes["shard_type"] == "identity":
            # The older no-op: between a presharded value's full type, which nothing has, and its local one.
            if x.dtype != step.types[0].dtype or x.ndim != len(step.types[0].shape):
                _check_declared(step, x)
            return x
        written = {name: attributes[name] for name in _SHARD_ATTRIBUTES}
        written["shard_shape"] = self._shard_shape(step, x.ndim)
        try:
            out = mesh_shard(x, **written, assume_replicated=attributes.get(ASSUMED, False) is not False)
        except ReplicationError as error:
            out = mesh_shard(x, **written, assume_replicated=True)
            self._assume(step, x, error)
        return _check_declared(step, out)

    def _assume(self, step: Step, x: Any, error: ReplicationError) -> None:
        if self.outcome.unproven is None:
            self.outcome.unproven = cast("ReplicationError", add_location(step.line, step.op, error))
        axes = [a for a in self.mesh if a in compat.varying_axes(jax.typeof(x))]
        dims = step.attributes["shard_dims"]
        if len(dims) == len(self.mesh):
            axes = [a for a, d in zip(self.mesh, dims, strict=True) if a in axes and d < 0]
        self.outcome.assumptions.append(
            f"line {step.line}: {step.op} takes coordinate 0 of mesh axis {', '.join(map(repr, axes))}: the file does "
            "not say over which axes its presharded arguments differ, so it is not proven that all copies are equal."
        )

    def _shard_shape(self, step: Step, rank: int) -> tuple[int, ...]:
        """The right `shard_shape`; upstream never reads it, so a wrong one alone changes nothing."""
        shard_shape, dims = step.attributes["shard_shape"], step.attributes["shard_dims"]
        if not _integers(shard_shape) or not _integers(dims):
            raise VerifyError(
                f"shard_shape and shard_dims are lists of integers, got {shard_shape!r:.100} and {dims!r:.100}."
            )
        right: tuple[int, ...] = shard_shape
        kind = step.attributes["shard_type"]
        if kind == "replicate" and (len(shard_shape) not in (1, rank) or any(n != 1 for n in shard_shape)):
            right = (1,)
        if kind == "devices" and len(dims) == len(self.mesh) and all(-1 <= d < rank for d in dims):
            right = counts_per_dim(dims, tuple(self.mesh.values()), rank)
        if right != shard_shape:
            text = (
                f"shard_shape {list(shard_shape)} disagrees with shard_dims {list(dims)} on the mesh "
                f"{list(self.mesh.values())}, which make {list(right)}"
            )
            if self.settings.strict:
                raise VerifyError(f"{text}; write shard_shape = {list(right)}.")
            self.outcome.shard_shapes.append(f"line {step.line}: {step.op}: {text}; nothing reads it, going on.")
        return right


def _integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int for v in cast("tuple[Any, ...]", value))


def _tensor(x: Any) -> Any:
    """A value as an array: what an `empty` holds is any number, here 0."""
    return _lax.full(x.type.shape, 0, x.type.dtype) if isinstance(x, Empty) else x


def _inputs(definition: OpDef, step: Step, operands: list[Any]) -> list[Any]:
    """The operands of an op, without the destinations of the older style."""
    least, types = definition.operands[0], list(step.types)
    kept = list(operands)
    while types and len(kept) > least and isinstance(kept[-1], Empty) and kept[-1].type == types[-1]:
        kept.pop()
        types.pop()
    return [_tensor(x) for x in kept]


def _type_of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _changes(definition: OpDef, made: Sequence[Any], types: Sequence[jax.ShapeDtypeStruct]) -> list[str]:
    """Returns one phrase per result whose declared element type is another than the op's own.

    Upstream's verifiers look at no element types, and its kernels write what is declared.
    """
    if definition.casts or len(made) != len(types):
        return []
    return [
        f"the result is {x.dtype}{list(x.shape)}, and the declared type {t.dtype}{list(t.shape)}; it is cast"
        for x, t in zip(made, types, strict=True)
        if x.shape == t.shape and x.dtype != jax.dtypes.canonicalize_dtype(t.dtype)
    ]


def _check_constant(step: Step) -> None:
    held = step.attributes.get("value")
    if not isinstance(held, np.ndarray) or not step.types:
        return
    value, declared = cast("np.ndarray[Any, Any]", held), step.types[0]
    if value.shape not in ((), declared.shape):
        raise VerifyError(f"its value has shape {list(value.shape)}, but the declared type has {list(declared.shape)}.")
    # Floating-point types round, with a warning; an integer type would lose the value.
    if np.issubdtype(declared.dtype, np.integer) and value.dtype != declared.dtype:
        with np.errstate(invalid="ignore"):
            lost = value != value.astype(declared.dtype)
        if np.any(lost):
            raise VerifyError(
                f"its value has elements of {value.dtype}, {value[lost].flat[0]} among them, which the declared "
                f"type, {declared.dtype}, does not hold; declare the result as {value.dtype} and add a ttir.typecast."
            )


def _check_declared(step: Step, out: Any) -> Any:
    (want,) = step.types
    if out.shape != want.shape or out.dtype != want.dtype:
        raise VerifyError(
            f"the result is {out.dtype}{list(out.shape)}, but the declared type is {want.dtype}{list(want.shape)}."
        )
    return out


def _quantization(step: Step, operands: list[Any]) -> Any:
    read, made = step.attributes[quantization.ELEMENTS]
    return quantization.perform(step.op, operands, step.attributes.get("axis"), (read, made), step.types[0])


def _transfer(run: _Run, step: Step, operands: list[Any]) -> list[Any]:
    return [_check_declared(step, ttnn.transfer(step.op, _one(step, operands), step.attributes))]


def _layout(run: _Run, step: Step, operands: list[Any]) -> list[Any]:
    x, dtype = _one(step, operands), step.types[0].dtype
    return [_check_declared(step, x if x.dtype == dtype else x.astype(dtype))]


def _one(step: Step, operands: list[Any]) -> Any:
    if len(operands) != 1 or len(step.types) != 1:
        raise VerifyError(f"takes 1 tensor and gives 1, got {len(operands)} and {len(step.types)}.")
    return operands[0]


_TTNN: dict[str, Callable[[_Run, Step, list[Any]], list[Any]]] = {
    "ttnn.get_device": lambda run, step, operands: [ttnn.device(step.attributes, run.mesh)] * len(step.results),
    "ttnn.distribute_tensor": _transfer,
    "ttnn.aggregate_tensor": _transfer,
    "ttnn.deallocate": lambda run, step, operands: [],
    **{name: _layout for name, d in DEFINITIONS.items() if Trait.LAYOUT in d.traits},
}
