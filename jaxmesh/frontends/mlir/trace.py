"""Traces the flat program of a text: its ops are bound one by one, typed by varying axes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.dialects.definitions import DEFINITIONS, definition_of, has_trait
from jaxmesh.dialects.imported_op import imported_op, imported_op_p
from jaxmesh.dialects.op import SEGMENTS, OpDef, Trait
from jaxmesh.dialects.perform import as_declared, compute
from jaxmesh.dialects.program import Op, Type, Value
from jaxmesh.dialects.ttir.images import FLATTENED
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, full_to_shard, mesh_shard
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import MeshMismatchError, ReplicationError, VerifyError
from jaxmesh.frontends.mlir import quantization
from jaxmesh.frontends.mlir.attributes import Array
from jaxmesh.frontends.mlir.constants import results_to_copy
from jaxmesh.frontends.mlir.control_flow import CONTROL_FLOW
from jaxmesh.frontends.mlir.text import Text, add_location, is_integers, located
from jaxmesh.frontends.mlir.upgrade import EMPTY, FUNCTIONS, Upgrade, definition_named
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Jaxpr, Var
from jaxmesh.jaxprs.emit import Steps, as_tracer, as_variable, current_source, current_trace, named
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.sharding.shard_attributes import counts_per_dim

_SIZES = "operandSegmentSizes"


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

    jaxpr: Jaxpr | None = None
    error: Exception | None = None
    unproven: ReplicationError | None = None
    assumptions: list[str] = field(default_factory=list[str])
    shard_shapes: list[str] = field(default_factory=list[str])
    casts: list[str] = field(default_factory=list[str])


def trace_program(text: Text, mesh: AbstractMesh, *, strict: bool, presharded_vary: bool = True) -> Outcome:
    """Traces a decoded function with JAX's varying-axes types; presharded arguments vary over its mesh, or are equal.

    A `shard_to_full` of a value that is not proven to be replicated takes coordinate 0, and is listed among the
    assumptions. The outcome holds an error, with the line of the file, if an op breaks a rule.
    """
    outcome = Outcome()
    run = _Run(text, dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), strict, outcome)
    every = tuple(a for a in mesh.axis_names if mesh.shape[a] > 1)
    declared = text.varying(mesh.axis_names)
    varying = [tuple(a for a in every if a in v) if v and presharded_vary else () for v in declared]
    copied = results_to_copy(text)

    def flat(*arguments: jax.Array) -> list[jax.Array]:
        results = zip(run.program(arguments), copied, strict=True)
        return [
            full_to_shard(x, PartitionSpec()) if copies and not compat.varying_axes(jax.typeof(x)) else x
            for x, copies in results
        ]

    try:
        outcome.jaxpr = trace_typed(flat, text.avals, varying, mesh)
    except Exception as error:
        outcome.error = add_location(text.function.line, f"@{text.function.name}", error)
        if outcome.unproven is None and isinstance(outcome.error, ReplicationError):
            outcome.unproven = outcome.error
    return outcome


_DEVICE = object()
"""A mesh device or a semaphore: of the program there is one."""


Structs = tuple[jax.ShapeDtypeStruct, ...]
"""The declared types of an op's tensors."""


@dataclass(slots=True)
class _Run:
    """One trace."""

    text: Text | Upgrade
    mesh: dict[str, int]
    strict: bool
    outcome: Outcome
    known: dict[object, tuple[Steps, list[int], bool]] = field(
        default_factory=dict[object, tuple[Steps, list[int], bool]]
    )
    """Each op traced once, with its results' kinds, and whether it is repeated: a model's layers have the same ops."""
    kinds: dict[object, int] = field(default_factory=dict[object, int])
    """A number for each type of a value."""
    keeps_ops: bool = True
    """False of a function that a loop or a branch calls, which has the equations of each op."""
    place: tuple[int, str] = (0, "")
    """The line and the name of the present op."""

    @property
    def at(self) -> str:
        """The place of the present op, for messages."""
        return "line {}: {}".format(*self.place)

    def program(self, arguments: Sequence[jax.Array]) -> list[Any]:
        """Binds the ops of the program."""
        text, types = self.text, self.text.program.types
        # The results of equations are variables: equations are added without tracers.
        values: list[object] = [None] * len(types)
        kinds, declared = [-1] * len(types), [*map(id, types)]
        empty: set[Value] = set()
        trace, source = current_trace(), current_source()

        def write(numbers: Sequence[Value], results: Sequence[Any]) -> None:
            for number, x in zip(numbers, results, strict=True):
                values[number], kinds[number] = (variable := as_variable(x)), self._kind(variable)

        def allocate(numbers: Sequence[Value]) -> None:
            for number in [v for v in numbers if v in empty]:
                # An allocated tensor holds any number, here 0.
                empty.remove(number)
                write([number], [lax.full(types[number].shape, 0, types[number].dtype)])

        write(range(len(arguments)), arguments)
        for op, line, name in zip(text.program.ops, text.lines, text.names, strict=True):
            if op.name in EMPTY:
                empty.update(op.results)
                continue
            used, numbers = op.used, op.results
            if not numbers and op.name == "ttnn.deallocate":
                continue
            if empty:
                allocate(used)
            # Equal attributes of a file are one object, which the program keeps, as it keeps types.
            called = op.name, id(op.attributes), op.operands.count(None)
            key = *called, tuple([declared[v] for v in numbers]), tuple([kinds[v] for v in used])
            known = self.known.get(key)
            if known is None or not known[2]:
                self.place = line, name
                with located(line, name), jax.named_scope(self.at):
                    results = self._perform(op, [as_tracer(trace, values[v]) for v in used], key)
                    if len(results) != len(numbers):
                        raise VerifyError(f"gives {len(results)} results, but {len(numbers)} are declared.")
                write(numbers, results)
                continue
            # Errors, recordings and `explain()` name the line of the text.
            where = named(source, f"line {line}: {name}")
            results = known[0].repeat(trace, [x for v in used if (x := values[v]) is not _DEVICE], where)
            for number, x, kind in zip(numbers, results, known[1], strict=True):
                values[number], kinds[number] = x, kind
        allocate(ports := [port.value for port in text.program.results])
        return [as_tracer(trace, values[v]) for v in ports]

    def _kind(self, x: object) -> int:
        kind = x.aval if isinstance(x, Var) else x if x is _DEVICE else (jax.typeof(x),)
        return self.kinds.setdefault(kind, len(self.kinds))

    def _perform(self, op: Op, operands: list[Any], key: object) -> list[Any]:
        tensors = [x for x in operands if x is not _DEVICE]
        known = [t for v in op.results if (t := self.text.program.types[v]).kind == "tensor"]
        types = tuple([jax.ShapeDtypeStruct(t.shape, t.dtype) for t in known])
        if op.name in CONTROL_FLOW:
            inside = [replace(self, text=f, known={}, keeps_ops=False) for f in op.attributes[FUNCTIONS]]
            return CONTROL_FLOW[op.name](op, [run.program for run in inside], tensors)
        if op.name == "ttnn.get_device":
            return self._get_device(op)
        if has_trait(op.name, Trait.BY_ELEMENT_TYPE):
            axis, elements = op.attributes.get("axis"), op.attributes[quantization.ELEMENTS]
            return [quantization.perform(op.name, tensors, axis, elements, types[0])]
        definition = definition_named(op.name)
        assert definition is not None, op.name
        if FLATTENED in op.attributes and FLATTENED in definition.options:
            return self._unflattened(op, definition, tensors, types)
        if op.results and not types:
            return [_DEVICE] * len(op.results)
        remarks = self.outcome.assumptions, self.outcome.shard_shapes
        noted = [*map(len, remarks)]
        known = self.known.get(key)
        steps = known[0] if known else self._steps(op, definition, op.attributes, tensors, types)
        # Every assumption is listed.
        results = steps.add(current_trace(), tensors, current_source())
        if [*map(len, remarks)] == noted:
            repeats = steps.repeats and all(isinstance(as_variable(x), Var) for x in tensors)
            self.known[key] = steps, [*map(self._kind, map(as_variable, results))], repeats
        return results

    def _steps(
        self, op: Op, definition: OpDef, attributes: Mapping[str, object], inputs: list[jax.Array], types: Structs
    ) -> Steps:
        """Returns an op as one equation, or as the equations of its meaning."""
        special = self._mesh_shard if op.name == "ttir.mesh_shard" else _memory_op if op.name in _MEMORY else None
        if special is None:
            jaxpr = self._meaning(op, definition, self._for_meaning(op, attributes), inputs, types)
        else:
            jaxpr = typed.make_jaxpr(functools.partial(special, op, types))(*inputs)
        steps = Steps.of_jaxpr(jaxpr)
        assert steps is not None, op.name
        return steps

    def _meaning(
        self, op: Op, definition: OpDef, attributes: Mapping[str, object], inputs: list[jax.Array], types: Structs
    ) -> Jaxpr:
        """Returns the jaxpr of an op: one equation, or the equations of its meaning."""
        # The sizes of operand groups of an opaque op count the mesh device and semaphores, too.
        counted = {a.name for a in SEGMENTS} if Trait.OPAQUE in definition.traits else set[str]()
        known = {k: v for k, v in attributes.items() if k not in counted}
        casts: list[str] = []

        def meaning(*values: jax.Array) -> list[jax.Array]:
            results = compute(definition, values, known, types, self.mesh)
            casts.extend(_casts(definition, results, types))
            if casts:
                results = [x.astype(t.dtype) for x, t in zip(results, types, strict=True)]
            return as_declared(definition, results, types)

        jaxpr = typed.make_jaxpr(meaning)(*inputs)
        if casts:
            self.outcome.casts.append(f"{self.at}: {casts[0]}")
        if casts or not self.keeps_ops or definition is not definition_of(op.name):
            return jaxpr
        dialect, _, name = op.name.partition(".")
        imported = imported_op(dialect, name, attributes, inputs)
        if imported is None:
            return jaxpr

        def bind(*values: jax.Array) -> list[jax.Array]:
            return imported_op_p.bind(*values, jaxpr=jaxpr, op=imported)

        return typed.make_jaxpr(bind)(*inputs)

    def _for_meaning(self, op: Op, attributes: Mapping[str, object]) -> Mapping[str, object]:
        """Returns the attributes with the sizes of operand groups, if one is empty, and a splat as one element."""
        if op.name.endswith(".constant") and isinstance(value := attributes.get("value"), np.ndarray):
            elements = cast("Array", value)
            if elements.size and not any(elements.strides):
                return {**attributes, "value": elements.reshape(-1)[:1].reshape(())}
        if None in op.operands and _SIZES not in attributes:
            types = self.text.program.types
            tensors = [v for v in op.operands if v is None or types[v].kind == "tensor"]
            return {**attributes, _SIZES: tuple([int(v is not None) for v in tensors])}
        return attributes

    def _unflattened(self, op: Op, definition: OpDef, operands: list[jax.Array], types: Structs) -> list[jax.Array]:
        """Performs an op on images whose batch, height and width its operand has as one dim, and its result, too.

        So upstream's FlattenSlidingWindow leaves them (tt-mlir, `lib/Dialect/TTIR/Transforms`).
        """
        written = str(op.attributes[FLATTENED])
        sizes = tuple(int(n) for n in re.findall(r"(?:batch_size|input_height|input_width) = (\d+)", written))
        attributes = self._for_meaning(op, {k: v for k, v in op.attributes.items() if k != FLATTENED})
        x, (want,) = operands[0], types
        if len(sizes) != 3 or x.shape[:-1] != (1, 1, math.prod(sizes)):
            raise VerifyError(f"{FLATTENED} says images of {list(sizes)}, but the operand is {x.dtype}{list(x.shape)}.")
        images = [lax.reshape(x, (*sizes, x.shape[-1])), *operands[1:]]

        def compute_images(*values: jax.Array) -> list[jax.Array]:
            return compute(definition, values, attributes, types, self.mesh)

        inside = typed.make_jaxpr(compute_images)(*images)
        local = (jax.ShapeDtypeStruct(inside.out_avals[0].shape, want.dtype),)
        steps = self._steps(op, definition, attributes, images, local)
        (result,) = steps.add(current_trace(), images, current_source())
        if math.prod(result.shape[:-1]) != math.prod(want.shape[:-1]) or result.shape[-1] != want.shape[-1]:
            raise VerifyError(f"the result is {list(result.shape)}, but the declared type is {list(want.shape)}.")
        return [lax.reshape(result, want.shape)]

    def _get_device(self, op: Op) -> list[object]:
        shape, mesh = op.attributes.get("mesh_shape"), tuple(self.mesh.values())
        if isinstance(shape, tuple) and shape != mesh:
            raise MeshMismatchError(
                f"asks for a device of mesh_shape {shape!s}, but the program's mesh is {mesh}; one program has one "
                "mesh."
            )
        return [_DEVICE] * len(op.results)

    def _mesh_shard(self, op: Op, _: object, *operands: jax.Array) -> list[jax.Array]:
        attributes = op.attributes
        if len(operands) != 1 or len(op.results) != 1:
            raise VerifyError(f"takes 1 operand and gives 1 result, got {len(operands)} and {len(op.results)}.")
        x, declared = operands[0], self.text.program.types[op.results[0]]
        if attributes["shard_type"] == "identity":
            # The older no-op: between a presharded value's full type, which nothing has, and its local one.
            is_local = x.dtype == declared.dtype and x.ndim == len(declared.shape)
            return [x if is_local else _check_declared(declared, x)]
        written = {name: attributes[name] for name in MeshShardAttributes._fields}
        written["shard_shape"] = self._shard_shape(op, x.ndim)
        try:
            out = mesh_shard(x, **written, assume_replicated=attributes.get("assume_replicated", False))
        except ReplicationError as error:
            out = mesh_shard(x, **written, assume_replicated=True)
            self._assume(op, x, error)
        return [_check_declared(declared, out)]

    def _assume(self, op: Op, x: jax.Array, error: ReplicationError) -> None:
        if self.outcome.unproven is None:
            self.outcome.unproven = cast("ReplicationError", add_location(*self.place, error))
        axes = [a for a in self.mesh if a in compat.varying_axes(jax.typeof(x))]
        dims = op.attributes["shard_dims"]
        if len(dims) == len(self.mesh):
            axes = [a for a, d in zip(self.mesh, dims, strict=True) if a in axes and d < 0]
        self.outcome.assumptions.append(
            f"{self.at} takes coordinate 0 of mesh axis {', '.join(map(repr, axes))}: the file does "
            "not say over which axes its presharded arguments differ, so it is not proven that all copies are equal."
        )

    def _shard_shape(self, op: Op, rank: int) -> tuple[int, ...]:
        """Returns the right `shard_shape`; upstream never reads it, so a wrong one alone changes nothing."""
        shard_shape, dims = op.attributes["shard_shape"], op.attributes["shard_dims"]
        if not is_integers(shard_shape) or not is_integers(dims):
            raise VerifyError(
                f"shard_shape and shard_dims are lists of integers, got {shard_shape!r:.100} and {dims!r:.100}."
            )
        right = shard_shape
        shard_type = op.attributes["shard_type"]
        if shard_type == "replicate" and (len(shard_shape) not in (1, rank) or any(n != 1 for n in shard_shape)):
            right = (1,)
        if shard_type == "devices" and len(dims) == len(self.mesh) and all(-1 <= d < rank for d in dims):
            right = counts_per_dim(dims, tuple(self.mesh.values()), rank)
        if right != shard_shape:
            text = (
                f"shard_shape {list(shard_shape)} disagrees with shard_dims {list(dims)} on the mesh "
                f"{list(self.mesh.values())}, which make {list(right)}"
            )
            if self.strict:
                raise VerifyError(f"{text}; write shard_shape = {list(right)}.")
            self.outcome.shard_shapes.append(f"{self.at}: {text}; nothing reads it, going on.")
        return right


def _casts(definition: OpDef, results: Sequence[jax.Array], types: Sequence[jax.ShapeDtypeStruct]) -> list[str]:
    """Returns one phrase per result whose declared element type is another than the op's own.

    Upstream's verifiers look at no element types, and its kernels write what is declared.
    """
    if definition.casts or len(results) != len(types):
        return []
    return [
        f"the result is {x.dtype}{list(x.shape)}, and the declared type {t.dtype}{list(t.shape)}; it is cast"
        for x, t in zip(results, types, strict=True)
        if x.shape == t.shape and x.dtype != jax.dtypes.canonicalize_dtype(t.dtype)
    ]


def _check_declared(want: jax.ShapeDtypeStruct | Type, out: jax.Array) -> jax.Array:
    if out.shape != want.shape or out.dtype != want.dtype:
        raise VerifyError(
            f"the result is {out.dtype}{list(out.shape)}, but the declared type is {want.dtype}{list(want.shape)}."
        )
    return out


_TRANSFERS: dict[str, tuple[str, Any]] = {
    "ttnn.distribute_tensor": ("mapper_config", distribute_tensor_p),
    "ttnn.aggregate_tensor": ("composer_config", aggregate_tensor_p),
}
_MEMORY = {"ttnn.deallocate", *_TRANSFERS, *[name for name, d in DEFINITIONS.items() if Trait.LAYOUT in d.traits]}
"""The ops of TTNN about memory, of which only the transfers compute."""


def _memory_op(op: Op, types: Sequence[jax.ShapeDtypeStruct], *operands: jax.Array) -> list[jax.Array]:
    if op.name == "ttnn.deallocate":
        return []
    if len(operands) != 1 or len(types) != 1:
        raise VerifyError(f"takes 1 tensor and gives 1, got {len(operands)} and {len(types)}.")
    (x,), (want,) = operands, types
    if op.name in _TRANSFERS:
        name, primitive = _TRANSFERS[op.name]
        if name not in op.attributes:
            raise VerifyError(f"needs the attribute {name!r}; it is missing.")
        x = primitive.bind(x, **{name: op.attributes[name]})
    elif x.dtype != want.dtype:
        x = x.astype(want.dtype)
    return [_check_declared(want, x)]
