"""A lowered program that is one mapped region from end to end, run under the specs it came with.

The specs name axes of size 1, which the program's transfers do not. The shardings that the transfers imply are derived
from their configs and must agree with the specs. Factors are compared (`distribution.factors`), so a reshape between a
transfer and the boundary does not matter.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.primitives import RETYPES
from jaxmesh.sharding.distribution import Factors, factors, mesh_axis_dims, resolve_composer, resolve_mapper, rows_of
from jaxmesh.sharding.shard_attributes import spec_axes

Sizes = Mapping[str, int]


class SingleRegion:
    """A closed, lowered program that is one mapped region, with full arguments and results."""

    def __init__(
        self, program: Jaxpr, sizes: Sizes, in_specs: Sequence[PartitionSpec], out_specs: Sequence[PartitionSpec]
    ) -> None:
        self._program, self._sizes = program, sizes
        self._in_specs, self._out_specs = tuple(in_specs), tuple(out_specs)
        self._body: Any = walk.open_jaxpr(program)
        self._full: dict[Var, Var] = {v: v for v in self._body.invars}
        self._maker: dict[Var, Eqn] = {v: e for e in self._body.eqns for v in e.outvars}
        self._inside = [e for e in self._body.eqns if self._runs(e)]
        self._implied = self._spread_to_leave()
        self._leaving = [self._leave(a, s) for a, s in zip(self._body.outvars, self._out_specs, strict=True)]

    def __call__(self, args: Sequence[Any], mesh: Mesh | AbstractMesh) -> list[Any]:
        """Runs the program on full arguments."""
        mapped = compat.shard_map(self._local, mesh=mesh, in_specs=self._in_specs, out_specs=self._out_specs)
        return list(mapped(*args))

    def _local(self, *args: Any) -> tuple[Any, ...]:
        arguments = dict(zip(self._body.invars, args, strict=True))
        consts = map(evaluate.strip_type, self._program.consts)
        env: dict[Var, Any] = dict(zip(self._body.constvars, consts, strict=True))
        for eqn in self._inside:
            if eqn.primitive is distribute_tensor_p:
                (out,) = eqn.outvars
                source = self._full.get(eqn.invars[0]) if isinstance(eqn.invars[0], Var) else None
                shard = evaluate.read(env, eqn.invars[0]) if source is None else arguments[source]
                env[out] = _reshape(shard, out.aval.shape)
            elif eqn.primitive.name in RETYPES:
                (value,) = [evaluate.read(env, a) for a in eqn.invars]
                if eqn.outvars[0] in self._implied:
                    env[eqn.outvars[0]] = value
                    continue
                # An argument varies over axes of size 1 already when its spec names them.
                missing = compat.varying_axes(eqn.outvars[0].aval) - compat.varying_axes(jax.typeof(value))
                env[eqn.outvars[0]] = compat.vary(value, sorted(missing)) if missing else value
            else:
                evaluate.eval_eqns([eqn], env)
        return tuple(leave(env) for leave in self._leaving)

    def _spread_to_leave(self) -> set[Var]:
        """Returns the values that are spread only to leave: JAX spreads results itself, after it has checked specs."""
        reads = collections.Counter(a for e in self._body.eqns for a in e.invars if isinstance(a, Var))
        spread: set[Var] = set()
        for eqn in [e for e in self._body.eqns if e.primitive is aggregate_tensor_p]:
            atom: Atom = eqn.invars[0]
            while isinstance(atom, Var) and reads[atom] == 1 and atom in self._maker:
                maker = self._maker[atom]
                if maker.primitive.name in RETYPES:
                    spread.add(atom)
                if maker.primitive.name != "reshape":
                    break
                atom = maker.invars[0]
        return spread

    def _runs(self, eqn: Eqn) -> bool:
        """Returns True if an equation runs inside; checks the distributes, and follows reshapes of arguments."""
        reads = [a for a in eqn.invars if isinstance(a, Var) and a in self._full]
        if eqn.primitive is distribute_tensor_p:
            self._check_entry(eqn)
            return True
        if reads and eqn.primitive.name == "reshape":
            self._full[eqn.outvars[0]] = self._full[reads[0]]
            return False
        if reads:
            raise VerifyError(f"{eqn.primitive.name} reads a full argument inside a mapped region.")
        return eqn.primitive is not aggregate_tensor_p and not self._is_aggregated(eqn.invars)

    def _is_aggregated(self, atoms: Sequence[Atom]) -> bool:
        """Returns True if a value is the result of an aggregate, up to reshapes."""
        return any(isinstance(a, Var) and self._aggregate_of(a) is not None for a in atoms)

    def _aggregate_of(self, atom: Atom) -> Eqn | None:
        while isinstance(atom, Var) and atom in self._maker:
            eqn = self._maker[atom]
            if eqn.primitive is aggregate_tensor_p:
                return eqn
            if eqn.primitive.name != "reshape":
                return None
            atom = eqn.invars[0]
        return None

    def _check_entry(self, eqn: Eqn) -> None:
        operand: Atom = eqn.invars[0]
        sizes = tuple(self._sizes.values())
        cut = resolve_mapper(eqn.params["mapper_config"], sizes, operand.aval.shape)
        dims = mesh_axis_dims(cut.landing, cut.dims, drop_single=False)
        implied = None if dims is None else factors(rows_of(dims, len(cut.local)), cut.local)
        source: Any = self._full.get(operand) if isinstance(operand, Var) else None
        # A value that depends on no argument is replicated.
        wanted = factors([()] * len(cut.local), cut.local)
        if source is not None:
            index: int = self._body.invars.index(source)
            wanted = self._spec_factors(self._in_specs[index], source.aval.shape)
        if implied != wanted:
            raise VerifyError(f"the program distributes an argument as {implied}, its spec is {wanted}.")

    def _spec_factors(self, spec: PartitionSpec, full: Sequence[int]) -> Factors:
        order = list(self._sizes)
        rows = [[a for a in row if self._sizes[a] > 1] for row in spec_axes(spec, len(full), self._sizes)]
        return factors([[order.index(a) for a in row] for row in rows], self._local_shape(spec, full))

    def _local_shape(self, spec: PartitionSpec, full: Sequence[int]) -> tuple[int, ...]:
        local = list(full)
        for dim, row in enumerate(spec_axes(spec, len(full), self._sizes)):
            for axis in row:
                local[dim] //= self._sizes[axis]
        return tuple(local)

    def _leave(self, atom: Atom, spec: PartitionSpec) -> Callable[[dict[Var, Any]], Any]:
        eqn = self._aggregate_of(atom)
        if eqn is None:
            raise VerifyError(f"a result of type {atom.aval} was not put together by an aggregate_tensor.")
        (shard,) = eqn.invars
        joined = resolve_composer(eqn.params["composer_config"], tuple(self._sizes.values()), shard.aval.shape)
        dims = mesh_axis_dims(joined.landing, joined.dims, drop_single=True)
        implied = None if dims is None else factors(rows_of(dims, len(joined.local)), joined.local)
        wanted = self._spec_factors(spec, atom.aval.shape)
        if implied != wanted:
            raise VerifyError(f"the program aggregates a result as {implied}, its spec is {wanted}.")
        local = self._local_shape(spec, atom.aval.shape)
        return lambda env: _reshape(evaluate.read(env, shard), local)


def _reshape(x: Any, shape: Sequence[int]) -> Any:
    return x if np.shape(x) == tuple(shape) else jax.lax.reshape(x, tuple(shape))
