"""The common base of traced and lowered programs: signature, flat program and its texts, recordings, JAX's stages."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.core import ShapedArray
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jaxmesh.dialects.imported_op import decompose
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.replication import is_enabled
from jaxmesh.dialects.residency import DEVICE, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.textual import check_executable
from jaxmesh.emit.languages import CONSTANT_LIMIT
from jaxmesh.errors import ArgumentTypeError, InexpressibleError, printable
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Aval, Jaxpr, without_mesh
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.sharding.shard_attributes import global_shape, join_shards
from jaxmesh.stages.arguments import check_call
from jaxmesh.stages.checked_calls import check_arguments
from jaxmesh.validate import as_bool, as_index, quote

if TYPE_CHECKING:
    from jaxmesh.analysis.record.filter import Only
    from jaxmesh.analysis.record.recording import Recording
    from jaxmesh.drawing.program_drawing import ProgramValues


class HasArguments:
    """The properties of a stage of `jax.stages` that describe its arguments."""

    _boundary: Boundary

    def __repr__(self) -> str:
        return f"{type(self).__name__}({printable(self._boundary.name)}, mesh={self._boundary.sizes})"

    @property
    def boundary(self) -> Boundary:
        """The signature of the program."""
        return self._boundary

    @property
    def args_info(self) -> Any:
        """The types of the arguments, and whether each is donated, in their tree, as of `jax.stages`."""
        make = jax.stages.ArgInfo
        donated = self._boundary.donated
        rows = [(ShapedArray(a.whole, a.aval.dtype, weak_type=a.aval.weak_type)) for a in self._boundary.arguments]
        return jax.tree.unflatten(self.in_tree, [make(aval, i in donated) for i, aval in enumerate(rows)])

    @property
    def in_tree(self) -> Any:
        """The tree of the arguments: `(args, kwargs)`."""
        return self._boundary.in_tree

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the leaves of the arguments that are donated, as of `jax.stages`."""
        return self._boundary.donated


def _result_struct(aval: Aval, spec: PartitionSpec | None, mesh: AnyMesh) -> jax.ShapeDtypeStruct:
    """Returns the type of a result for the caller; as in JAX, on Explicit axes alone its sharding is a part of it."""
    if spec is None:
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    shape = global_shape(aval.shape, spec, mesh.shape)
    explicit = AxisType.Explicit in mesh.axis_types
    return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=NamedSharding(mesh, spec) if explicit else None)


_CACHED_PROGRAMS = 8
"""The number of flat programs that a stage caches, one per set of options."""


class Stage(HasArguments, abc.ABC):
    """A traced or a lowered program.

    `inexpressible` is the error of a program that TTIR and TTNN cannot express. Such a program runs through JAX, and
    raises the error when its texts are requested.
    """

    _level: str
    _texts: Sequence[str]
    """The names of its texts; the first is the default."""

    def __init__(
        self, boundary: Boundary, jaxpr: Jaxpr, out_tree: PyTreeDef, inexpressible: InexpressibleError | None = None
    ) -> None:
        self._boundary = boundary
        self._jaxpr = jaxpr
        self._out_tree = out_tree
        self._programs: dict[Hashable, Program] = {}
        self.inexpressible = inexpressible

    @abc.abstractmethod
    def _flat(self, groups: bool, unroll_limit: int | None, strict: bool, **options: object) -> Program:
        """Returns a new flat program; `ttnn_program` describes the options."""

    @functools.cached_property
    def _decomposed(self) -> Jaxpr:
        """The jaxpr with the equations of their meaning in place of imported operations."""
        return decompose(self._jaxpr)

    @abc.abstractmethod
    def _analyse(self, jaxpr: Jaxpr) -> ResidencyMap:
        """Returns the residencies of a lowered program, or of a traced one with transfers in place of `mesh_shard`s."""

    @functools.cached_property
    def residency(self) -> ResidencyMap:
        """The residency of every value; of a traced program, with its `mesh_shard`s replaced by transfers."""
        return self._analyse(self._jaxpr)

    @functools.cached_property
    def _decomposed_residency(self) -> ResidencyMap:
        """The residency of every value of the decomposed program."""
        return self.residency if self._decomposed is self._jaxpr else self._analyse(self._decomposed)

    def _check_expressible(self) -> None:
        if self.inexpressible is not None:
            raise self.inexpressible

    def _program(self, groups: bool, unroll_limit: int | None, strict: bool, **options: Hashable) -> Program:
        """Returns the flat program, which all texts and answers of a stage share."""
        self._check_expressible()
        limit = None if unroll_limit is None else as_index("as_text", "unroll_limit", unroll_limit)
        asked = as_bool("as_text", "groups", groups), limit, as_bool("as_text", "strict", strict)
        key = *asked, *options.items()
        program = self._programs.get(key)
        if program is None:
            with progress("passes"):
                program = self._flat(*asked, **options)
            # Racing threads may build it twice; the first result wins. A full cache is replaced.
            cache = self._programs if len(self._programs) < _CACHED_PROGRAMS else {}
            program = cache.setdefault(key, program)
            self._programs = cache
        return program

    def as_text(
        self,
        dialect: str | None = None,
        *,
        debug_info: bool = False,
        groups: bool = True,
        unroll_limit: int | None = None,
        strict: bool = True,
        layouts: bool = False,
        constant_limit: int = CONSTANT_LIMIT,
    ) -> str:
        """Returns the program as text; needs no devices.

        Args:
          dialect: of a traced program `"ttir"` (the default), which `jaxmesh.from_mlir` reads back; of a lowered one
            `"ttnn"` (the default), 1:1 what the pass decided, or `"python"` or `"cpp"` as tt-mlir emits them; of both
            `"jaxpr"`, JAX's own text.
          debug_info: if True, MLIR carries each operation's source location.
          groups: whether groups of operations that have one op (softmax, rms_norm, linear, ...) are recognised; values
            change by no more than rounding.
          unroll_limit: how many operations the loops may become together; by default 2,048. The larger ones stay
            loops, as do those whose end only the devices know. A loop that TTNN cannot keep, because it moves what it
            computes, is unrolled all the same: to this limit, or by default to 200,000 operations.
          strict: of a lowered program, whether it is an error if Tenstorrent's own `ttnn` cannot run it (an element
            type or a mesh that it does not have); with False it is printed all the same, for the emulation.
          layouts: of `"ttnn"`, whether types carry the layout of each value and the element types of the devices, as
            the tools of tt-mlir read them.
          constant_limit: the most elements of a constant that the text spells, where it is used. Of larger ones MLIR
            has the elements behind the program, once; Python and C++ load them from the files that `export` writes.

        Raises:
          MissingRuleError: a primitive that TTIR, or an op that TTNN has no row for; the program still runs.
          UnsupportedError: a loop that is not static; or, if `strict`, what the real `ttnn` cannot run.
        """
        from jaxmesh.emit.targets import emit

        self._check_expressible()
        name = self._texts[0] if dialect is None else dialect
        if not isinstance(name, str) or name not in self._texts:
            stage, names = type(self).__name__.lower(), ", ".join(map(repr, self._texts))
            raise ArgumentTypeError(f"a {stage} program has the texts {names}, got {quote(dialect)}.")
        with progress(f"{name} text"):
            if name == "jaxpr":
                return self.jaxpr_text()
            program = self._program(groups, unroll_limit, strict)
            return emit(name, program, debug_info=debug_info, layouts=layouts, constant_limit=constant_limit)

    def default_program(self) -> Program:
        """Returns the flat program that `as_text` prints by default, also with ops that the real library refuses."""
        return self._program(True, None, False)

    def jaxpr_text(self) -> str:
        """Returns the jaxpr as text, the only text of a program that TTIR cannot express."""
        return walk.text(self._decomposed)

    @progress("reference executor")
    @without_mesh()
    def reference(self, *args: Any, check_replication: bool | None = None, **kwargs: object) -> PyTree:
        """Runs the program on the reference executor: NumPy, a plain loop over mesh coordinates; slow, the oracle.

        Takes the function's dynamic arguments and returns its results; a `MeshTensor` is a dict from mesh coordinate to
        array. `check_replication` means the same as in `Lowered.compile`. A traced program runs before any pass, with
        `mesh_shard` implemented from its definition.

        Raises:
          ReplicationError: replication is checked, and copies differ that are claimed to be equal.
        """
        from jaxmesh.analysis.reference_rules import RULES, reference_input
        from jaxmesh.runtime.reference import run_reference

        self._check_expressible()
        boundary, program = self._boundary, self._decomposed
        check_executable(program)
        shards = [reference_input(x) for x in check_call(boundary, args, kwargs)]
        if is_enabled(check_replication):
            check_arguments((args, kwargs), boundary.parameters)
            program = add_checks(program, boundary.sizes)
        outs = run_reference(program, boundary.residencies, boundary.sizes, shards, RULES[self._level])
        # The residency of a result is static: a branch that is not taken counts too.
        coordinates = list(itertools.product(*map(range, boundary.sizes.values())))
        for i, (x, residency) in enumerate(zip(outs, self.residency.results, strict=True)):
            outs[i] = dict.fromkeys(coordinates, x) if residency is DEVICE and not isinstance(x, dict) else x
        for i, spec in enumerate(boundary.kept):
            outs[i] = outs[i] if spec is None else join_shards(outs[i], spec, boundary.sizes)
        return jax.tree.unflatten(self._out_tree, outs)

    @property
    def jaxpr(self) -> Jaxpr:
        """The closed jaxpr.

        Raises:
          InexpressibleError: TTIR cannot express the program.
        """
        self._check_expressible()
        return self._decomposed

    @property
    def mesh(self) -> AnyMesh:
        """The mesh of the program."""
        return self._boundary.mesh

    @property
    def in_avals(self) -> list[Aval]:
        """The types of the arguments, flattened; local types for tensors on the devices."""
        return list(self._jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Aval]:
        """The types of the results, flattened; local types for results that stay on the devices."""
        return list(self._jaxpr.out_avals)

    @property
    def out_info(self) -> PyTree:
        """The types of the results, in their tree, as of `jax.stages`; local types for `MeshTensor`s."""
        avals, mesh = self.out_avals, self._boundary.mesh
        ends = zip(avals, self._boundary.kept or [None] * len(avals), strict=True)
        return jax.tree.unflatten(self._out_tree, [_result_struct(a, s, mesh) for a, s in ends])

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self._out_tree

    def values(self) -> ProgramValues:
        """Returns every value and its residency; `jaxmesh.visualize` draws them.

        Raises:
          InexpressibleError: TTIR cannot express the program.
        """
        from jaxmesh.analysis.program_flow import stage_values

        return stage_values(repr(self), self.jaxpr, self._boundary, self._decomposed_residency, self._out_tree)

    @progress("record")
    @without_mesh()
    def record(self, *args: object, only: Only = None, max_bytes: int | None = None, **kwargs: object) -> Recording:
        """Runs the program, and gives every equation's value on every device, keyed by source location.

        A traced program runs on the reference executor before any pass, a lowered one after the pass, a compiled one on
        the devices of its mesh. `jaxmesh.compare` finds where two recordings first differ. Every iteration of
        a loop is recorded, and of branches the one taken; calls, `jax.checkpoint` and custom functions count as their
        bodies. On the devices the program is compiled once more together with what it records, which XLA may
        round otherwise; a while loop of many iterations, and callbacks in it, may be run twice. Claims of
        replication are not checked: a recording shows what differs.

        Args:
          args: the arguments, as of a call; nothing is donated.
          only: what to record: a pattern such as `"dot_general"`, `"model.py:1*"` or `"attention"` (an op, a file and
            line, a function), a row of patterns of which one fits, or a function from a `jaxmesh.analysis.record.Place`
            to a bool.
          max_bytes: how many bytes a recording may hold, by default 1 GiB.
          kwargs: further arguments, as of a call.

        Raises:
          ArgumentTypeError: other arguments than the program was traced for.
          RecordingSizeError: the recording would hold more than `max_bytes` bytes.

        >>> import jax.numpy as jnp, jaxmesh as jm
        >>> from jax.sharding import PartitionSpec as P
        >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
        ... def double(x):
        ...     return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))
        >>> lowered = double.lower(jnp.arange(4.0))
        >>> bool(jm.compare(lowered.record(jnp.arange(4.0)), lowered.compile().record(jnp.arange(4.0))))
        True
        """
        from jaxmesh.analysis.record.filter import Wanted
        from jaxmesh.analysis.record.run_reference import record_reference

        leaves = check_call(self._boundary, args, kwargs)
        return record_reference(self._decomposed, self._boundary, leaves, Wanted.of(only, max_bytes), self._level)
