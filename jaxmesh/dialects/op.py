"""Definitions of operations: name, operands, attributes, results, traits, and what the operation means in JAX.

To add an operation of TTIR, write its row in `dialects/operations.txt` and one `@OPS.define(...)` function in a file of
`dialects/ttir/`. Frontends and emitters both read the definitions and never import each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any

import jax
from jax.typing import DTypeLike

from jaxmesh.dialects.attributes import Attribute, Attributes, attributes_of
from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs.untyped import Shape, jnp

UPSTREAM = "tt-mlir 19c86fca"
"""The commit whose definitions are known."""


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
class Call:
    """One occurrence of an operation: operands inside a typed trace, checked attributes, declared result types.

    `title` names the operation in messages.
    """

    definition: OpDef
    operands: tuple[jax.Array, ...]
    attributes: Attributes
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

    def rule_error(self, rule: str) -> VerifyError:
        """Returns the error for a broken rule of an op."""
        return VerifyError(f"{self.title}: {rule}.")

    def require(self, holds: bool, rule: str) -> None:
        """Raises a VerifyError that cites the rule, unless it holds."""
        if not holds:
            raise self.rule_error(rule)

    def check_dim(self, dim: int, rank: int, name: str) -> int:
        """Checks that a dim is in range, and returns it counted from the front."""
        if not -rank <= dim < rank:
            allowed = f"{-rank} to {rank - 1}" if rank else "none, a scalar has no dims"
            raise self.rule_error(f"{name} = {dim} is out of range for rank {rank}; allowed: {allowed}")
        return dim % rank

    def check_dims(self, dims: Sequence[int], rank: int, name: str) -> Shape:
        """Checks that dims are in range and different, and returns them counted from the front."""
        made = tuple(self.check_dim(d, rank, name) for d in dims)
        self.require(len(set(made)) == len(made), f"{name} = {list(dims)} names a dim twice (rank {rank})")
        return made

    def check_length(self, name: str, values: Sequence[object], count: int, what: str) -> None:
        """Checks the length of a sequence."""
        rule = f"{name} has {count} entries, {what}, but {list(values)} has {len(values)}"
        self.require(len(values) == count, rule)

    def check_rank(self, x: jax.Array, rank: int, name: str) -> None:
        """Checks the rank of an operand."""
        self.require(x.ndim == rank, f"{name} has rank {rank}, but {describe(x)} has rank {x.ndim}")

    def check_shape(self, x: jax.Array, shape: Sequence[int], name: str) -> None:
        """Checks the shape of an operand."""
        self.require(x.shape == tuple(shape), f"{name} has the shape {list(shape)}, but got {describe(x)}")

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        """Checks that shapes broadcast by NumPy's rules, and returns the joint shape."""
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
        out: list[int] = []
        for sizes in zip(*padded, strict=True):
            wide = {n for n in sizes if n != 1}
            if len(wide) > 1:
                raise self.rule_error(f"the shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
            out.append(wide.pop() if wide else 1)
        return tuple(out)

    def fit_number(self, name: str, value: float, dtype: DTypeLike) -> float:
        """Checks that a number fits an element type, and returns it; for integers truncated towards zero."""
        if not jnp.issubdtype(dtype, jnp.integer):
            return value
        info = jnp.iinfo(dtype)
        least, most = int(info.min), int(info.max)
        # MLIR writes the upper half of an unsigned type as negative numbers.
        lowest = -(most // 2) - 1 if least == 0 else least
        fits = math.isfinite(value) and lowest <= int(value) <= most
        self.require(fits, f"{name} = {value} does not fit {dtype}, which holds {least} to {most}")
        return int(value) % (most + 1) if least == 0 else int(value)

    def optional_operands(self, names: Sequence[str]) -> list[Any]:
        """Returns the operands by position; None where `operandSegmentSizes` leaves out an operand."""
        sizes = self["operandSegmentSizes"]
        if sizes is None:
            return [*self.operands, *[None] * (len(names) - len(self.operands))]
        # A text of an earlier version may lack groups that came later, or count a destination.
        mine = (*sizes, *[0] * (len(names) - len(sizes)))[: len(names)]
        good = (
            self.definition.operands[0] <= len(sizes) <= len(names) + 1
            and set(mine) <= {0, 1}
            and sum(mine) == len(self.operands)
        )
        wanted = f"0 or 1 for each of {', '.join(names)}, {len(self.operands)} in all"
        self.require(good, f"operandSegmentSizes say {wanted}, got {list(sizes)}")
        rest = iter(self.operands)
        return [next(rest) if n else None for n in mine]


Results = jax.Array | Sequence[jax.Array]
Meaning = Callable[[Call], Results]
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
      operand_names: the operands as `operations.txt` names them, `name?` for an optional one; empty if
        `jaxmesh.ttnn` has its function.
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

    def kept(self, attributes: Attributes) -> dict[str, Any]:
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
    def assumptions(self) -> Attributes:
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


def describe(x: Any) -> str:
    """Returns the type of an array as messages show it."""
    return f"{x.dtype}{list(x.shape)}"
