"""A lowered program as JAX's own `jax.stages.Lowered`, and as Tenstorrent's compiler, library and rates see it."""

from __future__ import annotations

import abc
import contextlib
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
from jax.sharding import Mesh

from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.residency import HOST
from jaxmesh.dialects.signature import Argument
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, DroppedShardingWarning, UnsupportedError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import AnyMesh, with_devices
from jaxmesh.stages.arguments import flatten
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.stage import Stage
from jaxmesh.validate import quote

if TYPE_CHECKING:
    from jaxmesh.analysis.chip import ChipRun
    from jaxmesh.analysis.estimate import Estimate
    from jaxmesh.analysis.judge import Verdict
    from jaxmesh.analysis.judge.declarations import CppVerdict
    from jaxmesh.analysis.repair.substitutes import Substitute
    from jaxmesh.stages.one_region import OneRegion
    from jaxmesh.stages.upstream import UpstreamResult
    from jaxmesh.stages.whole_program import WholeText


PLATFORM = "tt"
"""The platform of the devices of tt-xla."""


class JaxLowered(Stage):
    """A program that runs: JAX lowers it as it runs, and Tenstorrent's tools judge, estimate and compile its text."""

    @abc.abstractmethod
    def run(self, args: Sequence[Any], mesh: AnyMesh, checks: Checks | None = None) -> Any:
        """Runs on flat arguments inside a trace, or eagerly."""

    def lower_with_jax(self, platforms: Sequence[str] | None = None, **keywords: object) -> Any:
        """Returns the `jax.stages.Lowered` of the program that runs; the arguments are of `jax.stages.Traced.lower`.

        Raises:
          UnsupportedError: an argument is a `MeshTensor`.
        """
        boundary = self._boundary
        args, kwargs = jax.tree.unflatten(boundary.in_tree, list(map(_struct, boundary.arguments)))
        return self.function().trace(*args, **kwargs).lower(lowering_platforms=platforms, **keywords)

    def function(self) -> Any:
        """Returns the program that runs as a function of JAX."""
        mesh = with_devices(self._boundary.mesh)

        def call(*args: Any, **kwargs: object) -> PyTree:
            return self.run(flatten((args, kwargs))[0], mesh)

        call.__name__ = call.__qualname__ = self._boundary.name
        return typed.jit(call, keep_unused=True)

    def as_text(self, dialect: str | None = None, **options: Any) -> str:
        """Returns the program as text; `"stablehlo"` and `"hlo"` are JAX's texts of the program that runs.

        The other dialects, the options and the errors are the same as in `Traced.as_text`.
        """
        if isinstance(dialect, str) and dialect in ("stablehlo", "hlo"):
            return self.lower_with_jax().as_text(dialect, **options)
        return super().as_text(dialect, **options)

    def partitioned(self, substitutes: Sequence[Substitute] = ()) -> OneRegion:
        """Returns the program as one region, with substitutes in place of some operations; see `as_one_region`.

        Raises:
          InexpressibleError: TTNN cannot express the program.
        """
        from jaxmesh.frontends.stablehlo.text import read_boundary
        from jaxmesh.stages.one_region import as_one_region

        self._check_expressible()
        written, _ = self.global_program()
        ends = read_boundary(written.text()) if written is not None else None
        known = ends is not None and ends.axes == self._boundary.sizes
        stated = [sharding for _, sharding in ends.arguments] if ends is not None and known else ()
        return as_one_region(self._boundary, self._decomposed_residency.program, substitutes, stated)

    def _results_on_boards(self, args: Sequence[object], mesh: AnyMesh) -> list[Any] | None:
        """Returns the flat results on Tenstorrent's devices, as one region of what its compiler compiles right.

        Returns None on other devices, and for a program with `MeshTensor`s, whose regions are the user's.
        """
        if not (isinstance(mesh, Mesh) and mesh.devices.flat[0].platform == PLATFORM):
            return None
        from jaxmesh.analysis.repair.substitutes import needed_here
        from jaxmesh.frontends.stablehlo.shardings import show
        from jaxmesh.stages.joined_tensors import tensor_arguments, tensor_results

        boundary, residencies = self._boundary, self._decomposed_residency.results
        if tensor_arguments(boundary) or tensor_results(boundary, residencies):
            return None
        region = self.partitioned(needed_here())
        for i, rows in region.asked.items():
            warnings.warn(
                f"result {i} of {boundary.name} is split by {show(region.out_rows[i])} on Tenstorrent's devices, not "
                f"{show(rows)}: their compiler names the axes of a result in the order of the mesh alone.",
                DroppedShardingWarning,
                stacklevel=2,
            )
        return region.mapped()(*args)

    @abc.abstractmethod
    def global_program(self) -> tuple[WholeText | None, Callable[..., Any]]:
        """Returns the program with global shapes, or None, and the class of programs."""

    def upstream(
        self,
        cluster: str = DEFAULT,
        options: Mapping[str, str] | None = None,
        *,
        plugin: str | os.PathLike[str] | None = None,
        timeout: float = 600,
    ) -> UpstreamResult[Any]:
        """Compiles the program with Tenstorrent's own compiler, tt-xla and tt-mlir; needs no board and no values.

        The compiler runs in another Python environment, made by `jaxmesh upstream-env`, for a described machine. It
        gets the program as JAX sends it: with global shapes and shardings, and with regions of `shard_map` or
        `mesh_shard` as `sdy.manual_computation`. It knows arrays alone: a `MeshTensor` is sent as the array whose
        first dim its shards divide, in the order of the mesh.

        Args:
          cluster: the name of a machine in `jaxmesh.analysis.machines`, in any case.
          options: compiler options of tt-xla.
          plugin: the path of the plugin's library, or of a Python that has it; by default `JAXMESH_UPSTREAM_PYTHON`,
            or the environment that `jaxmesh upstream-env` made.
          timeout: how many seconds it may take.

        Returns:
          The texts of all its stages, `ttir`, `ttnn`, the `flatbuffer`, or its `refusal`; `program("ttnn")` reads a
          text as a program. It is true if the program was compiled, and shows as a table.

        Raises:
          UpstreamError: the compiler was not found, does not start, crashed, or took too long.
          MeshError: the machine has not enough devices.
          UnsupportedError: a `MeshTensor` is a scalar that differs between devices, which has no dim to divide.
        """
        with progress("upstream"):
            from jaxmesh.stages import joined_tensors
            from jaxmesh.stages.upstream import ask_upstream

            boundary, residency, program = self._boundary, self._decomposed_residency, self
            written, make = self.global_program()
            ends = joined_tensors.tensor_arguments(boundary), joined_tensors.tensor_results(boundary, residency.results)
            if written is None and any(ends):
                program = make(*joined_tensors.with_joined_tensors(boundary, residency), self.out_tree).lower()
            known = written is not None
            source = written.text() if known else program.lower_with_jax(("cpu",)).as_text(debug_info=True)
            asked = {"cluster": cluster, "options": options, "plugin": plugin, "timeout": timeout}
            return ask_upstream(source, make, ends, program, **asked)

    @overload
    def judge(
        self,
        cluster: str | None = None,
        *,
        python: str | os.PathLike[str] | None = None,
        timeout: float = 600,
        groups: bool = True,
        unroll_limit: int | None = None,
        resident: bool | str | None = None,
        language: Literal["python"] = "python",
    ) -> Verdict: ...

    @overload
    def judge(
        self,
        *,
        language: Literal["cpp"],
        python: str | os.PathLike[str] | None = None,
        timeout: float = 600,
        groups: bool = True,
        unroll_limit: int | None = None,
    ) -> CppVerdict: ...

    def judge(
        self,
        cluster: str | None = None,
        *,
        python: str | os.PathLike[str] | None = None,
        timeout: float = 600,
        groups: bool = True,
        unroll_limit: int | None = None,
        resident: bool | str | None = None,
        language: str = "python",
    ) -> Verdict | CppVerdict:
        """Asks the real ttnn whether it accepts the program, and what it takes; needs no devices and no values.

        ttnn runs in another Python environment, made by `jaxmesh ttnn-env`: on the board if there is one, else on a
        described cluster. There every operation checks its arguments and takes its memory, and computes nothing.

        Args:
          cluster: the name of a machine in `jaxmesh.analysis.machines`, in any case; by default the
            board, or the smallest that has the mesh.
          python: the Python that has ttnn; by default that of `JAXMESH_TTNN_PYTHON`, or the one that `ttnn-env` made.
          timeout: how many seconds it may take.
          groups: as of `as_text`.
          unroll_limit: as of `as_text`.
          resident: the arguments that stay on the devices between calls: all, none, or a regular expression of their
            paths, such as `"params"`; by default all that the program only distributes, or reshapes before. They are
            there before the program starts, and it does not free them. Those that come as shards are held in any case,
            also unread; a full one that nothing reads is not sent, as in JAX.
          language: `"cpp"` holds the calls of the emitted C++ to the declarations of ttnn's C++ API, which the
            environment of `jaxmesh upstream-env` has (then `python` names that environment).

        Returns:
          The `Verdict`: accepted, or refused at which line of the source and why; the memory of each device, what is
          left in it, the device operations. It is true if the program is accepted, and shows as a table. Of C++, the
          `CppVerdict`.

          Without a run it is `does not fit` if arguments, results and temporaries exceed the DRAM of a device;
          `largest()` has the largest tensors.

        Raises:
          ArgumentTypeError, ArgumentValueError: `resident` is no such choice, or matches no argument.
          UpstreamError: there are no C++ declarations, or no C++ compiler.
          TtnnError: there is no ttnn, or it does not start; the message names the command that installs it.
          MeshError: no machine has the mesh.
          MissingRuleError: as of `as_text`.
        """
        if language not in ("python", "cpp"):
            raise ArgumentValueError(f'judge takes the languages "python" and "cpp", got {quote(language)}.')
        with progress("judge"):
            from jaxmesh.analysis.account.memory import memory_of
            from jaxmesh.analysis.judge.judge import judge_program

            if language == "cpp":
                if cluster is not None or resident is not None:
                    raise ArgumentTypeError('judge(language="cpp") takes neither cluster nor resident; leave them out.')
                from jaxmesh.analysis.judge.declarations import check_text
                from jaxmesh.emit.cpp.printer import cpp_text

                text = cpp_text(self._program(groups, unroll_limit, strict=False), sources=True)
                return check_text(text, plugin=python, timeout=timeout)
            program = self._deployed(groups, unroll_limit, resident)
            held = memory_of(program, self._boundary.paths)
            return judge_program(program, held, python=python, cluster=cluster, timeout=timeout)

    def run_on_chip(self, *args: object, python: str | os.PathLike[str] | None = None, **kwargs: object) -> ChipRun:
        """Runs the program call by call with Tenstorrent's kernels on a simulated Blackhole (experimental).

        Calls that the measured table trusts run on the chip, once for devices with equal operands. Transfers,
        collectives and other calls run in the emulation, and the result says which.

        Args:
          args: the arguments, as of a call, also by name; by default random.
          python: the Python of `jaxmesh chip-env`; by default that of `JAXMESH_CHIP_PYTHON`, or the one it made.

        Raises:
          ChipError: there is no simulated chip, or it does not start.
        """
        from jaxmesh.analysis.chip.environment import Chip
        from jaxmesh.analysis.chip.program import run_on_chip

        program: Any = self
        with contextlib.closing(Chip(python)) as chip:
            program.export(chip.folder / "program", *args, languages=("python",), **kwargs)
            return run_on_chip(chip.folder / "program", chip)

    def estimate(
        self,
        cluster: str | None = None,
        *,
        stored: str | Mapping[str, str] | None = None,
        fidelity: str | None = None,
        groups: bool = True,
        unroll_limit: int | None = None,
        resident: bool | str | None = None,
    ) -> Estimate:
        """Estimates the least time of the program from published rates: a bound, and not a measurement.

        Needs no devices and no values. Of every op of the TTNN program it counts, on one device, operations, bytes of
        DRAM, and bytes that each mesh axis carries; what takes the longest at the highest published rate bounds the op.
        Inputs are read from DRAM once, and what the program computes stays in L1 as far as it fits; transfers between
        host and devices are counted, and take no time.

        Args:
          cluster: the name of a machine in `jaxmesh.analysis.machines`, in any case; by default the smallest of
            Wormholes that has the mesh.
          stored: the element type in which arguments of floats lie in DRAM, `"float32"`, `"bfloat16"`, `"bfloat8_b"` or
            `"bfloat4_b"`, or one by a regular expression of their paths, of which the first counts; by default their
            own.
          fidelity: `"LoFi"`, `"HiFi2"`, `"HiFi3"` or `"HiFi4"` for all matrix products; by default what ttnn takes for
            the element types.
          groups: as of `as_text`.
          unroll_limit: as of `as_text`.
          resident: as of `judge`, for the memory of a device.

        Returns:
          The estimate: its memory, its times, bytes and operations by op and by source line, and the shares of compute,
          DRAM and links. It prints as a table, and in Jupyter is drawn as bars over time.

        Raises:
          ArgumentValueError: no cluster, element type or fidelity has this name.
          MeshError: the cluster does not have the mesh.
          MissingRuleError, UnsupportedError: as of `as_text`.

        >>> import jax, jax.numpy as jnp, jaxmesh as jm
        >>> mesh = jax.sharding.AbstractMesh((1, 1), ("y", "x"))
        >>> f = jm.jit(lambda x, w: x @ w, mesh=mesh)
        >>> x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((32, 4096), (4096, 4096)))
        >>> estimate = f.lower(x, w).estimate("n150")
        >>> sum(op.flops for op in estimate.ops), sum(op.dram_bytes for op in estimate.ops)
        (1073741824, 33816576)
        >>> estimate.shares["DRAM"], f"{estimate.seconds * 1e6:.0f} µs"
        (1.0, '117 µs')
        """
        with progress("estimate"):
            from jaxmesh.analysis.estimate import estimate_program

            program = self._program(groups, unroll_limit, strict=False, scopes=True)
            deployed = self._deployed(groups, unroll_limit, resident)
            return estimate_program(program, cluster, stored, fidelity, deployed, self._boundary.paths)

    def _deployed(self, groups: bool, unroll_limit: int | None, resident: bool | str | None) -> Program:
        """Returns the flat program whose resident arguments are on the devices before it starts and after it ends."""
        paths = self._boundary.paths
        if resident is not None and not isinstance(resident, bool | str):
            raise ArgumentTypeError(
                f"resident is True, False or a regular expression of paths of arguments, got {quote(resident)}."
            )
        chosen = () if resident is False else range(len(paths))
        if isinstance(resident, str):
            try:
                chosen = [i for i, path in enumerate(paths) if re.search(resident, path)]
            except re.error as error:
                raise ArgumentValueError(
                    "resident is True, False or a regular expression of paths of arguments, got "
                    f"{quote(resident)}: {error}; escape brackets and dots."
                ) from None
            if not chosen:
                raise ArgumentValueError(
                    f"resident is {quote(resident)}, and matches none of the arguments {quote(', '.join(paths))}; "
                    "give a part of a path, or False to hold none."
                )
        return self._holding(groups, unroll_limit, chosen)

    def _holding(
        self, groups: bool, unroll_limit: int | None, chosen: Collection[int], strict: bool = False
    ) -> Program:
        """Returns the flat program with the shards of some arguments in their place."""
        held = tuple(i for i in chosen if self._boundary.residencies[i] is HOST)
        return self._program(groups, unroll_limit, strict, **{"held": held} if held else {})

    def marked_program(self, mark: Callable[[Eqn], str]) -> Program:
        """Returns the flat program as `default_program` does, but each op has the mark of its equation as its line, an
        op of a TTNN text its place in the text."""
        self._check_expressible()
        return self._flat(True, None, False, mark=mark)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Returns JAX's module of the program that runs, as of `jax.stages.Lowered`."""
        return self.lower_with_jax().compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """Returns XLA's estimate before it optimizes, as of `jax.stages.Lowered`; see `estimate` for Tenstorrent's."""
        return self.lower_with_jax().cost_analysis()


def _struct(argument: Argument) -> jax.ShapeDtypeStruct:
    if argument.varying is not None and argument.sharding is None:
        raise UnsupportedError(
            "an argument is a MeshTensor, which jax.export takes of a function of jax.jit alone; export "
            "jax.jit(the function that jaxmesh.jit made)."
        )
    aval = argument.aval
    return jax.ShapeDtypeStruct(argument.whole, aval.dtype, weak_type=aval.weak_type, sharding=argument.sharding)
