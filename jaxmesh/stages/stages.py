"""The stages of a program, as in JAX's ahead-of-time API: Traced, Lowered, Compiled.

With `function.py` and `boundary.py` the only modules that see two rooms: a traced program is handed to the pass, a
lowered one to a runtime. Texts and exports are imported when they are asked for: runs alone do not pay for them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from jaxmesh.dialects.program import UNROLL_LIMIT, Program
from jaxmesh.dialects.replication import Collector, is_enabled
from jaxmesh.dialects.residency import DEVICE, Analysis
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.strip_mesh import on_mesh
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower, lower_mesh_shards
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from jaxmesh.runtime.distributed.agreement import compare_program
from jaxmesh.runtime.distributed.collectives import spans_processes
from jaxmesh.runtime.reference import run_reference
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.stages.checked_calls import Checks, check_arguments
from jaxmesh.stages.compiled import Compiled as Compiled
from jaxmesh.stages.pictured import Pictured
from jaxmesh.stages.record_mixin import TTIR_RULES, Recorded, reference_input
from jaxmesh.stages.signature import AnyMesh, Boundary, check_call, flatten, with_devices
from jaxmesh.ttnn.compare_copies import REFERENCE_RULES
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.validate import as_bool, as_index

if TYPE_CHECKING:
    from jaxmesh.analysis.explain import Explanation
    from jaxmesh.stages.imported import Imported

_KEPT = 8  # How many forms of a stage's program are kept.


class Stage(Recorded, Pictured):
    """What the stages of a program have in common.

    The closed jaxpr may be given as a function, which is called when the jaxpr is first needed.
    """

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any) -> None:
        self._boundary = boundary
        self._given = jaxpr
        self._out_tree = out_tree
        self._programs: dict[tuple[bool, int], Program] = {}

    @functools.cached_property
    def _jaxpr(self) -> Any:
        return self._given if walk.is_jaxpr(self._given) else self._given()

    def _program(self, groups: bool, unroll_limit: int) -> Program:
        """The flat program, which all texts of a stage share."""
        key = as_bool("as_text", "groups", groups), as_index("as_text", "unroll_limit", unroll_limit)
        found = self._programs.get(key)
        if found is None:
            made = self._flat(groups, unroll_limit)
            # Threads that come here at once may make it twice, and then share one; a full store is left behind.
            held = self._programs if len(self._programs) < _KEPT else {}
            found = held.setdefault(key, made)
            self._programs = held
        return found

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        raise NotImplementedError

    def _claims_checked(self, args: Any, kwargs: Any, check_replication: bool | None) -> Any:
        """The program as the reference executor is to run it; what the arguments claim is compared here."""
        if not is_enabled(check_replication):
            return self._jaxpr
        check_arguments((args, kwargs))
        return add_checks(self._jaxpr, self._boundary.sizes)

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr."""
        return self._jaxpr

    @property
    def mesh(self) -> AnyMesh:
        """The mesh of the program."""
        return self._boundary.mesh

    @property
    def in_avals(self) -> list[Any]:
        """The types of the arguments, flattened; local types for tensors on the devices."""
        return list(self._jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        """The types of the results, flattened; local types for those that stay on the devices."""
        return list(self._jaxpr.out_avals)

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self._out_tree


class Traced(Stage):
    """A TTIR-level program: a jaxpr typed by varying axes, in which `mesh_shard` splits and joins."""

    _level = "ttir"

    def __init__(
        self,
        boundary: Boundary,
        jaxpr: Any,
        out_tree: Any,
        assumptions: Sequence[str] = (),
        imported: Imported | None = None,
    ) -> None:
        super().__init__(boundary, jaxpr, out_tree)
        self._assumptions = tuple(assumptions)
        self._imported = imported

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The places where values are taken to be the same on several devices although no type proves it."""
        return self._assumptions

    def as_text(
        self,
        dialect: str | None = None,
        *,
        debug_info: bool = False,
        groups: bool = True,
        unroll_limit: int = UNROLL_LIMIT,
    ) -> str:
        """The program as text: TTIR, which `jaxmesh.from_mlir` reads back; needs no devices.

        Args:
          dialect: `"ttir"` (the default), or `"jaxpr"` for JAX's own text.
          debug_info: whether MLIR says on which line of the source each operation stands.
          groups: whether groups of operations that TTIR has one op for (softmax, rms_norm, linear, ...) are recognised;
            values change by no more than rounding.
          unroll_limit: how many operations loops may make, all in all, when they are unrolled.

        Raises:
          MissingRuleError: a primitive that TTIR has no row for; the program still runs.
          UnsupportedError: a loop or a branch that is not static.
        """
        from jaxmesh.stages import texts

        name = texts.checked_name(dialect, texts.TTIR_TEXTS, "traced")
        if name == "jaxpr":
            return walk.text(self._jaxpr)
        return texts.printed(name, self._program(groups, unroll_limit), debug_info=debug_info)

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        from jaxmesh.stages import texts

        imported = self._imported
        if imported is not None and groups and (program := imported.program("ttir")) is not None:
            return program
        jaxpr = self._jaxpr if imported is None else imported.jaxpr
        return texts.ttir_program(jaxpr, self._boundary, self._out_tree, groups, unroll_limit)

    def reference(self, *args: Any, check_replication: bool | None = None, **kwargs: Any) -> Any:
        """Runs the TTIR-level program, before any pass, on the reference executor; slow, an oracle of its own.

        Takes, gives and raises what `Lowered.reference` does. What `mesh_shard` does there is written from its meaning
        alone.
        """
        places = self._boundary.places
        shards = [reference_input(x) for x in check_call(self._boundary, args, kwargs)]
        program = self._claims_checked(args, kwargs, check_replication)
        outs = run_reference(program, places, self._boundary.sizes, shards, TTIR_RULES)
        # Whether a result is on the devices is a matter of types: a branch not taken says it too.
        kept = self.on_devices()
        coordinates = list(itertools.product(*map(range, self._boundary.sizes.values())))
        for i, (x, device) in enumerate(zip(outs, kept, strict=True)):
            outs[i] = dict.fromkeys(coordinates, x) if device and not isinstance(x, dict) else x
        return jax.tree.unflatten(self._out_tree, outs)

    def explain(self) -> Explanation:
        """Where every value lives, what every equation moves, what the pass did and why; see `Lowered.explain`."""
        return self.lower().explain()

    def on_devices(self) -> list[bool]:
        """Per result whether it stays on the devices."""
        moved = lower_mesh_shards(self._jaxpr, tuple(self._boundary.sizes.values()), self._boundary.places)
        return [place is DEVICE for place in Analysis().body(moved, self._boundary.places)]

    def lower(self) -> Lowered:
        """Runs the pass from TTIR to TTNN; needs no devices.

        Raises:
          MissingRuleError: a transfer inside a primitive that has no rule.
        """
        lowered = lower(self._jaxpr, self._boundary.places, self._boundary.sizes)
        return Lowered(self._boundary, lowered, self._out_tree, self)

    def __repr__(self) -> str:
        return f"Traced({self._boundary.name}, mesh={self._boundary.sizes})"


class Lowered(Stage):
    """A TTNN-level program: `distribute_tensor` and `aggregate_tensor` say every transfer it makes."""

    _level = "ttnn"

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any, traced: Traced | None = None) -> None:
        super().__init__(boundary, jaxpr, out_tree)
        self._traced = traced

    def as_text(
        self,
        dialect: str | None = None,
        *,
        debug_info: bool = False,
        groups: bool = True,
        unroll_limit: int = UNROLL_LIMIT,
    ) -> str:
        """The program as text, 1:1 what the pass decided; needs no devices.

        Args:
          dialect: `"ttnn"` (MLIR, the default), `"python"` or `"cpp"` as tt-mlir emits them, or `"jaxpr"`.
          debug_info: whether MLIR says on which line of the source each operation stands.
          groups: whether groups of operations that TTNN has one op for (softmax, rms_norm, linear, ...) are recognised;
            values change by no more than rounding.
          unroll_limit: how many operations loops may make, all in all, when they are unrolled.

        Raises:
          MissingRuleError: a primitive that TTIR, or an op that TTNN has no row for; the program still runs.
          UnsupportedError: a loop or a branch that is not static.
        """
        from jaxmesh.stages import texts

        name = texts.checked_name(dialect, texts.TTNN_TEXTS, "lowered")
        if name == "jaxpr":
            return walk.text(self._jaxpr)
        return texts.printed(name, self._program(groups, unroll_limit), debug_info=debug_info)

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        from jaxmesh.stages import texts

        imported = None if self._traced is None else self._traced._imported
        jaxpr = self._jaxpr
        if imported is not None:
            if groups and (program := imported.program("ttnn")) is not None:
                return program
            jaxpr = lower(imported.jaxpr, self._boundary.places, self._boundary.sizes)
        return texts.ttnn_program(jaxpr, self._boundary, self._out_tree, groups, unroll_limit)

    def export(
        self,
        directory: str | os.PathLike[str],
        *args: Any,
        languages: Sequence[str] = ("python", "cpp"),
        seed: int = 0,
        groups: bool = True,
        unroll_limit: int = UNROLL_LIMIT,
        **kwargs: Any,
    ) -> list[pathlib.Path]:
        """Writes the program as Python and C++ with all they need, and what they must give.

        Args:
          directory: a new folder, or one that an earlier export wrote.
          args: the arguments to run with, as of a call; left out altogether, random ones are made.
          languages: `"python"` (`main.py`, `utils.py`), `"cpp"` (`main.cpp`), or both.
          seed: of the random arguments.
          groups: as of `as_text`.
          unroll_limit: as of `as_text`.
          kwargs: further arguments, as of a call.

        Returns:
          The files written: the programs, `ttir.mlir` (unless the program was made of TTNN's own transfers, which TTIR
          does not have), `ttnn.mlir`, and in `tensors/` the inputs and expected results.

        Raises:
          MeshError: the mesh is abstract: there are no devices to compute what is expected.
          MissingRuleError: as of `as_text`.
          ArgumentTypeError: other arguments than the program was traced for.
          UnsupportedError: the devices of the mesh belong to several processes.
        """
        from jaxmesh.stages import export, texts

        said, folder = export.checked_languages(languages), export.checked_folder(directory)
        seed = as_index("export", "seed", seed)
        program, mesh = self._program(groups, unroll_limit), with_devices(self._boundary.mesh)
        assert isinstance(mesh, Mesh)
        if spans_processes(mesh):
            raise UnsupportedError(
                f"export runs the program once and writes one folder, but the devices of its mesh {dict(mesh.shape)} "
                "belong to several processes; export it in one process alone, after jaxmesh.emulate"
                f"({mesh.devices.size})."
            )
        if args or kwargs or not self._boundary.arguments:
            leaves = check_call(self._boundary, args, kwargs)
            export.check_values(leaves)
        else:
            leaves = export.sample(self._boundary.arguments, mesh, seed)
            args, kwargs = jax.tree.unflatten(self._boundary.in_tree, leaves)
        mlir = texts.files(program, self._traced, groups=groups, unroll_limit=unroll_limit)
        # The arguments stay the caller's.
        kept = dataclasses.replace(self._boundary, donated=())
        compiled = Lowered(kept, self._jaxpr, self._out_tree, self._traced).compile()

        def results() -> list[Any]:
            return flatten(compiled(*args, **kwargs))[0]

        return export.export_program(folder, program, mlir, said, leaves, results)

    def explain(self) -> Explanation:
        """Where every value lives, what every equation moves, what the passes did and why; needs no devices.

        Returns:
          A sequence of rows, one per argument, equation and result at every depth, that prints as a table; their names
          are those of `as_text("jaxpr")`. Bytes are defined by `jaxmesh.analysis.explain.Move`.

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
        from jaxmesh.analysis.explain import explained

        traced = self._traced
        assumptions = () if traced is None else traced.assumptions
        return explained(
            self._boundary, self._jaxpr, None if traced is None else traced.jaxpr, self._out_tree, assumptions
        )

    @functools.cached_property
    def plan(self) -> Plan:
        """The program cut into host work and mapped regions."""
        return plan_regions(self._jaxpr, self._boundary.places)

    def compile(self, *, check_replication: bool | None = None) -> Compiled:
        """Compiles the program for the devices of its mesh.

        Args:
          check_replication: whether copies that no type proves equal are compared when it runs, which then waits for
            the devices; see `jaxmesh.check_replication`, which says the default. A program without such copies is the
            same with it.

        Raises:
          MeshError: the mesh is abstract.
        """
        checked, mesh = is_enabled(check_replication), with_devices(self._boundary.mesh)
        if mesh is self._boundary.mesh:
            return self._compiled(mesh, checked)
        # Traced without devices: the types name a mesh that is not quite the one to run on.
        boundary = dataclasses.replace(self._boundary, mesh=mesh)
        abstract: Any = mesh.abstract_mesh
        there = Lowered(boundary, on_mesh(self._jaxpr, abstract), self._out_tree, self._traced)
        return there._compiled(mesh, checked)

    def _compiled(self, mesh: AnyMesh, checked: bool) -> Compiled:
        collector = Collector() if checked else None
        claims = checked and add_checks(self._jaxpr, self._boundary.sizes) is not self._jaxpr
        checks = Checks(collector) if checked else None

        def run(*leaves: Any) -> Any:
            return self.run(leaves, mesh, checks)

        collector = collector if claims else None
        return Compiled(
            self._boundary, run, mesh, checked=checked, collector=collector, jaxpr=self._jaxpr, explain=self.explain
        )

    def reference(self, *args: Any, check_replication: bool | None = None, **kwargs: Any) -> Any:
        """Runs the program on the reference executor: NumPy, a plain loop over mesh coordinates; slow, the oracle.

        Takes and gives what the function does, statics left out; a result that stays on the devices is a dict from
        mesh coordinate to array. `check_replication` is that of `compile`.

        Raises:
          ReplicationError: replication is checked, and copies differ that are claimed to be equal.
        """
        shards = [reference_input(x) for x in check_call(self._boundary, args, kwargs)]
        program = self._claims_checked(args, kwargs, check_replication)
        outs = run_reference(program, self._boundary.places, self._boundary.sizes, shards, REFERENCE_RULES)
        return jax.tree.unflatten(self._out_tree, outs)

    def run(self, args: Sequence[Any], mesh: AnyMesh, checks: Checks | None = None) -> Any:
        """Runs on flat arguments inside a trace, or eagerly; `checks` says how its claims are checked."""
        compare_program(self._boundary.name, self._jaxpr, self._boundary.sizes)
        program = self._jaxpr if checks is None else checks.checked(self._jaxpr, self._boundary)
        plan = self.plan if program is self._jaxpr else plan_regions(program, self._boundary.places)
        results = execute(plan, mesh, [stored(x) for x in args], self._boundary.out_specs)
        outs = zip(results, self._jaxpr.out_avals, plan.outs, strict=True)
        return jax.tree.unflatten(self._out_tree, [_wrap(x, a, p, mesh) for x, a, p in outs])

    def __repr__(self) -> str:
        return f"Lowered({self._boundary.name}, mesh={self._boundary.sizes})"


def stored(x: Any) -> Any:
    """An argument in the form that a runtime takes."""
    return x.data if isinstance(x, MeshTensor) else x


def _wrap(x: Any, aval: Any, place: Any, mesh: AnyMesh) -> Any:
    if place is not DEVICE:
        return x
    varying = compat.varying_axes(aval)
    return MeshTensor(x, mesh, [a for a in mesh.axis_names if a in varying])
