"""A program as Tenstorrent's own compiler compiles it, from StableHLO with arrays alone, to texts that are programs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
from jax.sharding import NamedSharding

from jaxmesh.analysis.account.memory import PeakMemory, memory_of
from jaxmesh.analysis.diagnose import Diagnosis, diagnose
from jaxmesh.analysis.diagnose.stage import read_stage
from jaxmesh.analysis.estimate import Estimate, estimate_program
from jaxmesh.analysis.judge import Verdict
from jaxmesh.analysis.judge.judge import judge_program
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream import UpstreamProgram
from jaxmesh.analysis.upstream.comparison import (
    CompiledSide,
    CompilerComparison,
    CompilerText,
    describe,
    our_side,
    read_text,
)
from jaxmesh.analysis.upstream.compile import compile_text
from jaxmesh.dialects.residency import DEVICE, ResidencyMap
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import ArgumentValueError, JaxmeshError, UnsupportedError
from jaxmesh.frontends.mlir.module import BoundaryAttributes, choose, load_text
from jaxmesh.frontends.mlir.text import Text, with_element_types
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of, local_shape, replicated
from jaxmesh.frontends.stablehlo.text import BoundaryShardings, End, read_boundary
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Aval, Jaxpr, without_mesh
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import splitting_axes
from jaxmesh.sharding.shard_attributes import named_axes
from jaxmesh.stages.joined_tensors import join_tensors
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.stages.stage import Stage
from jaxmesh.validate import as_bool, as_index, as_instance, quote

if TYPE_CHECKING:
    from jaxmesh.analysis.repair import Repair
    from jaxmesh.stages.repair import Repairable

T = TypeVar("T")
Ends = tuple[frozenset[int], frozenset[int]]
"""The numbers of the arguments and of the results that are `MeshTensor`s."""
READ = ("ttnn", "ttir")
"""The stages of the compiler that are programs for devices."""
PARTITIONED = "shlo_compiler"
"""The stage that states how arguments and results are split."""
WHOLE = "shlo_frontend"
"""The stage with global shapes."""


@dataclass(frozen=True, eq=False, repr=False)
class UpstreamResult(UpstreamProgram, Generic[T]):
    """A program as Tenstorrent's compiler compiled or refused it; see `UpstreamProgram` for its other attributes.

    Attributes:
      make: makes a traced program.
      tensors: the numbers of the arguments and results that are `MeshTensor`s in the program that was compiled.
      source: the StableHLO text that was compiled.
      lowered: the program of jaxmesh; None if only its text is known.
      asked: the options of the compiler.
    """

    make: Callable[..., T] = field(kw_only=True)
    tensors: Ends = field(default=(frozenset(), frozenset()), kw_only=True)
    source: str = field(default="", kw_only=True)
    lowered: Repairable | None = field(default=None, kw_only=True)
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)

    @without_mesh()
    def program(self, dialect: str = "ttnn") -> T:
        """Returns the `"ttnn"` or `"ttir"` text as a traced program, which lowers, runs and is judged like any other.

        It takes the arguments of the program that was compiled, as whole arrays, and returns whole arrays. A
        `MeshTensor` of that program is one here. So is a result whose shards differ otherwise than the compiler states.

        Raises:
          UpstreamError: the compiler refused the program before this text.
          VerifyError, MissingRuleError, UnsupportedError, ParseError: as of `jaxmesh.from_mlir`.
        """
        if dialect not in READ:
            raise ArgumentValueError(f"program takes {' or '.join(map(repr, READ))}, got {quote(dialect)}.")
        file = load_text(self.text(dialect))
        text = decode_function(file, choose(file, None))
        ends = _ends(self.stages)
        assert isinstance(text, Text)
        text = with_element_types(dataclasses.replace(text, arguments=_with_axes(text, ends)), ends.dtypes)
        return import_program(file, text, None, functools.partial(_with_whole_arrays, self.make, ends, self.tensors))

    @functools.cached_property
    def _ttnn(self) -> CompilerText:
        """The TTNN text in the form that is judged and estimated."""
        written, ends = self.text("ttnn"), _ends(self.stages)
        stage = read_stage("ttnn", written, ends.axes)
        text = dataclasses.replace(stage.text, arguments=_with_axes(stage.text, ends))
        donated = () if self.lowered is None else self.lowered.boundary.donated
        return read_text(dataclasses.replace(stage, text=text), functools.cache(self._lower), donated)

    def _lower(self) -> object:
        made: Any = self.program("ttnn")
        return made.lower()

    def memory(self) -> PeakMemory:
        """Returns the memory of one device at the peak of the TTNN text, whose arguments stay on the devices.

        Raises:
          UpstreamError: the compiler refused the program before this text.
          VerifyError, MissingRuleError, UnsupportedError, ParseError: as of `jaxmesh.from_mlir`.
        """
        return memory_of(self._ttnn.called(), self._paths)

    @property
    def _paths(self) -> Sequence[str]:
        """The names of the arguments; empty if the text has others than the program."""
        known = () if self.lowered is None else self.lowered.boundary.paths
        return known if len(known) == len(self._ttnn.program.arguments) else ()

    @without_mesh()
    @progress("judge")
    def judge(
        self, cluster: str | None = None, *, python: str | os.PathLike[str] | None = None, timeout: float = 600
    ) -> Verdict:
        """Asks the real ttnn whether it accepts the compiler's TTNN text, and what memory it takes.

        The text is called in its own layouts; its arguments stay on the devices. A text with other
        operations than ttnn's is called as jaxmesh lowers it, and the verdict's `remarks` list these operations.

        Args:
          cluster: the name of a machine in `jaxmesh.analysis.machines`, in any case; by default the one that was
            described to the compiler.
          python: as of `Lowered.judge`.
          timeout: as of `Lowered.judge`.

        Raises:
          TtnnError, MeshError: as of `Lowered.judge`.
          UpstreamError, VerifyError, MissingRuleError, UnsupportedError, ParseError: as of `memory`.
        """
        where = {"cluster": cluster or self.cluster or DEFAULT, "python": python, "timeout": timeout}
        found = judge_program(self._ttnn.called(), self.memory(), **where)
        return dataclasses.replace(found, remarks=(*found.remarks, *self._ttnn.remarks))

    @without_mesh()
    @progress("estimate")
    def estimate(
        self,
        cluster: str | None = None,
        *,
        stored: str | Mapping[str, str] | None = None,
        fidelity: str | None = None,
    ) -> Estimate:
        """Estimates the least time of the compiler's TTNN text from published rates; see `Lowered.estimate`.

        Args:
          cluster: as of `judge`.
          stored: as of `Lowered.estimate`.
          fidelity: as of `Lowered.estimate`.

        Raises:
          ArgumentValueError, MeshError: as of `Lowered.estimate`.
          UpstreamError, VerifyError, MissingRuleError, UnsupportedError, ParseError: as of `memory`.
        """
        machine = cluster or self.cluster or DEFAULT
        return estimate_program(self._ttnn.called(), machine, stored, fidelity, None, self._paths)

    @without_mesh()
    @progress("compare")
    def compare(self, lowered: Stage, *, judge: bool = True) -> CompilerComparison:
        """Compares what the compiler made with what jaxmesh makes of the same program; shows as a table.

        Args:
          lowered: the program of jaxmesh, whose `upstream` method returned this result.
          judge: whether the real ttnn is asked for the peak memory of both; without one, a remark says so.

        Returns:
          Of each side the collectives by kind, mesh axis, count and bytes, layout changes, operations, element types,
          the peaks of DRAM and L1 with the arguments that stay, and the least time, or why it refused; and the source
          lines at which they send different bytes.
        """
        as_instance(Stage, "compare", "lowered", lowered)
        cluster, judge = self.cluster or DEFAULT, as_bool("compare", "judge", judge)
        return CompilerComparison(our_side(lowered, cluster, judge), self.side(judge=judge), cluster)

    def side(self, *, judge: bool = False) -> CompiledSide:
        """Returns the compiler's column of the comparison; `judge` says whether the real ttnn is asked."""
        name = self.plugin or "upstream"
        if self.refusal is not None:
            return CompiledSide(name, str(self.refusal))
        try:
            text = self._ttnn
        except JaxmeshError as error:
            return CompiledSide(name, f"not read by jaxmesh: {error}")
        return describe(name, self, (text.program, text.moved, text.remarks), self.cluster or DEFAULT, judge)

    @without_mesh()
    def diagnose(self, *args: object, seed: int = 0, **kwargs: object) -> Diagnosis:
        """Compares the compiler's texts with the unsharded program, value by value; see `jaxmesh.diagnose`.

        Args:
          args: the arguments of the program, whole arrays, the `MeshTensor`s that it takes, or pytrees of them; by
            default random ones of `seed`.
          seed: the seed of random arguments.
          kwargs: further arguments of the program, by name.
        """
        return diagnose(self, *_leaves(args, kwargs), seed=seed)

    @without_mesh()
    def repair(self, *args: object, seed: int = 0, **kwargs: object) -> Repair:
        """Changes the program until the compiler compiles it right, as little as is needed.

        A right program does not change. In another the operations change that the compiler makes wrongly or refuses:
        each is replaced by equal ones, or its operands are made whole. Where that does not do, or sends more, jaxmesh
        partitions the program, with every placement and every collective explicit. Each attempt is compiled, run on
        emulated devices and compared with this program, unsharded.

        Args:
          args: the arguments of the program, as of `diagnose`.
          seed: the seed of random arguments.
          kwargs: further arguments of the program, by name.

        Returns:
          The repaired program with its proof; false if a wrong or refused program stays so, for a named reason.

        Raises:
          UnsupportedError: the program of jaxmesh, which `upstream` compiles, is not known.
          UpstreamError: as of `upstream`.
        """
        from jaxmesh.stages.repair import repair_program

        if self.lowered is None:
            raise UnsupportedError(
                "repair needs the program, and this result has compiled texts alone; repair the result of "
                "jaxmesh.from_mlir(text).lower().upstream()."
            )
        seed = as_index("repair", "seed", seed)
        with progress("repair"):
            lowered = self.lowered
            return repair_program(
                self,
                lowered,
                lambda text: ask_upstream(text, self.make, (frozenset(), frozenset()), lowered, **self.asked),
                (_leaves(args, kwargs), seed),
            )

    def report(self, *args: object, seed: int = 0, **kwargs: object) -> str:
        """Returns the text of an issue for tt-mlir: the smallest program, what the compiler makes of it, the remedy.

        Args:
          args: the arguments of the program, as of `diagnose`.
          seed: the seed of random arguments.
          kwargs: further arguments of the program, by name.

        Raises:
          UnsupportedError, UpstreamError: as of `repair`.
        """
        from jaxmesh.analysis.repair.report import issue_text

        compiler = functools.partial(compile_text, **self.asked)
        return issue_text(self.repair(*args, seed=seed, **kwargs), self.source, self.plugin, self.cluster, compiler)


def ask_upstream(
    stablehlo: str, make: Callable[..., T], tensors: Ends, lowered: Repairable | None = None, **options: Any
) -> UpstreamResult[T]:
    """Compiles a StableHLO text; see `compile_text` for options and errors, and `import_program` for `make`."""
    made = compile_text(stablehlo, **options)
    about = made.stages, made.flatbuffer, made.refusal, made.plugin, made.cluster, made.log
    more: dict[str, Any] = {"source": stablehlo, "lowered": lowered, "asked": options}
    return UpstreamResult(*about, make=make, tensors=tensors, **more)


def _ends(stages: Mapping[str, str]) -> BoundaryShardings:
    """Returns the shardings at the ends; the program alone states them for arguments that nothing reads."""
    ends = read_boundary(stages[PARTITIONED])
    if WHOLE not in stages or all(sharding is not None for _, sharding in ends.arguments):
        return ends
    rows = zip(ends.arguments, read_boundary(stages[WHOLE]).arguments, strict=True)
    # Without a sharding in both, an argument is whole on every device.
    whole = ((end, (shape, asked or replicated(len(shape)))) for end, (shape, asked) in rows)
    return dataclasses.replace(ends, arguments=tuple(other if end[1] is None else end for end, other in whole))


def _local(end: End, sizes: dict[str, int], shape: tuple[int, ...]) -> Sharding | None:
    """Returns the sharding of an end of the program if its shards have a shape."""
    whole, sharding = end
    return sharding if sharding is not None and local_shape(whole, sharding, sizes) == shape else None


def _with_axes(text: Text, ends: BoundaryShardings) -> tuple[BoundaryAttributes, ...]:
    """Returns the arguments with the numbers of the mesh axes that split them."""
    numbers = {name: number for number, name in enumerate(ends.axes)}
    made: list[BoundaryAttributes] = []
    for argument, aval, end in zip(text.arguments, text.avals, ends.arguments, strict=True):
        sharding = _local(end, ends.axes, aval.shape)
        axes = None if sharding is None else tuple(numbers[a] for a in axes_of(sharding))
        made.append(argument if axes is None else dataclasses.replace(argument, varying=axes))
    return tuple(made)


def _with_whole_arrays(
    make: Callable[..., T],
    ends: BoundaryShardings,
    tensors: Ends,
    boundary: Boundary,
    jaxpr: Jaxpr,
    *rest: object,
    **keywords: Any,
) -> T:
    """Makes a program that takes and returns whole arrays in place of tensors on the devices, except `tensors`."""
    renamed = dict(zip(ends.axes, boundary.mesh.axis_names, strict=False))

    def sharding_of(end: Any, aval: Aval) -> NamedSharding | None:
        local = _local(end, ends.axes, tuple(aval.shape))
        if local is None or len(ends.axes) != len(boundary.mesh.axis_names):
            return None
        named = tuple(tuple(renamed[a] for a in axes) for axes in local)
        return NamedSharding(boundary.mesh, as_spec(named))

    def whole(argument: Argument, end: Any) -> Argument:
        there = argument.varying is not None
        return dataclasses.replace(argument, sharding=sharding_of(end, argument.aval)) if there else argument

    def kept(aval: Aval, end: Any, on_device: bool) -> Any:
        sharding = sharding_of(end, aval) if on_device else None
        if sharding is None:
            return None
        split = frozenset(splitting_axes(boundary.mesh, named_axes(sharding.spec)))
        return sharding.spec if compat.varying_axes(aval) == split else None

    residency: ResidencyMap = keywords["residency"]
    on_devices = [r is DEVICE and i not in tensors[1] for i, r in enumerate(residency.results)]
    rows = enumerate(zip(boundary.arguments, ends.arguments, strict=True))
    arguments = tuple(a if i in tensors[0] else whole(a, e) for i, (a, e) in rows)
    specs = tuple(kept(*row) for row in zip(jaxpr.out_avals, ends.results, on_devices, strict=True))
    boundary = dataclasses.replace(boundary, arguments=arguments, kept=specs if any(on_devices) else ())
    return make(boundary, jaxpr, *rest, **keywords)


def _leaves(args: object, kwargs: object) -> list[object]:
    """Returns the flat arguments that the compiler's texts take: of keys of random numbers their words."""
    return list(map(compat.words_of, jax.tree.leaves(join_tensors((args, kwargs)))))
