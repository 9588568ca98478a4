"""Builds a flat program from the equations of a jaxpr, by the rules for JAX's primitives.

A rule is one `@RULES.add("primitive", ...)` function in a file of `jaxmesh/passes/flatten/`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jaxmesh.dialects.attributes import is_uniform
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, SHORT, UNROLL_LIMIT, Op, Program, Shape, Value
from jaxmesh.dialects.residency import ResidencyMap
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs import compat, evaluate, source_locations, walk
from jaxmesh.jaxprs.caches import lru_cached_by_config
from jaxmesh.jaxprs.compat import Eqn, Jaxpr, is_key
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, DType
from jaxmesh.jaxprs.walk import Contents
from jaxmesh.passes.flat_builder import FlatBuilder, plain
from jaxmesh.passes.flatten.constant_folding import FOLDS, SMALL, as_array, converted, fold, is_whole, storage_type

Rule = Callable[["Builder", Eqn, Sequence[Value]], "Sequence[Value] | Value"]
"""Rewrites an equation: from the builder, the equation and its operands to its result or results, of the same types."""
FOLDER = "jaxmesh/passes/flatten/"
_COMPLEX = frozenset({np.dtype(np.complex64), np.dtype(np.complex128)})
COMPLEX = "complex "
"""Before the name of a primitive: its rule for complex numbers."""


@dataclass(slots=True)
class Options:
    """Options of the pass.

    Attributes:
      unroll_limit: the most operations that unrolled loops may have in total.
      keep_imported_ops: True to keep imported operations as they were read, instead of decomposing them.
      keep_above: the operations that all unrolled loops may have together, above which larger ones stay loops; None to
        unroll all loops. Of a builder the operations above which a loop stays a loop.
      in_place: True to use operations that write to an operand's memory; nothing may read the operand afterwards.
      mark: returns what the operations of an equation have in place of their source line; None for the source line.
      scopes: True to put the named scopes behind the source lines, as `split_scope` reads them.
    """

    unroll_limit: int = UNROLL_LIMIT
    keep_imported_ops: bool = True
    in_place: bool = True
    keep_above: int | None = None
    mark: Callable[[Eqn], str] | None = None
    scopes: bool = False

    @classmethod
    def limited(
        cls,
        limit: int | None,
        keep_imported_ops: bool,
        mark: Callable[[Eqn], str] | None = None,
        scopes: bool = False,
    ) -> Options:
        """Returns options under which unrolled loops have at most `limit` operations together; None for the default."""
        most, above = (UNROLL_LIMIT, SHORT) if limit is None else (limit, limit)
        return cls(most, keep_imported_ops, keep_above=above, mark=mark, scopes=scopes)


@dataclass(slots=True)
class Builder(FlatBuilder):
    """Builds a flat program.

    Attributes:
      level: `ttir` or `ttnn`: which sharding operations the jaxpr holds.
      rules: by the name of a primitive.
      known: values known at compile time, as NumPy arrays; small integers and truth values only, for predicates, trip
        counts and static indices.
      unrolled: the number of operations of finished loops.
      loop_start: the number of operations at the start of the outermost loop being unrolled.
      floats: by a value that holds the bits of floats, those floats.
      composing: True inside a function in JAX that is a rule; its operations are at the line of the equation.
      pairs: by a complex value, which no operation computes, its real and its imaginary part.
      outer: in the body of a loop, the builder of what is around it.
      outside: by an argument of a body that stays the same, the value outside.
      reading: the operands of the loop that is being built.
      residencies: at the level of TTNN where the values of the jaxpr are.
      no_loop: why the last loop that was tried stays none.
    """

    level: str
    rules: Mapping[str, Rule]
    options: Options = field(default_factory=Options)
    known: dict[Value, Array] = field(default_factory=dict[Value, Array])
    unrolled: int = 0
    loop_start: int | None = None
    floats: dict[Value, Value] = field(default_factory=dict[Value, Value])
    pairs: dict[Value, tuple[Value, Value]] = field(default_factory=dict[Value, "tuple[Value, Value]"])
    _large: dict[Value, Array] = field(default_factory=dict[Value, Array])
    _contents: Contents = field(default_factory=Contents)
    _live: walk.Memo[list[Eqn]] = field(default_factory=walk.Memo["list[Eqn]"])
    _lines: dict[Any, str] = field(default_factory=dict[Any, str])
    composing: bool = False
    outer: Builder | None = None
    outside: dict[Value, Value] = field(default_factory=dict[Value, Value])
    reading: Sequence[Value] = ()
    residencies: ResidencyMap | None = None
    no_loop: str = ""

    @property
    def mesh(self) -> Mapping[str, int]:
        """Axis names and sizes."""
        return self.program.mesh

    def user_line(self, eqn: Eqn) -> str:
        """Returns the user's line of an equation; for one inside a library, the line that called the library."""
        return source_locations.source_line(eqn, self.line)

    # --- operations ---

    def op(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: DTypeLike, /, **attrs: Any
    ) -> Value:
        """Appends `ttir.<name>` with one result; attributes that are None are omitted."""
        return self.ops(f"ttir.{name}", operands, [(tuple(shape), dtype)], **attrs)[0]

    def ops(
        self, name: str, operands: Sequence[Value | None], types: Sequence[tuple[Shape, DTypeLike]], /, **attrs: object
    ) -> tuple[Value, ...]:
        """Appends an operation, named with its dialect, with any number of results."""
        results = tuple([self.program.new(self.tensor_type(shape, dtype)) for shape, dtype in types])
        attributes = {k: plain(v) for k, v in attrs.items() if v is not None} if attrs else NO_ATTRIBUTES
        self.append(Op(name, tuple(operands), results, attributes, self.line))
        return results

    def copy_known(self, value: Value, other: Value, builder: Builder | None = None) -> None:
        """Records for a value what is known at compile time of another one, maybe of another builder."""
        source = builder or self
        for known, theirs in ((self.known, source.known), (self._large, source._large)):
            if other in theirs:
                known[value] = theirs[other]

    def inside(self, **options: object) -> Builder:
        """Returns a builder of a body."""
        made = Builder(Program("", dict(self.mesh)), self.level, self.rules, replace(self.options, **options))
        made.outer, made.line, made._live = self, self.line, self._live
        return made

    def is_created(self, value: Value) -> bool:
        """Returns True if the operation that computes a value reads no tensor, as a constant."""
        found = self.makers.get(value)
        return found is not None and has_trait(found.name, Trait.CREATES)

    def once(self, value: Value, key: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """Calls `make`. If the value is a created tensor, caches the result under `key`."""
        if not self.is_created(value):
            return make()
        found = self._created.get((value, *key))
        if found is None:
            found = self._created[(value, *key)] = make()
        return found

    def fill(self, value: Value) -> float | int | None:
        """Returns the number that fills a value, if it is a `full`."""
        made = self.maker(value, "full")
        return None if made is None else made.attributes["fill_value"]

    def with_number(self, name: str, x: Value, number: ArrayLike) -> Value:
        """Appends an operation of a tensor and a number."""
        return self.same(name, [x, self.full((), number, self.dtype(x))])

    def full(self, shape: Sequence[int], value: ArrayLike, dtype: DTypeLike) -> Value:
        """Creates a tensor of one number; equal ones are created once."""
        shape, kind = tuple(shape), np.dtype(dtype)
        number = converted(np.asarray(value), kind)
        key = ("full", shape, kind, number.tobytes())
        if key not in self._created:
            fill = number.item() if kind.kind in "iub" else float(number)
            fill = int(fill) if kind.kind == "b" else fill
            self._created[key] = made = self.op("full", (), shape, kind, shape=shape, fill_value=fill)
            self.remember(made, np.broadcast_to(number, shape))
        return self._created[key]

    def constant(self, array: object) -> Value:
        """Creates a tensor of given numbers; a uniform one becomes a `full`, and equal ones are created once."""
        elements = np.asarray(array)
        if not elements.size:
            return self.full(elements.shape, 0, elements.dtype)
        if is_uniform(elements):
            return self.full(elements.shape, elements.reshape(-1)[0], elements.dtype)
        first = self._contents.first(elements)
        # The first array of a content lives as long as the builder.
        key = ("constant", id(first))
        if key not in self._created:
            self._created[key] = made = self.op("constant", (), first.shape, first.dtype, value=first)
            self.remember(made, first)
        return self._created[key]

    def remember(self, value: Value, array: Array) -> None:
        """Records the compile-time value of a tensor of integers or truth values."""
        if array.dtype.kind in "iub" and 0 < array.size <= SMALL:
            self.known[value] = array
        elif array.dtype.kind in "iub":
            self._large[value] = array

    def move(self, x: Value, shape: Shape, function: Callable[[Array], Array], name: str, /, **attrs: Any) -> Value:
        """Appends an operation that only moves elements; folds it if they are uniform, or few and known."""
        number = self.fill(x)
        if number is not None:
            return self.full(shape, number, self.dtype(x))
        elements = self.known.get(x, self._large.get(x))
        if elements is not None and math.prod(shape) <= SMALL:
            return self.constant(function(elements))
        return self.op(name, [x], shape, self.dtype(x), **attrs)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """Repeats dims of size 1 up to `shape`, of the same rank."""
        old, shape = self.shape(x), tuple(shape)
        if old == shape:
            return x
        if 0 in shape:
            return self.full(shape, 0, self.dtype(x))
        counts = tuple(n if o != n else 1 for o, n in zip(old, shape, strict=True))
        return self.move(x, shape, lambda a: np.tile(a, counts), "broadcast", broadcast_dimensions=counts)

    def cast(self, x: Value, dtype: DTypeLike) -> Value:
        """Converts to another element type; folds uniform and known numbers."""
        new, old = np.dtype(dtype), self.dtype(x)
        number = self.fill(x)
        # From floats to integers only the device knows what becomes of numbers that are too large.
        if number is not None and old != new and (is_whole(old) or not is_whole(new)):
            return self.full(self.shape(x), np.asarray(number).astype(old), new)
        if x in self.known and old != new and new.kind in "iub":
            return self.constant(self.known[x].astype(new))
        return FlatBuilder.cast(self, x, dtype)

    # --- jaxprs ---

    def jaxpr(self, jaxpr: Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Builds a body in place and returns its results."""
        outer = self.line

        def needed() -> Iterator[Eqn]:
            # The literals of an equation are created on its line, too.
            for eqn in self._needed_eqns(walk.open_jaxpr(jaxpr)):
                self.line = outer if self.composing else self._line_of(eqn, outer)
                yield eqn

        results = evaluate.interpret(jaxpr, operands, self.eqn, self.add_constant, self._literal, needed())
        self.line = outer
        return results

    def composed(
        self, function: Callable[..., object], operands: Sequence[Value], params: Mapping[str, object] | None = None
    ) -> list[Value]:
        """Builds what a function in JAX computes from the operands, all of it at the line of the current equation.

        With `params` the function takes them first, and its trace is cached: it may depend on nothing else.
        """
        types = tuple([(self.shape(x), self.dtype(x)) for x in operands])
        body = trace(function, types) if params is None else cached_trace(function, tuple(params.items()), types)
        before, self.composing = self.composing, True
        results = self.jaxpr(body, operands)
        self.composing = before
        return results

    def pair(self, real: Value, imaginary: Value) -> Value:
        """Returns a complex value of two parts."""
        made = self.program.new(self.tensor_type(self.shape(real), self.dtype(real)))
        self.pairs[made] = real, imaginary
        return made

    def add_constant(self, constant: object) -> Value:
        """Creates a constant of a jaxpr; for keys, of their words."""
        return self._numbers(as_array(constant))

    def _numbers(self, array: object) -> Value:
        elements: Any = np.asarray(array)
        if elements.dtype.kind != "c":
            return self.constant(elements)
        return self.pair(self.constant(elements.real), self.constant(elements.imag))

    def _literal(self, literal: Any) -> Value:
        dtype, value = literal.aval.dtype, literal.val
        if not is_key(dtype) and dtype.kind != "c" and not literal.aval.shape:
            return self.full((), evaluate.strip_type(value), dtype)
        return self._numbers(as_array(value) if is_key(dtype) else np.asarray(as_array(value), dtype))

    def _needed_eqns(self, body: Jaxpr) -> list[Eqn]:
        """Returns the equations whose results are used, cached for bodies that are built several times."""

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
        """Builds one equation and returns its results; raises `MissingRuleError` for a primitive without a rule."""
        if self.options.mark is not None and not self.composing:
            self.line = self.options.mark(eqn)
        is_pair = is_complex(eqn) or not self.pairs.keys().isdisjoint(operands)
        made = None if is_pair else self._fold(eqn, operands)
        if made is None:
            found = self.rules.get((COMPLEX if is_pair else "") + eqn.primitive.name)
            function = None if is_pair else compat.implementation(eqn)
            if found is not None:
                made = found(self, eqn, operands)
            elif function is not None:
                made = self.composed(function, operands)
            else:
                raise missing(eqn, "TTIR has no row for it", self.line)
        return (made,) if isinstance(made, int) else made

    def _fold(self, eqn: Eqn, operands: Sequence[Value]) -> Value | None:
        """Folds the equation to a constant if the known operands decide it."""
        if len(eqn.outvars) != 1 or eqn.primitive.name not in FOLDS or self.known.keys().isdisjoint(operands):
            return None
        shape, dtype = self.result(eqn)
        if dtype.kind not in "iub" or math.prod(shape) > SMALL:
            return None
        number = fold(eqn, [self.known.get(v) for v in operands])
        return None if number is None else self.constant(np.broadcast_to(number, shape).astype(dtype))

    def _line_of(self, eqn: Eqn, outer: str) -> str:
        """Returns the source line, cached for equations traced at one place; `outer` is the line of the caller."""
        place = eqn.source_info.traceback, self.options.scopes and eqn.source_info.name_stack, outer
        if place not in self._lines:
            line = source_locations.scoped_line if self.options.scopes else source_locations.source_line
            self._lines[place] = line(eqn, outer)
        return self._lines[place]

    def result(self, eqn: Eqn) -> tuple[Shape, DType]:
        """Returns the shape and element type of the only result."""
        return storage_type(eqn.outvars[0].aval, self.line)


def is_complex(eqn: Eqn) -> bool:
    """Returns True if a result of an equation is of complex numbers."""
    return not _COMPLEX.isdisjoint([getattr(v.aval, "dtype", None) for v in eqn.outvars])


def missing(eqn: Eqn, why: str, outer: str = "") -> MissingRuleError:
    """Returns the error for a primitive, or a form of it, without a rule."""
    return MissingRuleError(
        f"no text for primitive {eqn.primitive.name!r} ({source_locations.source_line(eqn, outer)}): {why}. To "
        f"print it add a rule in {FOLDER}special_functions.py, or in the file of "
        "its kind beside it."
    )


def trace(function: Callable[..., object], types: Sequence[tuple[Shape, DTypeLike]]) -> Jaxpr:
    """Returns the jaxpr of a function for operands of these shapes and element types."""
    return typed.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types])


@lru_cached_by_config(256)
def cached_trace(function: Callable[..., Any], params: tuple[Any, ...], types: tuple[Any, ...]) -> Jaxpr:
    """Traces a function that takes parameters first, once for all operands of the same types."""
    return trace(functools.partial(function, dict(params)), types)
