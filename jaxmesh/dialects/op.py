"""Definitions of operations: name, operands, attributes, results, traits, and what the operation means in JAX.

To add an operation of TTIR, write one `@OPS.define(...)` function in a file of `dialects/ttir/`. Frontends and
emitters both read the definitions and never import each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any, Literal

import jax

Shape = tuple[int, ...]
UPSTREAM = "tt-mlir 19c86fca"
"""The commit whose definitions are known."""
Kind = Literal["int", "float", "number", "bool", "str", "ints", "bools", "array", "enum", "any"]


class Trait(Enum):
    """A fact about an operation that passes and tools ask for."""

    MOVES = auto()
    """It only moves or creates data: its results are exact, bit for bit."""
    CREATES = auto()
    """Its result depends on no tensor."""
    VIEW = auto()
    """The result holds the same elements in the same order, in another shape."""
    RETURNS_OPERAND = auto()
    """The real function returns its operand itself if there is nothing to do."""
    ON_HOST = auto()
    """The real `ttnn` performs it in host memory, too."""
    COLLECTIVE = auto()
    """It needs a mesh, and its result is on the devices."""
    TRANSFERS = auto()
    """It splits a tensor over devices or joins its shards."""
    SENDS = auto()
    """Data moves from device to device."""
    REDUCES = auto()
    """It combines the values of several devices."""
    IN_FLOAT32 = auto()
    """It computes in float32 and rounds once, whatever the element type."""
    DECOMPOSED = auto()
    """An imported one is kept as the equations of its meaning, in which passes look for it."""
    DECOMPOSED_FOR_TTNN = auto()
    """TTNN has no such operation; an imported one is lowered from the equations of its meaning."""
    MEMORY = auto()
    """It concerns the mesh device, transfers, layouts or memory. Frontends and passes perform it by its name."""
    LAYOUT = auto()
    """It changes only where or how a tensor is stored."""
    CALL = auto()
    """It calls a function of the text. Frontends inline the function."""
    CONTROL_FLOW = auto()
    """It calls functions of the text, each any number of times. Frontends perform it by its name."""
    TEXTUAL = auto()
    """It is read, lowered and printed as MLIR; `jaxmesh.ttnn` has no function for it."""
    OPAQUE = auto()
    """Its meaning is unknown: it cannot be executed."""
    BY_ELEMENT_TYPE = auto()
    """Its meaning depends on element types that JAX lacks. Frontends, which read these types, compute it."""
    NOT_UPSTREAM = auto()
    """Upstream's dialect has no such operation: one in a text is read, with a warning, and never printed."""
    LATER = auto()
    """A version of upstream after the known one has it: one in a text is read without a warning, and never printed."""


class Write(Enum):
    """How an operation writes into the memory of an operand."""

    AS_RESULT = auto()
    """MLIR has no result: from there on the operand is the result."""
    HOLDS_RESULT = auto()
    """The result is in the operand's memory; the operand must not be read afterwards."""
    BESIDE_RESULTS = auto()
    """The operand changes, and no result is in its memory."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operation, which `attributes_of` reads.

    Kinds: `number` (whole or not), `ints` and `bools` (sequences), `array` (a NumPy array), `enum` (the dialect's name
    of a value, such as `sum`), `any`; the others are Python's types.

    `form` is the attribute's form in MLIR. Forms: `number` (`f32` or `i32`, as the value is), `i32s`
    (`[1 : i32, 2 : i32]`), `i64s` (`array<i64: 1, 2>`), `i32a` (`array<i32: 1, 2>`), `dense_i64` (a table of device
    ids), `shape` (`#ttnn.shape<2x1>`), `text` (as the text has it), and for an enum the dialect's attribute around it,
    such as `#ttcore.reduce_type`. A sequence is printed as `i32a` if the form is of a single integer, as of kind `any`;
    `edges` is an `i32a` that `reorder_edges` reorders.

    `required` is upstream's rule. With `assumed`, a text without the attribute is read with a warning and the default.
    With `must_be_empty`, only an empty value or the default is accepted: the attribute is read and never kept. With
    `later`, a version of upstream after the known one has the attribute: it is computed with, and never printed.
    """

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    form: str = "any"
    assumed: bool = False
    must_be_empty: bool = False
    later: bool = False

    def is_blank(self, value: Any) -> bool:
        """Returns True if a value is empty, or the default."""
        return value is None or value == self.default or (isinstance(value, (tuple, str, dict)) and not value)


_ATTRIBUTE = re.compile(r"(?:(empty|later) )?(\w+)(\??): (?:(\w+) )?([#\w.]+)(?: = (.*))?")
_KINDS: Mapping[str, Kind] = {
    "f32": "float", "bool": "bool", "string": "str", "i32a": "ints", "edges": "ints", "i32s": "ints", "i64s": "ints",
    "shape": "ints", "bools": "bools", "dense": "array", "number": "number",
    **dict.fromkeys(("si8", "si32", "ui32", "i32", "i64", "si64"), "int"),
}  # fmt: skip
"""By form; `#...` are those of enums, and others of any kind."""


def attributes_of(text: str) -> tuple[Attribute, ...]:
    """Returns the attributes that a text declares: `name: form`, with a default `name: form = default`.

    `name?` is optional. Texts of earlier versions leave out a required attribute with a default. Before the form may be
    the kind, and before the name `empty` for `must_be_empty`, and `later`.

    >>> [(a.name, a.kind, a.required, a.default) for a in attributes_of("sizes?: i64s = 2x3, stride: any i32")]
    [('sizes', 'ints', False, (2, 3)), ('stride', 'any', True, None)]
    """
    return tuple(map(_read_attribute, text.split(", "))) if text else ()


def _read_attribute(text: str) -> Attribute:
    found = _ATTRIBUTE.fullmatch(text)
    assert found is not None, text
    about, name, optional, kind, form, default = found.groups()
    known: Any = kind or _KINDS.get(form, "enum" if form.startswith("#") else "any")
    assumed = not optional and default is not None
    value = None if default is None else _default(known, default)
    return Attribute(name, known, not optional, value, form, assumed, about == "empty", about == "later")


def _default(kind: Kind, text: str) -> Any:
    if text == "none" and kind not in ("enum", "str"):
        return None
    match kind:
        case "bool":
            return text == "true"
        case "float":
            return float(text)
        case "int" | "any":
            return int(text)
        case "ints":
            return tuple(map(int, text.split("x"))) if text != "()" else ()
        case _:
            return text.strip('"')


def reorder_edges(padding: Sequence[int]) -> tuple[int, ...]:
    """Returns the padding of a pool or a transposed convolution in the other order, if it has four numbers.

    A call of `ttnn` has (top, bottom, left, right), MLIR (top, left, bottom, right): `runtime/lib/ttnn/operations/pool/
    pool2d.cpp` of tt-mlir reorders them at 19c86fca.

    >>> reorder_edges((1, 2, 3, 4))
    (1, 3, 2, 4)
    """
    if len(padding) != 4:
        return tuple(padding)
    top, second, third, right = padding
    return (top, third, second, right)


@dataclass(frozen=True, slots=True)
class Call:
    """One occurrence of an operation: operands inside a typed trace, checked attributes, declared result types.

    `title` names the operation in messages.
    """

    definition: OpDef
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    results: tuple[jax.ShapeDtypeStruct, ...]
    mesh: Mapping[str, int]
    title: str

    @property
    def name(self) -> str:
        """The operation's name, without the dialect."""
        return self.definition.name

    @property
    def result(self) -> jax.ShapeDtypeStruct:
        """The declared type of the only result."""
        return self.results[0]

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an attribute; its default if it is absent."""
        return self.attributes[name]


Meaning = Callable[[Call], Any]
Arity = tuple[int, int | None]
"""The least and the most values; None for any number."""


@dataclass(frozen=True)
class OpDef:
    """The definition of an operation.

    Attributes:
      dialect: `ttir`, `ttnn`, `ttcore`; the prefix of `full_name`.
      name: without the dialect.
      operands: how many tensors it takes.
      attributes: its attributes.
      meaning: computes the results in JAX; None if frontends and passes perform it by its name.
      results: how many it has.
      casts: True if the declared element type of a result may differ from the meaning's, as of comparisons.
      traits: facts about it.
      options: attributes that say how to compute, not what: they are read, and never printed.
      writes: by number of an operand, how the operation writes into its memory.
      handles: how many operands it takes beside tensors: the mesh device, semaphores.
      operand_names: the operands as `textual.txt` names them, `name?` for an optional one; else empty.
      former: the operation of the same name in texts of earlier versions.
    """

    dialect: str
    name: str
    operands: Arity
    attributes: tuple[Attribute, ...]
    meaning: Meaning | None
    results: Arity = (1, 1)
    casts: bool = False
    traits: frozenset[Trait] = frozenset()
    options: frozenset[str] = frozenset()
    writes: Mapping[int, Write] = field(default_factory=dict[int, Write])
    handles: Arity = (0, 0)
    operand_names: tuple[str, ...] = ()
    former: OpDef | None = None

    @cached_property
    def full_name(self) -> str:
        """The name with the dialect, `ttir.add`."""
        return f"{self.dialect}.{self.name}"

    @cached_property
    def overwritten(self) -> int | None:
        """The number of the operand that is the result in MLIR; None if MLIR has a result."""
        return next((i for i, write in self.writes.items() if write is Write.AS_RESULT), None)

    @cached_property
    def in_place(self) -> int | None:
        """The number of the operand whose memory holds the result; None if the result has its own memory."""
        return next((i for i, write in self.writes.items() if write is not Write.BESIDE_RESULTS), None)

    @cached_property
    def groups(self) -> int | None:
        """How many operand groups `operandSegmentSizes` counts; None if upstream's op does not have it."""
        if self.operand_names:
            return len(self.operand_names) if sum(n[-1] in "?*" for n in self.operand_names) > 1 else None
        least, most = self.operands
        return most if most is not None and most - least >= 2 else None

    def kept(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes that a program keeps: its own, without operand groups and what must be empty."""
        dropped = {a.name for a in (*SEGMENTS, *self.attributes) if a.must_be_empty or a in SEGMENTS}
        return {k: v for k, v in attributes.items() if k not in dropped and "." not in k}

    @cached_property
    def by_name(self) -> Mapping[str, Attribute]:
        """The attributes by name."""
        return {a.name: a for a in self.attributes}

    @cached_property
    def has_attributes(self) -> bool:
        """True if the operation has an attribute that may hold something."""
        return not all(a.must_be_empty for a in self.attributes)

    @cached_property
    def listed_attributes(self) -> str:
        """The names of the attributes as a clause of a message."""
        names = ", ".join(a.name for a in self.attributes if not a.must_be_empty)
        return f"its attributes are: {names}" if names else "it has no attributes"

    @cached_property
    def assumptions(self) -> Mapping[str, Any]:
        """The values of required attributes that texts of earlier versions leave out, if they are known."""
        return {a.name: a.default for a in self.attributes if a.assumed and a.default is not None}

    def in_form_of(self, attributes: Iterable[str], results: int) -> OpDef:
        """Returns the definition that an occurrence with these attributes and results follows: this or a former one."""
        if self.former is None:
            return self
        has_result = self.overwritten is not None and results > 0
        own = {*self.by_name, *self.options}
        known = own | self.former.by_name.keys()
        older = any(name in known and name not in own for name in attributes)
        return self.former if has_result or older else self


SEGMENTS = attributes_of("operandSegmentSizes?: i32s, resultSegmentSizes?: i32s")
"""The attributes that MLIR writes on any op with optional operands, and older TTIR on every op."""


class TtirOps(dict[str, OpDef]):
    """Operations of TTIR by name, without the dialect."""

    def define(
        self,
        name: str,
        operands: int | Arity,
        *texts: str,
        results: Arity = (1, 1),
        casts: bool = False,
        traits: Sequence[Trait] = (),
        options: Sequence[str] = (),
        writes: Mapping[int, Write] | None = None,
        former: OpDef | None = None,
    ) -> Callable[[Meaning], Meaning]:
        """Adds an operation, with the decorated function as its meaning and its attributes as texts; see `OpDef`."""

        def enter(meaning: Meaning) -> Meaning:
            assert name not in self, name
            declared = attributes_of(", ".join(texts))
            definition = OpDef("ttir", name, arity(operands), declared, meaning, results, casts, frozenset(traits))
            self[name] = replace(definition, options=frozenset(options), writes=writes or {}, former=former)
            return meaning

        return enter


def arity(count: int | Arity) -> Arity:
    """Returns the least and the most of a count that may be one number."""
    return (count, count) if isinstance(count, int) else count


def describe(x: Any) -> str:
    """Returns the type of an array as messages show it."""
    return f"{x.dtype}{list(x.shape)}"
