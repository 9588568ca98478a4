"""The values of a program and their residencies, for `jaxmesh.visualize`: read from types and transfers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.dialects.residency import DEVICE, FREE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, distribute_tensor_p
from jaxmesh.drawing.placement import Box, Placement, Shard, cut_boxes, make_placement, varying_axes
from jaxmesh.drawing.placements import sharding_placement
from jaxmesh.drawing.program_drawing import MAX_VALUES, ProgramValue, ProgramValues
from jaxmesh.jaxprs import compat, primitives, source_locations, walk as walk_
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.trees import leaf_paths
from jaxmesh.sharding.distribution import resolve_mapper, rows_of
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.ttnn.mesh_tensor import is_tensor

Shape = tuple[int, ...]
_WORDS: Mapping[Any, str] = {DEVICE: "the same on every device", FREE: "made where it is needed"}


def stage_values(title: str, jaxpr: Jaxpr, boundary: Boundary, residency: ResidencyMap) -> ProgramValues:
    """Lists the values of a traced or a lowered program.

    The residencies of a traced program are those of the program whose `mesh_shard`s are replaced by transfers.
    """
    walk = _Walk(boundary.mesh)
    opened, known = walk_.open_jaxpr(jaxpr), residency.values
    walk.residencies = {**known, **_results(opened, walk_.open_jaxpr(residency.program), known)}
    for var, path in zip(opened.invars, _paths(boundary.in_tree), strict=True):
        walk.names[var] = f"argument{path}"
        walk.step(walk.names[var], var)
    walk.body(jaxpr, 0)
    for atom in opened.outvars:
        walk.step(f"return {walk.name(atom)}", atom)
    return walk.values(title)


def compiled_values(
    title: str, jaxpr: Jaxpr, boundary: Boundary, arguments: Sequence[Any], results: Any
) -> ProgramValues:
    """Lists the arguments and results of a compiled program, where XLA places them.

    Arguments that are not read have the sharding None; `results` is the tree of the shardings of the results.
    """
    walk = _Walk(boundary.mesh)
    avals = list(jaxpr.in_avals)
    for aval, sharding, path, place in zip(
        avals, arguments, _paths(boundary.in_tree), boundary.residencies, strict=True
    ):
        walk.add_boundary_value(f"argument{path}", aval, sharding, place is DEVICE and sharding is not None)
    leaves = cast("list[tuple[Any, Any]]", jax.tree_util.tree_flatten_with_path(results, is_leaf=is_tensor)[0])
    for aval, (path, leaf) in zip(list(jaxpr.out_avals), leaves, strict=True):
        walk.add_boundary_value(f"result{jax.tree_util.keystr(path)}", aval, leaf, is_tensor(leaf))
    return walk.values(title, "what lies between is XLA's: see as_text().")


def _paths(tree: Any) -> list[str]:
    # The first part tells arguments by position from those by name.
    return [jax.tree_util.keystr(path[1:] if len(path) > 1 else path) for path in leaf_paths(tree)]


def _results(opened: Jaxpr, lowered: Jaxpr, known: Mapping[Var, Residency]) -> dict[Var, Residency]:
    """Returns the residencies of the results of `mesh_shard`s, which are other variables in the lowered program."""
    common = {v for e in opened.eqns for v in e.outvars}
    rest, residencies = list(lowered.eqns), dict[Var, Residency]()
    stands: dict[Var, Atom] = {}
    at = 0
    for eqn in opened.eqns:
        if eqn.primitive is not mesh_shard_p:
            at += 1
            continue
        (operand,) = eqn.invars
        last = stands.get(operand, operand) if isinstance(operand, Var) else operand
        # One mesh_shard becomes a chain of equations, each reading the one before, or nothing at all.
        while at < len(rest) and rest[at].invars[:1] == [last] and not common.intersection(rest[at].outvars):
            (last,) = rest[at].outvars
            at += 1
        stands[eqn.outvars[0]] = last
        residencies[eqn.outvars[0]] = known[last] if isinstance(last, Var) else FREE
    return residencies


@dataclass(slots=True)
class _Walk:
    """Collects the values of a program."""

    mesh: AnyMesh
    steps: list[ProgramValue] = field(default_factory=list[ProgramValue])
    count: int = 0
    results: int = 0
    names: dict[Var, str] = field(default_factory=dict[Var, str])
    residencies: dict[Var, Residency] = field(default_factory=dict[Var, Residency])

    def name(self, atom: Atom) -> str:
        """Returns the name of a value in the list; of a literal its number."""
        if isinstance(atom, compat.Literal):
            return str(atom.val) if np.size(atom.val) == 1 else "a constant"
        return self.names.get(atom, "a constant")

    def body(self, jaxpr: Jaxpr, depth: int) -> None:
        """Adds the equations of a body, and those of the bodies in it."""
        for eqn in walk_.open_jaxpr(jaxpr).eqns:
            if eqn.primitive.name in primitives.RETYPES:
                self.names[eqn.outvars[0]] = self.name(eqn.invars[0])
                continue
            self.equation(eqn, depth)
            if self.count > 20 * MAX_VALUES:
                return
            for inner in walk_.sub_jaxprs(eqn):
                if eqn.primitive.name not in primitives.SCALAR_BODIES:
                    opened = walk_.open_jaxpr(inner)
                    self.names.update((v, f"in{i}") for i, v in enumerate(opened.invars))
                    self.body(inner, depth + 1)

    def equation(self, eqn: Eqn, depth: int) -> None:
        """Adds the results of an equation."""
        operands = ", ".join(self.name(a) for a in eqn.invars[:6]) + (", ..." if len(eqn.invars) > 6 else "")
        line, cut = source_locations.source_line(eqn), self.cut(eqn)
        moves = eqn.primitive in (*PRIMITIVES, mesh_shard_p) or eqn.primitive.name in primitives.COLLECTIVES
        for var in eqn.outvars:
            self.names[var] = f"%{self.results}"
            self.results += 1
            self.step(f"{self.names[var]} = {eqn.primitive.name}({operands})", var, line, depth, moves, cut)

    def step(
        self, text: str, atom: Atom, line: str = "", depth: int = 0, moves: bool = False, cut: Placement | None = None
    ) -> None:
        """Adds one value; `cut` is the placement of one that was cut out of a full tensor."""
        self.count += 1
        if self.count > MAX_VALUES or not compat.is_array_type(atom.aval):
            return
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(atom.aval)]
        residency = self.residencies.get(atom) if isinstance(atom, Var) else FREE
        if varying:
            where, holding = f"shards over {', '.join(varying)}", cut or self.shards(atom.aval, varying)
        else:
            where = "on the host, full" if residency is None else _WORDS.get(residency, "on the host, full")
            if residency is None and depth:
                where = "the same everywhere"
            holding = self.shards(atom.aval, varying) if residency is DEVICE else None
        self.steps.append(ProgramValue(text, _type(atom.aval), where, holding, line, depth, moves))

    def add_boundary_value(self, text: str, aval: Any, sharding: Any, stays: bool) -> None:
        """Adds an argument or a result of a compiled program: a tensor on the devices, or a full array."""
        self.count += 1
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(aval)]
        if varying or stays:
            where = f"shards over {', '.join(varying)}" if varying else _WORDS[DEVICE]
            holding = self.shards(aval, varying)
        elif sharding is None:
            where, holding = "not read", None
        else:
            mesh = self.mesh if isinstance(self.mesh, Mesh) else None
            holding = sharding_placement(tuple(aval.shape), aval.dtype, sharding, mesh)
            over = varying_axes(holding)
            where = f"cut over {', '.join(over)}" if over else _WORDS[DEVICE]
        self.steps.append(ProgramValue(text, _type(aval), where, holding))

    def values(self, title: str, *notes: str) -> ProgramValues:
        """Returns the first values."""
        return ProgramValues(title, tuple(self.steps[:MAX_VALUES]), max(0, self.count - MAX_VALUES), notes)

    # --- placements ---

    def shards(self, aval: Any, varying: Sequence[str]) -> Placement:
        """Places shards that vary over some axes; their boxes in the full tensor are unknown."""
        axes = dict(self.mesh.shape)
        wheres: list[Shard | None] = []
        shape = tuple(aval.shape)
        for place in itertools.product(*map(range, axes.values())):
            named = [(n, at) for n, at in zip(axes, place, strict=True) if n in varying]
            box: Box | None = None if varying else tuple((0, n) for n in shape)
            wheres.append(Shard(box, ", ".join(f"{n}={at}" for n, at in named), shape, tuple(at for _, at in named)))
        return self.placement(wheres, aval, None if varying else shape)

    def cut(self, eqn: Eqn) -> Placement | None:
        """Places the shards of an equation that splits a full tensor; None for any other equation."""
        if eqn.primitive not in (mesh_shard_p, distribute_tensor_p):
            return None
        full: Any = eqn.invars[0].aval
        axes = dict(self.mesh.shape)
        if eqn.primitive is mesh_shard_p and compat.varying_axes(eqn.outvars[0].aval):
            dims = MeshShardAttributes(**{k: v for k, v in eqn.params.items() if k != "assume_replicated"})
            names = list(axes)
            rows = [tuple(names[a] for a in row) for row in rows_of(dims.dims_on(len(axes)), len(full.shape))]
            boxes = cut_boxes(tuple(full.shape), rows, axes)
            wheres: list[Shard | None] = [Shard.of_box(b) for b in boxes]
            return self.placement(wheres, full, tuple(full.shape), rows)
        if eqn.primitive is distribute_tensor_p:
            resolved = resolve_mapper(eqn.params["mapper_config"], tuple(axes.values()), full.shape)
            index = {c: tuple((s.start, s.stop) for s in resolved.index(p)) for c, p in resolved.shard_coordinates()}
            coordinates = itertools.product(*map(range, axes.values()))
            wheres = [Shard.of_box(index[c]) if c in index else None for c in coordinates]
            return self.placement(wheres, full, tuple(full.shape))
        return None

    def placement(self, wheres: Sequence[Shard | None], aval: Any, shape: Shape | None, over: Any = None) -> Placement:
        """Returns a placement on this mesh."""
        ids = [d.id for d in self.mesh.devices.flat] if isinstance(self.mesh, Mesh) else None
        return make_placement(
            dict(self.mesh.shape), wheres, dtype=aval.dtype, itemsize=aval.dtype.itemsize, shape=shape, how="",
            ids=ids, over=over,
        )  # fmt: skip


def _type(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"
