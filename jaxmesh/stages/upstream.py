"""A program as Tenstorrent's own compiler compiles it, from StableHLO with arrays alone, to texts that are programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxmesh.analysis.diagnose import Diagnosis, diagnose
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream import UpstreamProgram
from jaxmesh.analysis.upstream.comparison import CompiledSide, CompilerComparison, our_side, their_side
from jaxmesh.analysis.upstream.compile import compile_text
from jaxmesh.dialects.residency import DEVICE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.errors import ArgumentValueError, UnsupportedError
from jaxmesh.frontends.mlir.module import BoundaryAttributes, choose, load_text
from jaxmesh.frontends.mlir.text import Text, with_element_types
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of, local_shape, replicated
from jaxmesh.frontends.stablehlo.text import BoundaryShardings, End, read_boundary
from jaxmesh.frontends.stablehlo.trace import named_axes
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Jaxpr, as_abstract, without_mesh
from jaxmesh.jaxprs.evaluate import bind_at_source, interpret, trace_typed
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.shard_attributes import global_shape
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.stages.stage import Stage
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor
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

    @without_mesh()
    def compare(self, lowered: Stage, *, judge: bool = True) -> CompilerComparison:
        """Compares what the compiler made with what jaxmesh makes of the same program; shows as a table.

        Args:
          lowered: the program of jaxmesh, whose `upstream` method returned this result.
          judge: whether the real ttnn is asked for the peak memory of both; without one, a remark says so.

        Returns:
          Of each side the collectives by kind, mesh axis, count and bytes, layout changes, operations, element types,
          peak memory and least time, or why it refused; and the source lines at which they send different bytes.
        """
        as_instance(Stage, "compare", "lowered", lowered)
        judge = as_bool("compare", "judge", judge)
        with progress("compare"):
            return self._compare(lowered, judge)

    def _compare(self, lowered: Stage, judge: bool) -> CompilerComparison:
        cluster, name = self.cluster or DEFAULT, self.plugin or "upstream"
        ours = our_side(lowered.default_program, cluster, judge)
        if self.refusal is not None:
            return CompilerComparison(ours, CompiledSide(name, str(self.refusal)), cluster)
        axes, ttnn = read_boundary(self.text(PARTITIONED)).axes, self.text("ttnn")

        @functools.cache
        def lower() -> Any:
            made: Any = self.program("ttnn")
            return made.lower()

        return CompilerComparison(ours, their_side(name, ttnn, axes, lower, cluster, judge), cluster)

    @without_mesh()
    def diagnose(self, *args: Any, seed: int = 0, **kwargs: Any) -> Diagnosis:
        """Compares the compiler's texts with the unsharded program, value by value; see `jaxmesh.diagnose`.

        Args:
          args: the arguments of the program, whole arrays, the `MeshTensor`s that it takes, or pytrees of them; by
            default random ones of `seed`.
          seed: the seed of random arguments.
          kwargs: further arguments of the program, by name.
        """
        return diagnose(self, *_leaves(args, kwargs), seed=seed)

    @without_mesh()
    def repair(self, *args: Any, seed: int = 0, **kwargs: Any) -> Repair:
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

    def report(self, *args: Any, seed: int = 0, **kwargs: Any) -> str:
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
    jaxpr: Any,
    *rest: Any,
    **keywords: Any,
) -> T:
    """Makes a program that takes and returns whole arrays in place of tensors on the devices, except `tensors`."""
    renamed = dict(zip(ends.axes, boundary.mesh.axis_names, strict=False))

    def sharding_of(end: Any, aval: Any) -> NamedSharding | None:
        local = _local(end, ends.axes, tuple(aval.shape))
        if local is None or len(ends.axes) != len(boundary.mesh.axis_names):
            return None
        named = tuple(tuple(renamed[a] for a in axes) for axes in local)
        return NamedSharding(boundary.mesh, as_spec(named))

    def whole(argument: Argument, end: Any) -> Argument:
        there = argument.varying is not None
        return dataclasses.replace(argument, sharding=sharding_of(end, argument.aval)) if there else argument

    def kept(aval: Any, end: Any, on_device: bool) -> Any:
        sharding = sharding_of(end, aval) if on_device else None
        if sharding is None:
            return None
        split = frozenset(a for a in named_axes(sharding.spec) if boundary.mesh.shape[a] > 1)
        return sharding.spec if compat.varying_axes(aval) == split else None

    residency: ResidencyMap = keywords["residency"]
    on_devices = [r is DEVICE and i not in tensors[1] for i, r in enumerate(residency.results)]
    rows = enumerate(zip(boundary.arguments, ends.arguments, strict=True))
    arguments = tuple(a if i in tensors[0] else whole(a, e) for i, (a, e) in rows)
    specs = tuple(kept(*row) for row in zip(jaxpr.out_avals, ends.results, on_devices, strict=True))
    boundary = dataclasses.replace(boundary, arguments=arguments, kept=specs if any(on_devices) else ())
    return make(boundary, jaxpr, *rest, **keywords)


# --- tensors as arrays ------------------------------------------------------------------------------------------------


def tensor_arguments(boundary: Boundary) -> frozenset[int]:
    """Returns the numbers of the arguments that are `MeshTensor`s."""
    return frozenset(i for i, a in enumerate(boundary.arguments) if a.varying is not None and a.sharding is None)


def tensor_results(boundary: Boundary, residencies: Sequence[Residency]) -> frozenset[int]:
    """Returns the numbers of the results that are `MeshTensor`s."""
    kept = boundary.kept or (None,) * len(residencies)
    return frozenset(i for i, (r, s) in enumerate(zip(residencies, kept, strict=True)) if r is DEVICE and s is None)


def with_joined_tensors(boundary: Boundary, residency: ResidencyMap) -> tuple[Boundary, Jaxpr]:
    """Returns the program with arrays in place of `MeshTensor`s.

    The shards of a tensor are the pieces of the array's first dim, in the order of the mesh.

    Raises:
      UnsupportedError: an argument or a result is a scalar that differs between devices, which has no dim.
    """
    program, mesh = residency.program, boundary.mesh
    arguments, results = tensor_arguments(boundary), tensor_results(boundary, residency.results)
    specs = {
        i: _spec(boundary.arguments[i].aval, boundary.arguments[i].varying or (), i, "argument") for i in arguments
    }
    outs = {
        i: _spec(aval, [a for a in mesh.axis_names if a in compat.varying_axes(aval)], i, "result")
        for i, aval in enumerate(program.out_avals)
        if i in results
    }

    def flat(*xs: Any) -> list[Any]:
        shards = [full_to_shard(x, specs[i]) if i in specs else x for i, x in enumerate(xs)]
        values = interpret(program, shards, bind_at_source)
        return [shard_to_full(y, outs[i]) if i in outs else y for i, y in enumerate(values)]

    made = [
        dataclasses.replace(
            a, aval=jax.ShapeDtypeStruct(global_shape(a.aval.shape, specs[i], mesh.shape), a.aval.dtype), varying=None
        )
        if i in specs
        else a
        for i, a in enumerate(boundary.arguments)
    ]
    jaxpr = trace_typed(flat, [a.aval for a in made], [a.varying or () for a in made], as_abstract(mesh))
    return dataclasses.replace(boundary, arguments=tuple(made)), jaxpr


def _leaves(args: Any, kwargs: Any) -> list[Any]:
    """Returns the flat arguments that the compiler's texts take: of keys of random numbers their words."""
    return list(map(compat.words_of, jax.tree.leaves(join_tensors((args, kwargs)))))


def join_tensors(tree: Any) -> Any:
    """Returns a tree of arguments with the arrays that `with_joined_tensors` takes in place of `MeshTensor`s."""
    return jax.tree.map(_joined, tree, is_leaf=is_tensor)


def _joined(tensor: Any) -> Any:
    if not isinstance(tensor, MeshTensor):
        return tensor
    stored, rank = np.asarray(tensor.data), len(tensor.shape)
    if not tensor.varying:
        return stored
    axes = stored.ndim - rank
    first = np.moveaxis(stored, range(rank, stored.ndim), range(axes))
    return first.reshape(-1, *stored.shape[1:rank])


def _spec(aval: Any, varying: Sequence[str], number: int, what: str) -> PartitionSpec:
    if varying and not aval.shape:
        raise UnsupportedError(
            f"{what} {number} is a MeshTensor of scalars that differ along {', '.join(varying)}; Tenstorrent's "
            "compiler splits tensors along dims; make its shards of the shape [1]."
        )
    return PartitionSpec(tuple(varying)) if varying else PartitionSpec()
