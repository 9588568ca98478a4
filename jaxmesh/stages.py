"""The stages of a program, as in JAX's ahead-of-time API: Traced, Lowered, Compiled.

With `function.py` and `boundary.py` the only modules that see two rooms: a traced program is handed to the pass, a
lowered one to a runtime. Texts and exports are imported when they are asked for: who only runs programs does
not pay for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
from collections.abc import Generator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxmesh import jaxprs
from jaxmesh.boundary import AnyMesh, Argument, Boundary, check_call, flatten, with_devices
from jaxmesh.passes.ttir_to_ttnn import lower
from jaxmesh.plain import on_mesh
from jaxmesh.program import UNROLL_LIMIT, Program
from jaxmesh.residency import DEVICE
from jaxmesh.runtime.reference import run_reference
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.runtime.tensor import MeshTensor, spec_of


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Without cyclic garbage collection: a flat program is many small objects that all stay, and none is in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Stage:
    """What the stages of a program have in common."""

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any) -> None:
        self._boundary = boundary
        self._jaxpr = jaxpr
        self._out_tree = out_tree
        self._programs: dict[tuple[bool, int], Program] = {}

    def _program(self, groups: bool, unroll_limit: int) -> Program:
        """The flat program, which all texts of a stage share."""
        key = groups, unroll_limit
        if key not in self._programs:
            with _uncollected():
                self._programs[key] = self._flat(groups, unroll_limit)
        return self._programs[key]

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        raise NotImplementedError

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

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any, assumptions: Sequence[str] = ()) -> None:
        super().__init__(boundary, jaxpr, out_tree)
        self._assumptions = tuple(assumptions)

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
        from jaxmesh import texts

        name = texts.checked_name(dialect, texts.TTIR_TEXTS, "traced")
        if name == "jaxpr":
            return jaxprs.text(self._jaxpr)
        return texts.printed(name, self._program(groups, unroll_limit), debug_info=debug_info)

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        from jaxmesh import texts

        return texts.ttir_program(self._jaxpr, self._boundary, self._out_tree, groups, unroll_limit)

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
        from jaxmesh import texts

        name = texts.checked_name(dialect, texts.TTNN_TEXTS, "lowered")
        if name == "jaxpr":
            return jaxprs.text(self._jaxpr)
        return texts.printed(name, self._program(groups, unroll_limit), debug_info=debug_info)

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        from jaxmesh import texts

        return texts.ttnn_program(self._jaxpr, self._boundary, self._out_tree, groups, unroll_limit)

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
          The files written: the programs, `ttir.mlir`, `ttnn.mlir`, and in `tensors/` the inputs and expected results.

        Raises:
          MeshError: the mesh is abstract: there are no devices to compute what is expected.
          MissingRuleError: as of `as_text`.
          ArgumentTypeError: other arguments than the program was traced for.
        """
        from jaxmesh import export, texts

        said, folder = export.checked_languages(languages), export.checked_folder(directory)
        program, mesh = self._program(groups, unroll_limit), with_devices(self._boundary.mesh)
        assert isinstance(mesh, Mesh)
        if args or kwargs or not self._boundary.arguments:
            leaves = check_call(self._boundary, args, kwargs)
            export.check_values(leaves)
        else:
            leaves = export.sample(self._boundary.arguments, mesh, seed)
            args, kwargs = jax.tree.unflatten(self._boundary.in_tree, leaves)
        mlir = {"ttnn.mlir": texts.printed("ttnn", program)}
        if self._traced is not None:
            mlir = {"ttir.mlir": self._traced.as_text(groups=groups, unroll_limit=unroll_limit), **mlir}
        compiled = self.compile()

        def results() -> list[Any]:
            return flatten(compiled(*args, **kwargs))[0]

        return export.export_program(folder, program, mlir, said, leaves, results)

    @functools.cached_property
    def plan(self) -> Plan:
        """The program cut into host work and mapped regions."""
        return plan_regions(self._jaxpr, self._boundary.places)

    def compile(self) -> Compiled:
        """Compiles the program for the devices of its mesh.

        Raises:
          MeshError: the mesh is abstract.
        """
        mesh = with_devices(self._boundary.mesh)
        if mesh is self._boundary.mesh:
            return Compiled(self, mesh)
        # Traced without devices: the types name a mesh that is not quite the one to run on.
        boundary = dataclasses.replace(self._boundary, mesh=mesh)
        abstract: Any = mesh.abstract_mesh
        return Compiled(Lowered(boundary, on_mesh(self._jaxpr, abstract), self._out_tree, self._traced), mesh)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on the reference executor: NumPy, a plain loop over mesh coordinates; slow, the oracle.

        Takes and gives what the function does, statics left out; a result that stays on the devices is a dict from
        mesh coordinate to array.
        """
        leaves = check_call(self._boundary, args, kwargs)
        shards = [_reference_input(x) for x in leaves]
        outs = run_reference(self._jaxpr, self._boundary.places, self._boundary.sizes, shards)
        return jax.tree.unflatten(self._out_tree, outs)

    def run(self, args: Sequence[Any], mesh: AnyMesh) -> Any:
        """Runs on flat arguments inside a trace, or eagerly."""
        results = execute(self.plan, mesh, [stored(x) for x in args], self._boundary.out_specs)
        outs = zip(results, self._jaxpr.out_avals, self.plan.outs, strict=True)
        return jax.tree.unflatten(self._out_tree, [_wrap(x, a, p, mesh) for x, a, p in outs])

    def __repr__(self) -> str:
        return f"Lowered({self._boundary.name}, mesh={self._boundary.sizes})"


def _placed(x: Any, sharding: Any) -> Any:
    """A committed array where the program wants it; anything else JAX places itself."""
    if not isinstance(x, jax.Array) or not x.committed or x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    placed: Any = jax.device_put(x, sharding)
    return placed


def stored(x: Any) -> Any:
    """An argument in the form that a runtime takes."""
    return x.data if isinstance(x, MeshTensor) else x


def _wrap(x: Any, aval: Any, place: Any, mesh: AnyMesh) -> Any:
    if place is not DEVICE:
        return x
    varying = jaxprs.varying_axes(aval)
    return MeshTensor(x, mesh, [a for a in mesh.axis_names if a in varying])


def _reference_input(x: Any) -> Any:
    return {tuple(c): s for c, s in x.shards()} if isinstance(x, MeshTensor) else x


class Compiled:
    """An executable program on the devices of a mesh; call it like the function, statics left out."""

    def __init__(self, lowered: Lowered, mesh: AnyMesh) -> None:
        boundary = lowered._boundary  # pyright: ignore[reportPrivateUsage]
        self._boundary = boundary

        def run(*leaves: Any) -> Any:
            return lowered.run(leaves, mesh)

        run.__name__ = run.__qualname__ = boundary.name
        avals = [_stored_aval(a, mesh) for a in boundary.arguments]
        self._compiled = jax.jit(run, donate_argnums=boundary.donated).lower(*avals).compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Raises:
          ArgumentTypeError: another tree or other types than the program was traced for.
        """
        leaves = [stored(x) for x in check_call(self._boundary, args, kwargs)]
        wanted, _ = self._compiled.input_shardings
        return self._compiled(*[_placed(x, s) for x, s in zip(leaves, wanted, strict=True)])

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._compiled.as_text() or ""

    def cost_analysis(self) -> Any:
        """XLA's cost analysis."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory analysis."""
        return self._compiled.memory_analysis()

    def __repr__(self) -> str:
        return f"Compiled({self._boundary.name}, mesh={self._boundary.sizes})"


def _stored_aval(a: Argument, mesh: AnyMesh) -> Any:
    if a.varying is None:
        return jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype, weak_type=a.aval.weak_type)
    shape = (*a.aval.shape, *[mesh.shape[n] for n in a.varying])
    sharding = jax.sharding.NamedSharding(mesh, spec_of(len(a.aval.shape), a.varying))
    return jax.ShapeDtypeStruct(shape, a.aval.dtype, sharding=sharding)
