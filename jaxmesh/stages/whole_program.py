"""A program with global shapes, as its user wrote it, and with changes of single operations."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.dialects.signature import Boundary
from jaxmesh.frontends.jax.shard_map import is_region
from jaxmesh.frontends.stablehlo.trace import on_mesh
from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var, as_abstract
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.source_locations import source_line, source_location
from jaxmesh.jaxprs.stablehlo import stablehlo_text, struct
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree, lax
from jaxmesh.sharding.mesh import AnyMesh, with_devices

if TYPE_CHECKING:
    from jaxmesh.analysis.repair import LineChange
    from jaxmesh.frontends.stablehlo.text import StablehloText

_sharding: Any = jax.sharding
_DIMS = ("axes", "axis", "dimension", "dimensions")
"""The parameters of equations that name the dims along which their elements meet."""
_COMBINED = ("reduce", "scatter", "select_and_")
"""The beginnings of the names of primitives whose body combines elements."""
_CONSTRAINT = "sharding_constraint"
_FUNCTION = re.compile(r" \([^()]*\)$")
_OF_LINE = re.compile(
    r'^(#loc\d* = )loc\("(?:[^"\n]*/)?line ([0-9]{1,9}): ([\w.]+)[^"\n]*"(?:\(#loc\d*\))?\)$', re.MULTILINE
)
"""The location of an operation that stands for one on a line of a text."""


def mixed_dims(eqn: Eqn) -> frozenset[int]:
    """Returns the dims of the operands along which the elements of the results depend on other places.

    >>> [mixed_dims(e) for e in jax.make_jaxpr(lambda x: jax.lax.rev(jax.lax.neg(x), (1,)))(jnp.ones((2, 3))).eqns]
    [frozenset(), frozenset({1})]
    """
    first = _shape(eqn.invars[0]) if eqn.invars else ()
    shapes = [s for v in (*eqn.invars, *eqn.outvars) if (s := _shape(v))]
    dims = {d for name in _DIMS for d in _numbers(eqn.params.get(name))}
    dims |= {i for i, edges in enumerate(eqn.params.get("padding_config", ())) if any(edges)}
    alike = [s for s in shapes if len(s) == len(first)]
    dims |= {d for d, sizes in enumerate(zip(*alike, strict=True)) if len(set(sizes)) > 1}
    elementwise = all(s == first for s in shapes) and "dimension_numbers" not in eqn.params
    few = dims or elementwise or "broadcast_dimensions" in eqn.params
    return frozenset(dims if few else range(len(first)))


def _numbers(value: Any) -> Sequence[int]:
    values: Sequence[Any] = (value,) if isinstance(value, int) else value or ()
    return [int(v) for v in values if isinstance(v, int)]


def _shape(atom: Atom) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A program that its user wrote as StableHLO.

    Attributes:
      source: the text of its file.
      name: the name of its function, and the line: `main@3`.
      mesh: the mesh of the program.
    """

    source: str
    name: str
    mesh: AnyMesh

    def text(self) -> str:
        """Returns the text."""
        return self.source

    def opened(self) -> WholeProgram | None:
        """Returns the program as a jaxpr; None if no jaxpr has its meaning."""
        from jaxmesh.frontends.stablehlo.unsharded import trace_unsharded

        function = self._function()
        made, lines = trace_unsharded(function, as_abstract(self.mesh)), self._lines(function)
        if made is None:
            return None

        def line_of(eqn: Eqn, caller: str) -> str:
            return lines.get(source_location(eqn).line) or caller

        return WholeProgram(*made, function.function.name, line_of=line_of)

    def located(self, text: str) -> str:
        """Returns a StableHLO text that was made of this program with the source locations of its text."""
        lines = self._lines(self._function())

        def there(found: re.Match[str]) -> str:
            file, _, at = lines.get(int(found[2]), "").partition(":")
            return f"{found[1]}loc({mlir_string(found[3])}({mlir_string(file)}:{at}))" if at else found[0]

        return _OF_LINE.sub(there, text)

    def _function(self) -> StablehloText:
        """Reads the function again: its module takes more memory than the text."""
        from jaxmesh.frontends.mlir.module import choose, load_text
        from jaxmesh.frontends.stablehlo.text import read_function

        return read_function(choose(load_text(self.source), self.name))

    def _lines(self, function: StablehloText) -> dict[int, str]:
        """Returns the source lines of the operations by their lines in the text."""
        from jaxmesh.analysis.diagnose.source_lines import SourceLines
        from jaxmesh.frontends.stablehlo.unsharded import operation_locations

        lines, offset = SourceLines.of(self.source), function.function.piece.offset
        return {n: lines.of_operation(place, offset) for n, place in operation_locations(function).items()}


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """A program with global shapes.

    Attributes:
      jaxpr: the closed jaxpr.
      in_shardings: the shardings of the arguments; None where the partitioner decides.
      out_shardings: the same of the results.
      name: the name of the function.
      decided: the shardings of the results where nothing is asked, of a program with changes.
      line_of: returns the source line of an equation, for one of a package's function that of its caller.
      done: what was changed, as source lines and words.
    """

    jaxpr: Jaxpr
    in_shardings: Sequence[NamedSharding | None]
    out_shardings: Sequence[NamedSharding | None]
    name: str
    decided: Sequence[NamedSharding | None] = ()
    line_of: Callable[[Eqn, str], str] = source_line
    done: Mapping[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])

    def text(self) -> str:
        """Returns the StableHLO text as JAX lowers it."""
        return stablehlo_text(self.jaxpr, self.in_shardings, self.out_shardings, self.name)

    def opened(self) -> WholeProgram:
        """Returns this program."""
        return self

    def located(self, text: str) -> str:
        """Returns the text, which JAX has given the user's source locations."""
        return text

    def function(self, boundary: Boundary, out_tree: PyTreeDef) -> Any:
        """Returns the program as a function of JAX, with the shardings of arguments and results."""

        def run(*leaves: Any) -> list[Any]:
            return evaluate.eval_jaxpr(self.jaxpr, *leaves)

        return as_function(run, boundary, out_tree, self.in_shardings, self.out_shardings)

    def changed(self, mesh: AbstractMesh, changes: Mapping[str, LineChange]) -> WholeProgram:
        """Returns the program with changes of the operations at some source lines; on Explicit axes it stays."""
        if AxisType.Explicit in mesh.axis_types:
            return self
        done = dict[tuple[str, str], None]()
        changer = _Changer(mesh, changes, self.line_of, done)
        outs = [asked or own for asked, own in zip(self.out_shardings, self.decided or self.out_shardings, strict=True)]
        return replace(self, jaxpr=changer.change(self.jaxpr, ""), out_shardings=outs, done=done)

    def primitives(self, line: str) -> frozenset[str]:
        """Returns the names of the primitives on a source line, and of the primitives whose results are read there."""
        placed = list(_placed_eqns(self.jaxpr, self.line_of, ""))
        makers = {v: e.primitive.name for e, _ in placed for v in e.outvars}
        there = [e for e, at in placed if at == line]
        read = {makers[a] for e in there for a in e.invars if isinstance(a, Var) and a in makers}
        return frozenset(e.primitive.name for e in there) | read


WholeText = WrittenText | WholeProgram
"""A program with global shapes that has a StableHLO text."""


def as_function(
    run: Callable[..., list[object]], boundary: Boundary, out_tree: PyTreeDef, ins: Sequence[Any], outs: Sequence[Any]
) -> object:
    """Returns a jitted function of a program's trees that calls a function of flat arguments."""
    mesh = with_devices(boundary.mesh)
    places, explicit = [on_mesh(s, mesh) for s in ins], AxisType.Explicit in boundary.mesh.axis_types
    args, kwargs = jax.tree.unflatten(boundary.in_tree, [i in boundary.donated for i in range(len(places))])

    def call(*args: object, **kwargs: Any) -> PyTree:
        leaves = jax.tree.leaves((args, kwargs))
        if kwargs or explicit:
            # JAX takes shardings for arguments by position alone; on Explicit axes shardings are a part of types.
            place = _sharding.reshard if explicit else lax.with_sharding_constraint
            leaves = [x if s is None else place(x, s) for x, s in zip(leaves, places, strict=True)]
        return jax.tree.unflatten(out_tree, run(*leaves))

    call.__name__ = call.__qualname__ = boundary.name
    results = jax.tree.unflatten(out_tree, [on_mesh(s, mesh) for s in outs])
    options = {} if kwargs else {"in_shardings": jax.tree.unflatten(boundary.in_tree, places)[0]}
    if boundary.donated:
        options["donate_argnums"] = [i for i, flags in enumerate(args) if _all(flags)]
        options["donate_argnames"] = [name for name, flags in kwargs.items() if _all(flags)]
    return typed.jit(call, out_shardings=results, keep_unused=True, **options)


def _all(flags: object) -> bool:
    leaves = jax.tree.leaves(flags)
    return bool(leaves) and all(leaves)


def _place(line_of: Callable[[Eqn, str], str], eqn: Eqn, caller: str) -> str:
    """Returns the source line of an equation without the name of its function."""
    return _FUNCTION.sub("", line_of(eqn, caller))


def _placed_eqns(jaxpr: Jaxpr, line_of: Callable[[Eqn, str], str], caller: str) -> Iterator[tuple[Eqn, str]]:
    """Yields the equations at every depth with their source lines."""
    for eqn in walk.open_jaxpr(jaxpr).eqns:
        line = _place(line_of, eqn, caller)
        yield eqn, line
        for inner in walk.sub_jaxprs(eqn):
            yield from _placed_eqns(inner, line_of, line)


@dataclass(frozen=True, slots=True)
class _Changer:
    mesh: AbstractMesh
    changes: Mapping[str, LineChange]
    line_of: Callable[[Eqn, str], str]
    done: dict[tuple[str, str], None]

    def change(self, jaxpr: Jaxpr, caller: str) -> Jaxpr:
        """Changes a program, or a body in it, that an equation of a line calls."""
        if not any(line in self.changes for _, line in _placed_eqns(jaxpr, self.line_of, caller)):
            return jaxpr

        def perform(eqn: Eqn, operands: Sequence[jax.Array]) -> Sequence[Any]:
            return self._perform(eqn, operands, _place(self.line_of, eqn, caller))

        def run(*args: Any) -> list[Any]:
            return evaluate.interpret(jaxpr, args, perform)

        made = typed.make_jaxpr(run)(*[struct(v.aval) for v in walk.open_jaxpr(jaxpr).invars])
        return walk.in_form_of(jaxpr, made)

    def _perform(self, eqn: Eqn, operands: Sequence[jax.Array], line: str) -> Sequence[Any]:
        if is_region(eqn):
            return evaluate.bind_at_source(eqn, operands)
        change = self.changes.get(line)
        if change is None or (walk.sub_jaxprs(eqn) and not eqn.primitive.name.startswith(_COMBINED)):
            return evaluate.bind_at_source(map_sub_jaxprs(eqn, lambda inner: self.change(inner, line)), operands)
        with evaluate.at_source_of(eqn):
            for found in change.substitutes:
                if eqn.primitive.name in found.primitives:
                    results = found.perform(eqn, operands)
                    if results is not None:
                        self.done[line, f"{found.row}: {found.by}"] = None
                        return results
            if change.substitutes:
                return evaluate.bind(eqn, operands)
            return self._constrained(eqn, operands, line, change)

    def _constrained(self, eqn: Eqn, operands: Sequence[jax.Array], line: str, change: LineChange) -> Sequence[Any]:
        rank = len(_shape(eqn.invars[0])) if eqn.invars else 0
        reshards = eqn.primitive.name == _CONSTRAINT
        dims = frozenset(range(rank)) if change.whole or reshards else mixed_dims(eqn)
        if not dims:
            return evaluate.bind(eqn, operands)
        # A gather along all axes becomes one along each, the minor axis first.
        steps = range(len(self.mesh.axis_names) - 1 if change.stepwise else 0, -1, -1)
        given = [functools.reduce(lambda y, n: self._whole(y, dims, rank, n), steps, x) for x in operands]
        results = evaluate.bind(eqn, given)
        names = f"dim {min(dims)}" if len(dims) == 1 else f"dims {', '.join(map(str, sorted(dims)))}"
        how = ", gathered along one mesh axis after the other" if change.stepwise else ""
        self.done[line, f"{eqn.primitive.name} of values that are whole along {names}{how}"] = None
        kept = [reshards or (jnp.ndim(y) < rank and "axes" in eqn.params) for y in results]
        return [y if keeps else self._whole(y, dims, rank) for y, keeps in zip(results, kept, strict=True)]

    def _whole(self, x: jax.Array, dims: frozenset[int], rank: int, left: int = 0) -> Any:
        """Asks for a value whose dims, all if it has not `rank`, are split by the first `left` mesh axes alone."""
        if not jnp.ndim(x) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        closed = dims if jnp.ndim(x) == rank else range(jnp.ndim(x))
        axes = self.mesh.axis_names[:left]
        parts = math.prod(self.mesh.shape[a] for a in axes)
        split = axes if all(x.shape[d] % parts == 0 for d in closed) and len(closed) == 1 else None
        free: Iterator[object] = (split if d in closed else PartitionSpec.UNCONSTRAINED for d in range(jnp.ndim(x)))
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*free)))
