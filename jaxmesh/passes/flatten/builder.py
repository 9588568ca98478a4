"""From a jaxpr to a flat program: the rules that turn JAX's primitives into rows of the table, and who applies them.

A rule is one `@rule("primitive", ...)` function in one of the files of `jaxmesh/passes/flatten/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxmesh.dialects.program import UNROLL_LIMIT, Op, Port, Program, Shape, Type, Value, without_dead
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs import compat, evaluate, source_locations, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.passes.flatten.constant_folding import FOLDS
from jaxmesh.passes.flatten.storage import SMALL, Array, held_array, is_key, is_uniform, plain, storage_type

Rule = Callable[["Builder", Eqn, Sequence[Value]], "Sequence[Value] | Value"]
RULES: dict[str, Rule] = {}
"""By the name of the primitive."""
FOLDER = "jaxmesh/passes/flatten/"


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a function as the rule for primitives, by name.

    It gets the builder, the equation and its operands as values, and gives the result, or a row of them; their types
    must be those of the equation's results.
    """

    def enter(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return enter


@dataclass(slots=True)
class Options:
    """How to build a program.

    Attributes:
      unroll_limit: how many operations loops may make, all in all, when they are unrolled.
      keep_imported_ops: whether an op of an imported text stays one op; else the equations of its meaning are printed.
    """

    unroll_limit: int = UNROLL_LIMIT
    keep_imported_ops: bool = True


@dataclass(slots=True)
class Builder:
    """A program while it is made.

    Attributes:
      program: what is there so far.
      level: `ttir` or `ttnn`: which sharding operations the jaxpr holds.
      known: values that are known at compile time, as NumPy arrays; small integers and truth values only, for
        predicates, trip counts and static indices.
      line: the source line of the equation that is being built.
      unrolled: how many operations finished loops have made.
      loop_start: the number of operations when the outermost loop that is being unrolled began.
      floats: of integers that hold the bits of floats, those floats.
    """

    program: Program
    level: str
    options: Options = field(default_factory=Options)
    known: dict[Value, Array] = field(default_factory=dict[Value, Array])
    line: str = ""
    unrolled: int = 0
    loop_start: int | None = None
    floats: dict[Value, Value] = field(default_factory=dict[Value, Value])
    _constants: dict[Any, Value] = field(default_factory=dict[Any, Value])
    _large: dict[Value, Array] = field(default_factory=dict[Value, Array])
    _kept: list[Any] = field(default_factory=list[Any])
    _types: dict[Any, Type] = field(default_factory=dict[Any, Type])
    _makers: dict[Value, Op] = field(default_factory=dict[Value, Op])
    _live: walk.Memo[list[Eqn]] = field(default_factory=walk.Memo["list[Eqn]"])
    _lines: dict[Any, str] = field(default_factory=dict[Any, str])

    @property
    def mesh(self) -> Mapping[str, int]:
        """Axis names and sizes."""
        return self.program.mesh

    def place(self, eqn: Eqn) -> str:
        """The user's line of an equation; of one that a library made, the line that called it."""
        return source_locations.source_line(eqn) or self.line

    def shape(self, value: Value) -> Shape:
        """The shape of a value."""
        return self.program.types[value].shape

    def dtype(self, value: Value) -> np.dtype[Any]:
        """The element type of a value."""
        return self.program.types[value].dtype

    # --- operations ---

    def op(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: Any, /, **attrs: Any
    ) -> Value:
        """Appends `ttir.<name>` with one result; attributes that are None are left out."""
        return self.ops(f"ttir.{name}", operands, [(tuple(shape), dtype)], **attrs)[0]

    def ops(
        self, name: str, operands: Sequence[Value | None], types: Sequence[tuple[Shape, Any]], /, **attrs: Any
    ) -> tuple[Value, ...]:
        """Appends an operation, named with its dialect, with any number of results."""
        results = tuple([self.program.new(self._type(shape, dtype)) for shape, dtype in types])
        said = {k: plain(v) for k, v in attrs.items() if v is not None} if attrs else {}
        made = Op(name, tuple(operands), results, said, self.line)
        self.program.ops.append(made)
        for result in results:
            self._makers[result] = made
        return results

    def kept(
        self, name: str, operands: Sequence[Value | None], types: Sequence[tuple[Shape, Any]], said: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """Appends an operation as it was written; no rule looks through it, because it may be written in any form."""
        results = tuple([self.program.new(self._type(shape, dtype)) for shape, dtype in types])
        self.program.ops.append(Op(name, tuple(operands), results, said, self.line))
        return results

    def alike(self, value: Value, other: Value) -> None:
        """Says that a value holds what another one does."""
        for known in (self.known, self._large):
            if other in known:
                known[value] = known[other]

    def _type(self, shape: Shape, dtype: Any) -> Type:
        """A type; programs have few different ones."""
        key = (shape, dtype)
        if key not in self._types:
            self._types[key] = Type(plain(shape), np.dtype(dtype))
        return self._types[key]

    def maker(self, value: Value, name: str) -> Op | None:
        """The operation `ttir.<name>` that makes a value; None if another one does."""
        found = self._makers.get(value)
        return found if found is not None and found.name == f"ttir.{name}" else None

    def fill(self, value: Value) -> float | int | None:
        """The one number that fills a value, if it is a `full`."""
        made = self.maker(value, "full")
        return None if made is None else made.attributes["fill_value"]

    def same(self, name: str, operands: Sequence[Value | None], /, **attrs: Any) -> Value:
        """An operation whose result has the type of its first operand."""
        first = operands[0]
        assert first is not None
        return self.op(name, operands, self.shape(first), self.dtype(first), **attrs)

    def full(self, shape: Sequence[int], value: Any, dtype: Any) -> Value:
        """A tensor of one number; asked for twice, it is made once."""
        shape, kind = tuple(shape), np.dtype(dtype)
        number = np.asarray(value).astype(kind)
        key = ("full", shape, kind, number.tobytes())
        if key not in self._constants:
            fill = number.item() if kind.kind in "iub" else float(number)
            fill = int(fill) if kind.kind == "b" else fill
            self._constants[key] = made = self.op("full", (), shape, kind, shape=shape, fill_value=fill)
            self.remember(made, np.broadcast_to(number, shape))
        return self._constants[key]

    def constant(self, array: Any) -> Value:
        """A tensor of given numbers; those with one number only become a `full`."""
        held = np.asarray(array)
        if not held.size:
            return self.full(held.shape, 0, held.dtype)
        if is_uniform(held):
            return self.full(held.shape, held.reshape(-1)[0], held.dtype)
        # Large ones are told apart by identity: they are alive as long as the operation that holds them.
        content = held.tobytes() if held.nbytes <= 4096 else id(array)
        key = ("constant", held.shape, held.dtype, content)
        if key not in self._constants:
            self._constants[key] = made = self.op("constant", (), held.shape, held.dtype, value=held)
            self.remember(made, held)
            if held is not array:
                self._kept.append(array)
        return self._constants[key]

    def remember(self, value: Value, array: Array) -> None:
        """Says what a value holds, as far as it is of use: integers and truth values."""
        if array.dtype.kind in "iub" and 0 < array.size <= SMALL:
            self.known[value] = array
        elif array.dtype.kind in "iub":
            self._large[value] = array

    def _moved(self, x: Value, shape: Shape, move: Callable[[Array], Array], name: str, /, **attrs: Any) -> Value:
        """An operation that only moves elements; done here where they are all the same, or known and no more."""
        number = self.fill(x)
        if number is not None:
            return self.full(shape, number, self.dtype(x))
        held = self.known.get(x, self._large.get(x))
        if held is not None and math.prod(shape) <= SMALL:
            return self.constant(move(held))
        return self.op(name, [x], shape, self.dtype(x), **attrs)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape; nothing if it is that shape already."""
        shape = tuple(shape)
        return (
            x if self.shape(x) == shape else self._moved(x, shape, lambda a: a.reshape(shape), "reshape", shape=shape)
        )

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        """The dims in another order; nothing if it is the order already."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return x
        shape = tuple(self.shape(x)[d] for d in order)
        return self._moved(x, shape, lambda a: a.transpose(order), "permute", permutation=order)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """A tensor of the same rank, its dims of size 1 repeated up to `shape`."""
        old, shape = self.shape(x), tuple(shape)
        if old == shape:
            return x
        if 0 in shape:
            return self.full(shape, 0, self.dtype(x))
        counts = tuple(n if o != n else 1 for o, n in zip(old, shape, strict=True))
        return self._moved(x, shape, lambda a: np.tile(a, counts), "broadcast", broadcast_dimensions=counts)

    def cast(self, x: Value, dtype: Any) -> Value:
        """The values in another element type; nothing if it is that type already."""
        kind, old = np.dtype(dtype), self.dtype(x)
        if old == kind:
            return x
        number = self.fill(x)
        # From floats to integers only the device knows what becomes of numbers that are too large.
        if number is not None and (old.kind in "iub" or kind.kind not in "iub"):
            return self.full(self.shape(x), np.asarray(number).astype(old), kind)
        if x in self.known and kind.kind in "iub":
            return self.constant(self.known[x].astype(kind))
        return self.op("typecast", [x], self.shape(x), kind)

    def slice(self, x: Value, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """A static slice, steps positive; nothing if it is all."""
        begins, ends = tuple(begins), tuple(ends)
        step = (1,) * len(begins) if steps is None else tuple(steps)
        shape = tuple(max(-(-(e - b) // s), 0) for b, e, s in zip(begins, ends, step, strict=True))
        if shape == self.shape(x):
            return x
        cut = tuple(map(slice, begins, ends, step))
        return self._moved(x, shape, lambda a: a[cut], "slice_static", begins=begins, ends=ends, step=step)

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        """Tensors joined along a dim; those without elements are left out."""
        parts = [p for p in parts if self.shape(p)[dim]] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shape(parts[0]))
        shape[dim] = sum(self.shape(p)[dim] for p in parts)
        return self.op("concat", list(parts), shape, self.dtype(parts[0]), dim=dim)

    def reduce(self, kind: str, x: Value, dims: Sequence[int], keep: bool = False) -> Value:
        """`sum`, `max`, `min`, `prod`, `mean`, `reduce_and`, `reduce_or` over dims."""
        dims, old = tuple(dims), self.shape(x)
        if not dims:
            return x
        shape = [1 if d in dims else n for d, n in enumerate(old) if keep or d not in dims]
        return self.op(kind, [x], shape, self.dtype(x), dim_arg=dims, keep_dim=keep)

    # --- jaxprs ---

    def jaxpr(self, jaxpr: Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Builds a body in place: its results."""
        outer = self.line

        def build(eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
            self.line = self._line_of(eqn) or outer
            return self.eqn(eqn, xs)

        needed = self._needed(walk.open_jaxpr(jaxpr))
        results = evaluate.interpret(jaxpr, operands, build, self.held, self._literal, needed)
        self.line = outer
        return results

    def held(self, constant: Any) -> Value:
        """A constant of a jaxpr; of keys, their numbers."""
        return self.constant(held_array(constant))

    def _literal(self, literal: Any) -> Value:
        # The value may be Python's own number, which NumPy would take to have 64 bits.
        held, dtype = held_array(literal.val), literal.aval.dtype
        return self.constant(held if is_key(dtype) else np.asarray(held, dtype))

    def _needed(self, body: Jaxpr) -> list[Eqn]:
        """The equations whose results something reads; a body is looked at once, however often it is built."""

        def find() -> list[Eqn]:
            live = {a for a in body.outvars if not isinstance(a, compat.Literal)}
            kept: list[Eqn] = []
            for eqn in reversed(body.eqns):
                if not live.isdisjoint(eqn.outvars) or walk.is_ordered(eqn):
                    live.update(a for a in eqn.invars if not isinstance(a, compat.Literal))
                    kept.append(eqn)
            return kept[::-1]

        return self._live.get(body, find)

    def eqn(self, eqn: Eqn, operands: Sequence[Value]) -> Sequence[Value]:
        """Builds one equation: its results.

        Raises:
          MissingRuleError: the primitive has no rule.
        """
        made = self._folded(eqn, operands)
        if made is None:
            found = RULES.get(eqn.primitive.name)
            if found is None:
                raise missing(eqn, "TTIR has no row for it", self.line)
            made = found(self, eqn, operands)
        return (made,) if isinstance(made, int) else made

    def _folded(self, eqn: Eqn, operands: Sequence[Value]) -> Value | None:
        """The result as a constant, if the operands are known."""
        known = self.known
        if not operands or not all(v in known for v in operands):
            return None
        compute = FOLDS.get(eqn.primitive.name)
        if compute is None or len(eqn.outvars) != 1:
            return None
        shape, dtype = self.result(eqn)
        if dtype.kind not in "iub" or math.prod(shape) > SMALL:
            return None
        with np.errstate(all="ignore"):
            number = np.asarray(compute(eqn, [known[v] for v in operands]))
        return self.constant(np.broadcast_to(number, shape).astype(dtype))

    def _line_of(self, eqn: Eqn) -> str:
        """The source line; found once for equations that were traced at one place."""
        place = eqn.source_info.traceback
        if place not in self._lines:
            self._lines[place] = source_locations.source_line(eqn)
        return self._lines[place]

    def result(self, eqn: Eqn) -> tuple[Shape, np.dtype[Any]]:
        """The shape and element type of the only result."""
        return storage_type(eqn.outvars[0].aval, self.line)


def missing(eqn: Eqn, why: str, outer: str = "") -> MissingRuleError:
    """The error that a primitive, or this form of it, has no rule; the program still runs."""
    return MissingRuleError(
        f"no text for primitive {eqn.primitive.name!r} ({source_locations.source_line(eqn) or outer}): {why}. The "
        f"program still runs; to print it add a rule in {FOLDER}special.py, or in the file of its kind beside it."
    )


def build(
    jaxpr: Jaxpr,
    *,
    name: str,
    mesh: Mapping[str, int],
    level: str,
    arguments: Sequence[tuple[bool, str]],
    results: Sequence[tuple[bool, str]],
    options: Options | None = None,
) -> Program:
    """A closed jaxpr as a flat program.

    Args:
      jaxpr: of a traced or of a lowered program.
      name: the function's.
      mesh: axis names and sizes.
      level: `ttir` or `ttnn`, as the jaxpr is.
      arguments: per argument whether it is on the devices already, and its path.
      results: the same of the results.
      options: limits.

    Raises:
      MissingRuleError: a primitive has no rule.
      UnsupportedError: a loop whose trip count is not static, or too large; a branch whose predicate is not.
    """
    program = Program(name, dict(mesh))
    builder = Builder(program, level, options or Options())
    for aval, (presharded, path) in zip(jaxpr.in_avals, arguments, strict=True):
        value = program.new(Type(*storage_type(aval)))
        program.arguments.append(Port(value, presharded, path))
    outs = builder.jaxpr(jaxpr, [a.value for a in program.arguments])
    program.results = [Port(v, presharded, path) for v, (presharded, path) in zip(outs, results, strict=True)]
    return without_dead(program)
