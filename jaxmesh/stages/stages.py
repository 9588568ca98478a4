"""The stages of a program, as in JAX's ahead-of-time API: Traced, Lowered, Compiled.

Modules for texts, exports, recordings and drawings are imported by the methods that need them: runs do without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
from jax.sharding import NamedSharding
from jax.tree_util import PyTreeDef

from jaxmesh.dialects.program import Program
from jaxmesh.dialects.replication import Collector, is_enabled
from jaxmesh.dialects.residency import ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.textual import check_executable
from jaxmesh.emit.languages import CONSTANT_LIMIT, EXPORTED, LOWERED, TRACED
from jaxmesh.errors import InexpressibleError, UnsupportedError
from jaxmesh.frontends.jax.trace import TtirProgram
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.backend import is_multi_process
from jaxmesh.jaxprs.strip_mesh import move_to_mesh
from jaxmesh.passes.lowering import LOWERING, lower
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from jaxmesh.passes.verify_program import program_of_text
from jaxmesh.runtime.distributed.agreement import compare_program
from jaxmesh.runtime.distributed.collectives import spans_processes
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.sharding.mesh import AnyMesh, with_devices
from jaxmesh.stages.arguments import as_tensor, check_call, flatten, whole_spec, wrap_result
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.compiled import Compiled as Compiled
from jaxmesh.stages.jax_lowered import JaxLowered
from jaxmesh.stages.shardings import assign_devices
from jaxmesh.stages.stage import Stage
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.validate import as_index, as_path

if TYPE_CHECKING:
    from jaxmesh.analysis.explain import Explanation
    from jaxmesh.frontends.mlir.text import PrintedText
    from jaxmesh.stages.whole_program import WholeText


class Traced(Stage):
    """A TTIR-level program: a jaxpr typed by varying axes, where `mesh_shard` splits and joins."""

    _level = "ttir"
    _texts = (*TRACED, "jaxpr")

    def __init__(
        self,
        boundary: Boundary,
        jaxpr: compat.Jaxpr,
        out_tree: PyTreeDef,
        assumptions: Sequence[str] = (),
        inexpressible: InexpressibleError | None = None,
        imported: PrintedText | None = None,
        residency: ResidencyMap | None = None,
        decisions: Sequence[Decision] = (),
        as_written: WholeText | None = None,
    ) -> None:
        super().__init__(boundary, jaxpr, out_tree, inexpressible)
        self._assumptions = tuple(assumptions)
        self.imported = imported
        self._known_residency = residency
        self._decisions = tuple(decisions)
        self.as_written = as_written

    @classmethod
    def of(
        cls,
        boundary: Boundary,
        program: TtirProgram,
        decisions: Sequence[Decision] = (),
        as_written: WholeText | None = None,
    ) -> Traced:
        """Returns a traced function as a stage."""
        boundary = dataclasses.replace(boundary, out_specs=program.out_specs)
        about = program.out_tree, program.assumptions, program.missing
        return cls(boundary, program.jaxpr, *about, decisions=decisions, as_written=as_written)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The partitioner's decision for each value, and why; empty if no shardings were asked for."""
        return self._decisions

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The places where values are taken to be the same on several devices although no type proves it."""
        return self._assumptions

    def _flat(self, groups: bool, unroll_limit: int | None, strict: bool, **options: object) -> Program:
        from jaxmesh.passes.pipeline import ttir_program

        if groups and self.imported is not None and (program := self.imported.program("ttir")) is not None:
            return program
        ends = self._jaxpr, self._boundary, self._out_tree, self.residency.results
        return ttir_program(*ends, groups, unroll_limit, **options)

    @progress("explain")
    def explain(self, cluster: str | None = None) -> Explanation:
        """Explains where every value lives, what every equation moves and what the pass did; see `Lowered.explain`."""
        return self.lower().explain(cluster)

    def _analyse(self, jaxpr: compat.Jaxpr) -> ResidencyMap:
        if self._known_residency is not None and jaxpr is self._jaxpr:
            return self._known_residency
        inputs = self._boundary.residencies
        return ResidencyMap(lower_mesh_shards(jaxpr, inputs, self._boundary.sizes), inputs)

    @property
    def fun_name(self) -> str:
        """The name of the function, as of `jax.stages.Traced`."""
        return self._boundary.name

    @overload
    def lower(self) -> Lowered: ...
    @overload
    def lower(self, *, lowering_platforms: Sequence[str] | None = ..., **of_jax: object) -> Any: ...
    @progress("lower")
    def lower(self, *, lowering_platforms: Sequence[str] | None = None, **of_jax: object) -> Any:
        """Runs the pass from TTIR to TTNN; needs no devices.

        Args:
          lowering_platforms: as of `jax.stages.Traced.lower`. With it, or with `of_jax`, other keywords of JAX's, the
            lowered program is JAX's `jax.stages.Lowered` of the program that runs, which `jax.export` takes.

        Raises:
          MissingRuleError: a transfer inside a primitive that has no rule.
        """
        if lowering_platforms is not None or of_jax:
            return self.lower().lower_with_jax(lowering_platforms, **of_jax)
        return self._lowered

    @functools.cached_property
    def _lowered(self) -> Lowered:
        if self.inexpressible is not None:
            return Lowered(self._boundary, self._jaxpr, self._out_tree, inexpressible=self.inexpressible)
        # Of an imported program the first pass has run, which tells where its results live.
        known = self._known_residency
        program, passes = (self._jaxpr, LOWERING) if known is None else (known.program, LOWERING[1:])
        residency = lower(program, self._boundary.residencies, self._boundary.sizes, passes)
        return Lowered(self._boundary, residency.program, self._out_tree, self, residency)

    def _repr_html_(self) -> str:
        """Renders TTIR with `mesh_shard`s highlighted; the jaxpr and the reason if TTIR cannot express the program."""
        from jaxmesh.analysis import side_by_side

        return side_by_side.single_column(repr(self), self.default_program, self.jaxpr_text)


class Lowered(JaxLowered):
    """A TTNN-level program, whose every transfer is a `distribute_tensor` or an `aggregate_tensor`."""

    _level = "ttnn"
    _texts = (*LOWERED, "jaxpr")

    def __init__(
        self,
        boundary: Boundary,
        jaxpr: compat.Jaxpr,
        out_tree: PyTreeDef,
        traced: Traced | None = None,
        residency: ResidencyMap | None = None,
        inexpressible: InexpressibleError | None = None,
    ) -> None:
        super().__init__(boundary, jaxpr, out_tree, inexpressible)
        self._traced = traced
        self._lowered_residency = residency

    def _analyse(self, jaxpr: compat.Jaxpr) -> ResidencyMap:
        if jaxpr is not self._jaxpr:
            return self.residency.with_calls_inlined(jaxpr)
        # A program over another mesh has other types, and so other variables.
        return self._lowered_residency or ResidencyMap(jaxpr, self._boundary.residencies)

    def _flat(self, groups: bool, unroll_limit: int | None, strict: bool, **options: Any) -> Program:
        from jaxmesh.passes import hold_arguments, pipeline

        imported = None if self._traced is None or not groups else self._traced.imported
        imported = imported.marked() if imported is not None and "mark" in options else imported
        made = None if imported is None else program_of_text(functools.partial(imported.program, "ttnn"))
        ends = self.residency, self._boundary, self._out_tree
        program = made or pipeline.ttnn_program(*ends, groups, unroll_limit, strict, **options)
        return hold_arguments.keep_arguments(program, self._boundary.donated)

    def global_program(self) -> tuple[WholeText | None, Callable[..., Traced]]:
        """Returns the program with global shapes, or None, and the class of programs."""
        return None if self._traced is None else self._traced.as_written, Traced

    @progress("export")
    def export(
        self,
        directory: str | os.PathLike[str],
        *args: object,
        languages: Sequence[str] = EXPORTED,
        seed: int = 0,
        make_inputs: str | None = None,
        groups: bool = True,
        unroll_limit: int | None = None,
        strict: bool = True,
        constant_limit: int = CONSTANT_LIMIT,
        **kwargs: object,
    ) -> list[pathlib.Path]:
        """Writes the program as Python and C++ with all they need, and what they must give.

        Arguments with a sharding that are read are on the devices from the start to the end; their files have shards.

        Args:
          directory: a new folder, or one that an earlier export wrote.
          args: the arguments, as of a call; by default random. With types (`jax.ShapeDtypeStruct`) nothing runs: the
            program makes its inputs, and needs no devices to be exported.
          languages: `"python"` (`main.py`, `utils.py`, `locations.json`), `"cpp"` (`main.cpp`), or both.
          seed: of the random arguments.
          make_inputs: `"zeros"` or `"random"`, if the exported program makes its inputs; by default zeros for types.
          groups, unroll_limit, strict: as of `as_text`.
          constant_limit: as of `as_text`; larger constants are files in `tensors/`.
          kwargs: as `args`.

        Returns:
          The files written: the programs, `ttnn.mlir`, `ttir.mlir` (unless the program has TTNN's own transfers), and
          in `tensors/` the inputs, expected results and large constants.

        Raises:
          MeshError: the mesh is abstract, and the arguments are no types: no devices compute what is expected.
          MissingRuleError, UnsupportedError: as of `as_text`.
          ArgumentTypeError: other arguments than the program was traced for.
          UnsupportedError: the devices of the mesh belong to several processes.
        """
        from jaxmesh.emit.targets import emit
        from jaxmesh.stages import export

        chosen, folder = export.as_languages(languages), as_path("export", directory, "folder")
        seed = as_index("export", "seed", seed)
        plain = self._program(groups, unroll_limit, strict)
        program = self._holding(groups, unroll_limit, self._boundary.placed, strict)
        given = bool(args or kwargs or not self._boundary.arguments)
        making = export.made_inputs(flatten((args, kwargs))[0], make_inputs)
        leaves = check_call(self._boundary, args, kwargs, types=making is not None) if given else []
        mlir: dict[str, str] = {}
        if self._traced is not None:
            with contextlib.suppress(InexpressibleError):
                how: dict[str, Any] = {"groups": groups, "unroll_limit": unroll_limit}
                mlir["ttir.mlir"] = self._traced.as_text(constant_limit=constant_limit, **how)
        mlir["ttnn.mlir"] = emit("ttnn", program, constant_limit=constant_limit)
        if making is not None:
            return export.export_program(folder, program, mlir, chosen, constant_limit, making)
        mesh: Any = with_devices(self._boundary.mesh)
        if spans_processes(mesh):
            raise UnsupportedError(
                f"export runs the program once and writes one folder, but the devices of its mesh {dict(mesh.shape)} "
                "belong to several processes; export it in one process alone, after jaxmesh.emulate"
                f"({mesh.devices.size})."
            )
        if not given:
            leaves = export.sample(self._boundary.arguments, mesh, seed)
            args, kwargs = jax.tree.unflatten(self._boundary.in_tree, leaves)
        kept = dataclasses.replace(self._boundary, donated=())  # The arguments stay the caller's.
        compiled = Lowered(kept, self._jaxpr, self._out_tree, self._traced, self.residency).compile()

        def results() -> list[Any]:
            outs = flatten(compiled(*args, **kwargs))[0]
            specs = self._boundary.kept or [None] * len(outs)
            return [y if s is None else as_tensor(y, NamedSharding(mesh, s)) for y, s in zip(outs, specs, strict=True)]

        values = export.stored_inputs(plain, program, leaves), results
        return export.export_program(folder, program, mlir, chosen, constant_limit, values)

    @progress("explain")
    def explain(self, cluster: str | None = None) -> Explanation:
        """Explains where every value lives, what every equation moves, what the passes did and why; needs no devices.

        Args:
          cluster: of `estimate`; with one there is a column of the least times of source lines.

        Returns:
          A sequence of rows, one per argument, equation and result at every depth; their names are those of
          `as_text("jaxpr")`. It prints what moves and where; `table()` lists every row. Bytes are defined by
          `jaxmesh.analysis.account.Move`. Source lines pass over installed packages, unless JAXMESH_PACKAGE_LINES=1.

        >>> import jax, jax.numpy as jnp, jaxmesh as jm
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
        >>> @jm.jit(mesh=mesh)
        ... def matmul(x, w):
        ...     x, w = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
        ...     return jm.shard_to_full(jax.lax.psum(x @ w, "x"), P("y"))
        >>> for t in matmul.lower(jnp.zeros((4, 8)), jnp.zeros((8, 6))).explain().totals():
        ...     print(t.kind, t.axes, t.bytes, t.sent)
        distribute ('y', 'x') 16 128
        distribute ('x',) 48 384
        aggregate ('y',) 48 96
        all_reduce ('x',) 48 576
        """
        from jaxmesh.analysis.explain import explain

        traced, programs = self._traced, (self.marked_program, functools.partial(self._deployed, True, None, None))
        known = (None, (), ()) if traced is None else (traced._jaxpr, traced.assumptions, traced.decisions)
        found = explain(self._boundary, self.residency, self._out_tree, *programs, *known)
        found.estimate = functools.partial(self.estimate, cluster)
        if cluster is None:
            return found
        estimate = self.estimate(cluster)
        seconds = [(line.line, line.seconds) for line in estimate.lines if line.seconds]
        return found.timed(seconds, f"{estimate.heading}, a bound from published rates, and not a measurement")

    @functools.cached_property
    def plan(self) -> Plan:
        """The program cut into host work and mapped regions.

        Raises:
          InexpressibleError: TTIR cannot express the program.
        """
        self._check_expressible()
        check_executable(self._jaxpr)
        return plan_regions(self.residency)

    @progress("compile")
    def compile(
        self, *, check_replication: bool | None = None, device_assignment: Sequence[object] | None = None
    ) -> Compiled:
        """Compiles the program for the devices of its mesh.

        Args:
          check_replication: whether copies that no type proves equal are compared when it runs, which then waits for
            the devices; see `jaxmesh.check_replication`, which sets the default. A program without such copies is the
            same with it.
          device_assignment: the devices, of a program over an abstract mesh; as of `jax.stages.Lowered.compile`.

        Raises:
          MeshError: the mesh is abstract, and no devices are given; or others than those of the mesh are.
        """
        checked, mesh = is_enabled(check_replication), assign_devices(self._boundary.mesh, device_assignment)
        if mesh is self._boundary.mesh:
            return self._compiled(mesh, checked)
        # Traced without devices: the types name a mesh that is not quite the one to run on.
        boundary = dataclasses.replace(self._boundary, mesh=mesh)
        jaxpr = move_to_mesh(self._jaxpr, mesh.abstract_mesh)
        return Lowered(boundary, jaxpr, self._out_tree, self._traced, None, self.inexpressible)._compiled(mesh, checked)

    def _compiled(self, mesh: AnyMesh, checked: bool) -> Compiled:
        collector = Collector() if checked else None
        claims = checked and add_checks(self._jaxpr, self._boundary.sizes) is not self._jaxpr
        checks = Checks(collector) if checked else None
        return Compiled(
            self._boundary,
            lambda *leaves: self.run(leaves, mesh, checks),
            mesh,
            checked=checked,
            collector=collector if claims else None,
            residency=self._decomposed_residency,
            explain=self.explain,
        )

    def run(self, args: Sequence[object], mesh: AnyMesh, checks: Checks | None = None) -> Any:
        """Runs on flat arguments inside a trace, or eagerly; `checks` checks its claims."""
        if is_multi_process():
            compare_program(self._boundary.name, self._jaxpr, self._boundary.sizes)
        if self.inexpressible is not None:
            return jax.tree.unflatten(self._out_tree, evaluate.eval_jaxpr(self._jaxpr, *args))
        wrapped = self._results_on_boards(args, mesh) if checks is None else None
        if wrapped is None:
            wrapped = self._results(args, mesh, checks)
        for i in self._boundary.weak:
            wrapped[i] = compat.weakly_typed(wrapped[i])
        return jax.tree.unflatten(self._out_tree, wrapped)

    def _results(self, args: Sequence[Any], mesh: AnyMesh, checks: Checks | None) -> list[Any]:
        program = self._jaxpr if checks is None else checks.checked(self._jaxpr, self._boundary)
        plan = self.plan
        if program is not self._jaxpr:
            plan = plan_regions(ResidencyMap(program, self._boundary.residencies))
        given = [x.data if isinstance(x, MeshTensor) else x for x in args]
        in_specs = [whole_spec(x, a) for x, a in zip(given, self._boundary.arguments, strict=True)]
        kept = self._boundary.kept
        results = execute(plan, mesh, given, self._boundary.out_specs, in_specs, kept)
        outs = zip(results, self._jaxpr.out_avals, plan.residency.results, kept or [None] * len(results), strict=True)
        return [x if spec is not None else wrap_result(x, a, p, mesh) for x, a, p, spec in outs]

    def _repr_html_(self) -> str:
        """Renders TTIR and TTNN side by side with changed ops highlighted; see `Traced`."""
        from jaxmesh.analysis import side_by_side

        above = self._traced
        if above is None:
            return side_by_side.single_column(repr(self), self.default_program, self.jaxpr_text)
        return side_by_side.two_columns(repr(self), above.default_program, self.default_program, self.jaxpr_text)
