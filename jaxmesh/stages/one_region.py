"""A lowered program as one region over all mesh axes: every placement and every collective is explicit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jaxmesh.analysis.repair.substitutes import Substitute, axes_of, sequence_of
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttir.collectives import gather
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.frontends.stablehlo.shardings import Sharding, count, local_shape, split_only
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import inline_calls, map_sub_jaxprs
from jaxmesh.jaxprs.source_locations import source_line
from jaxmesh.jaxprs.untyped import Array, lax
from jaxmesh.jaxprs.xla_faults import clamp_starts
from jaxmesh.sharding.distribution import axes_on_dims, mesh_axis_dims, resolve_composer, resolve_mapper
from jaxmesh.sharding.mesh import with_devices
from jaxmesh.sharding.shard_attributes import spec_axes
from jaxmesh.stages.whole_program import as_function


@dataclass(frozen=True, slots=True)
class SplitValue:
    """A value with a global shape; each device holds a part.

    Attributes:
      local: the part of the device.
      rows: the mesh axes that split each dim.
    """

    local: Any
    rows: Sharding

    def whole(self) -> Any:
        """Gathers the value on every device, one axis at a time, the minor axis of each dim first."""
        x = self.local
        for dim, axes in enumerate(self.rows):
            for axis in reversed(axes):
                x = gather(x, axis, dim, tiled=True)
        return x


def regrouped(rows: Sharding, old: Sequence[int], new: Sequence[int], sizes: Mapping[str, int]) -> Sharding | None:
    """Returns the axes that split each dim of a reshaped value if no data moves; None otherwise.

    >>> regrouped((("x", "y"), ()), (8, 16), (4, 2, 1, 16), {"y": 2, "x": 4})
    (('x',), ('y',), (), ())
    >>> regrouped((("x",), ("y",), (), ()), (4, 2, 1, 16), (8, 16), {"y": 2, "x": 4})
    (('x', 'y'), ())
    """
    made: list[tuple[str, ...]] = []
    before, after = list(zip(old, rows, strict=True)), list(new)
    while after:
        group: list[tuple[int, tuple[str, ...]]] = [before.pop(0)] if before else [(1, ())]
        dims = [after.pop(0)]
        while (left := math.prod(n for n, _ in group)) != (right := math.prod(dims)):
            if left < right and before:
                group.append(before.pop(0))
            elif after:
                dims.append(after.pop(0))
            else:
                return None
        found = _distributed(group, dims, sizes)
        if found is None:
            return None
        made += found
    return tuple(made) if not any(axes for _, axes in before) else None


def _distributed(
    group: Sequence[tuple[int, tuple[str, ...]]], dims: Sequence[int], sizes: Mapping[str, int]
) -> list[tuple[str, ...]] | None:
    axes: list[str] = []
    contiguous = True
    for size, row in group:
        if row and not contiguous:
            return None
        axes += list(row)
        contiguous = contiguous and count(row, sizes) == size
    found: list[tuple[str, ...]] = []
    for size in dims:
        own: list[str] = []
        while axes and size % sizes[axes[0]] == 0 and size > 1:
            size //= sizes[axes[0]]
            own.append(axes.pop(0))
        found.append(tuple(own))
        if size > 1 and axes:
            return None
    return None if axes else found


@dataclass(frozen=True, slots=True)
class OneRegion:
    """A program as one region.

    Attributes:
      boundary: the signature of the program.
      in_rows: the axes that split each argument.
      out_rows: the axes that split each result.
      asked: the numbers of the results in another order of axes than the program has, with the axes there.
      replaced: the source lines with the substitutes that replace operations there.
      whole: the numbers of the arguments that nothing reads; they are not split, although the caller splits them.
      body: the function of the parts of one device.
    """

    boundary: Boundary
    in_rows: tuple[Sharding, ...]
    out_rows: tuple[Sharding, ...]
    asked: Mapping[int, Sharding]
    replaced: Sequence[tuple[str, Substitute]]
    whole: tuple[int, ...]
    body: Callable[..., list[Any]]

    def function(self, out_tree: PyTreeDef) -> Any:
        """Returns the program as a function of JAX, with the shardings of arguments and results."""
        mesh = compat.as_abstract(self.boundary.mesh)
        ends = [[NamedSharding(mesh, s) for s in specs] for specs in self._specs()]
        return as_function(self.mapped(), self.boundary, out_tree, *ends)

    def _specs(self) -> tuple[tuple[PartitionSpec, ...], list[PartitionSpec]]:
        return tuple(PartitionSpec(*r) for r in self.in_rows), [PartitionSpec(*r) for r in self.out_rows]

    def mapped(self) -> Callable[..., list[Any]]:
        """Returns the program as a function of flat arrays."""
        mesh = with_devices(self.boundary.mesh)
        in_specs, out_specs = self._specs()
        return compat.shard_map(self.body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)

    def text(self, out_tree: PyTreeDef) -> str:
        """Returns the StableHLO text of the function."""
        arguments = self.boundary.arguments
        mesh, rows = self.boundary.mesh, zip(arguments, self._specs()[0], strict=True)
        # On Explicit axes the sharding is a part of the type.
        explicit = AxisType.Explicit in mesh.axis_types
        structs = [
            jax.ShapeDtypeStruct(
                a.whole, a.aval.dtype, weak_type=a.aval.weak_type, sharding=NamedSharding(mesh, s) if explicit else None
            )
            for a, s in rows
        ]
        args, kwargs = jax.tree.unflatten(self.boundary.in_tree, structs)
        traced: Any = self.function(out_tree).trace(*args, **kwargs)
        return traced.lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def as_one_region(
    boundary: Boundary, program: Jaxpr, substitutes: Sequence[Substitute] = (), stated: Sequence[Sharding | None] = ()
) -> OneRegion:
    """Returns a lowered program as one region.

    Args:
      boundary: the signature of the program.
      program: the lowered program, without imported operations.
      substitutes: the replacements of operations, each by the primitive.
      stated: the axes that split each argument as the caller has it; by default as the program first distributes it.
    """
    closed = inline_calls(walk.as_closed(program))
    interpreter = _Interpreter(closed, boundary, {p: c for c in substitutes for p in c.primitives})
    known = stated or (None,) * len(boundary.arguments)
    unread = [i for i, is_read in enumerate(_reads(closed)) if not is_read]
    in_rows = tuple(
        ((),) * len(a.whole) if i in unread and a.varying is None else interpreter.rows_of_argument(i, known[i])
        for i, a in enumerate(boundary.arguments)
    )
    whole = tuple(i for i in unread if any(known[i] or ()) and not any(in_rows[i]))
    parts = [local_shape(a.whole, rows, boundary.sizes) for a, rows in zip(boundary.arguments, in_rows, strict=True)]
    structs = [
        jax.ShapeDtypeStruct(p, a.aval.dtype, weak_type=a.aval.weak_type)
        for p, a in zip(parts, boundary.arguments, strict=True)
    ]
    out_rows, asked = list[Sharding](), dict[int, Sharding]()

    def note(*args: object) -> list[Any]:
        outs, rows, wanted = interpreter.run(args, in_rows)
        out_rows[:], asked_now = rows, wanted
        asked.update(asked_now)
        return outs

    varying = [[a for r in rows for a in r] for rows in in_rows]
    evaluate.trace_typed(note, structs, varying, compat.as_abstract(boundary.mesh))

    def local(*args: Any) -> list[Any]:
        return interpreter.run(args, in_rows)[0]

    return OneRegion(boundary, in_rows, tuple(out_rows), asked, tuple(interpreter.replaced), whole, local)


def _reads(program: Jaxpr) -> list[bool]:
    """Returns for each argument whether a result, or an effect, depends on it."""
    body = walk.open_jaxpr(program)
    live = {a for a in body.outvars if isinstance(a, Var)}
    for eqn in reversed(body.eqns):
        if eqn.effects or live.intersection(eqn.outvars):
            live |= {a for a in eqn.invars if isinstance(a, Var)}
    return [v in live for v in body.invars]


class _Interpreter:
    """Runs a lowered program on the parts of one device; a full value stays split until an operation reads it."""

    def __init__(self, program: Jaxpr, boundary: Boundary, substitutes: Mapping[str, Substitute]) -> None:
        self.program, self.boundary, self.substitutes = program, boundary, substitutes
        self.replaced: dict[tuple[str, Substitute], None] = {}
        self.sizes = boundary.sizes
        self.names = tuple(self.sizes)
        self.mesh: AbstractMesh = compat.as_abstract(boundary.mesh)

    def _distributed(self, eqn: Eqn) -> Sharding | None:
        shape = eqn.invars[0].aval.shape
        resolved = resolve_mapper(eqn.params["mapper_config"], tuple(self.sizes.values()), shape)
        dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=False)
        return None if dims is None else axes_on_dims(len(shape), dims, self.names)

    def rows_of_argument(self, number: int, stated: Sharding | None) -> Sharding:
        """Returns the axes that split an argument: as stated, or as the program first distributes it."""
        argument = self.boundary.arguments[number]
        rank = len(argument.whole)
        if argument.sharding is not None:
            return split_only(spec_axes(argument.sharding.spec, rank, self.sizes), self.sizes)
        if (
            stated is not None
            and len(stated) == rank
            and all(n % count(r, self.sizes) == 0 for n, r in zip(argument.whole, stated, strict=True))
        ):
            return split_only(stated, self.sizes)
        body = walk.open_jaxpr(self.program)
        known = {body.invars[number]}
        for eqn in body.eqns:
            if eqn.invars[:1] and not isinstance(eqn.invars[0], compat.Literal) and eqn.invars[0] in known:
                if eqn.primitive.name == "reshape":
                    known.add(eqn.outvars[0])
                if eqn.primitive is distribute_tensor_p:
                    rows = self._distributed(eqn)
                    shape = eqn.invars[0].aval.shape
                    found = None if rows is None else regrouped(rows, shape, argument.whole, self.sizes)
                    return found or ((),) * rank
        return ((),) * rank

    def run(
        self, args: Sequence[Any], in_rows: Sequence[Sharding]
    ) -> tuple[list[Any], list[Sharding], dict[int, Sharding]]:
        """Returns the results, the axes that split them, and the other axes that the program asks for, by number."""
        body = walk.open_jaxpr(self.program)
        env: dict[Any, Any] = dict(zip(body.constvars, map(evaluate.strip_type, self.program.consts), strict=True))
        for var, x, rows, argument in zip(body.invars, args, in_rows, self.boundary.arguments, strict=True):
            on_device = argument.varying is not None
            env[var] = x if on_device or not any(rows) else SplitValue(x, rows)
        for eqn in clamp_starts(body.eqns):
            results = self._perform(eqn, [evaluate.read(env, a) for a in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return self._results([evaluate.read(env, a) for a in body.outvars])

    def _results(self, values: Sequence[Any]) -> tuple[list[Any], list[Sharding], dict[int, Sharding]]:
        kept = self.boundary.kept or (None,) * len(values)
        outs, out_rows, asked = list[Any](), list[Sharding](), dict[int, Sharding]()
        for number, (value, spec) in enumerate(zip(values, kept, strict=True)):
            if spec is not None:
                value = SplitValue(value, split_only(spec_axes(spec, value.ndim, self.sizes), self.sizes))
            if not isinstance(value, SplitValue):
                outs.append(value)
                out_rows.append(((),) * jnp.ndim(value))
                continue
            nearest = tuple(tuple(sorted(r, key=self.names.index)) for r in value.rows)
            if nearest != value.rows:
                asked[number] = value.rows
                value = SplitValue(self._reordered(value, nearest), nearest)
            outs.append(value.local)
            out_rows.append(value.rows)
        return outs, out_rows, asked

    def _reordered(self, value: SplitValue, rows: Sharding) -> jax.Array:
        """Returns the parts with the axes of each dim in another order: every device sends one part and takes one."""
        axes = tuple(a for a in self.names if any(a in r for r in rows))
        sizes = [self.sizes[a] for a in axes]
        numbers = np.arange(math.prod(sizes)).reshape(sizes)

        def holders(order: Sharding) -> Array:
            """Returns the numbers of the devices, in the order of the parts that they hold."""
            return numbers.transpose([axes.index(a) for row in order for a in row]).ravel()

        pairs = zip(holders(value.rows).tolist(), holders(rows).tolist(), strict=True)
        return lax.ppermute(value.local, axes, list(pairs))

    # --- operations --------------------------------------------------------------------------------------------------

    def _perform(self, eqn: Eqn, operands: Sequence[SplitValue | jax.Array]) -> Sequence[Any]:
        first = operands[0] if operands else None
        name = eqn.primitive.name
        if isinstance(first, SplitValue) and name == "reshape":
            shape = eqn.outvars[0].aval.shape
            rows = regrouped(first.rows, eqn.invars[0].aval.shape, shape, self.sizes)
            if rows is not None:
                return [SplitValue(jax.lax.reshape(first.local, local_shape(shape, rows, self.sizes)), rows)]
        if (
            isinstance(first, SplitValue)
            and eqn.primitive is distribute_tensor_p
            and first.rows == self._distributed(eqn)
        ):
            return [first.local]
        if eqn.primitive is aggregate_tensor_p and (split := self._aggregated(eqn, first)) is not None:
            return [split]
        operands = [x.whole() if isinstance(x, SplitValue) else x for x in operands]
        return self._replaced(eqn, operands)

    def _aggregated(self, eqn: Eqn, local: object) -> SplitValue | None:
        """Returns the result of an aggregate if it joins all that differs, along single axes."""
        aval = eqn.invars[0].aval
        resolved = resolve_composer(eqn.params["composer_config"], tuple(self.sizes.values()), aval.shape)
        dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)
        if dims is None:
            return None
        rows = axes_on_dims(len(aval.shape), dims, self.names)
        joined = {a for row in rows for a in row}
        differs = {a for a in compat.varying_axes(jax.typeof(local)) if self.sizes[a] > 1}
        return SplitValue(local, rows) if differs <= joined else None

    def _replaced(self, eqn: Eqn, operands: Sequence[jax.Array]) -> Sequence[Any]:
        """Performs an equation, or what replaces it, at every depth."""
        found = sequence_of(eqn) or self.substitutes.get(eqn.primitive.name)
        if found is not None:
            with evaluate.at_source_of(eqn):
                results = found.perform(eqn, operands)
            if results is not None:
                if found.sign or len(axes_of(eqn)) > 1:
                    self.replaced[source_line(eqn), found] = None
                return results
        return evaluate.bind_at_source(map_sub_jaxprs(eqn, self._change), operands)

    def _change(self, jaxpr: Jaxpr) -> Jaxpr:
        if not any(sequence_of(e) or e.primitive.name in self.substitutes for e in walk.all_eqns(jaxpr)):
            return jaxpr
        body = walk.open_jaxpr(jaxpr)

        def run(*args: Any) -> list[Any]:
            return evaluate.interpret(jaxpr, args, self._replaced)

        avals = [v.aval for v in body.invars]
        varying = [[a for a in self.names if a in compat.varying_axes(v)] for v in avals]
        return walk.in_form_of(jaxpr, evaluate.trace_typed(run, avals, varying, self.mesh))
