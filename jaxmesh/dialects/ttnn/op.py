"""Definitions of operations of TTNN: TTIR's facts, with a Python call and a C++ call.

To add an operation of TTNN, write one `define(OPS, ...)` in a file of `dialects/ttnn/`. The emitters print calls from
it, `jaxmesh.ttnn` takes calls by it, the importer reads operations by it: and never by its name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal

from jaxmesh.dialects import ttir
from jaxmesh.dialects.op import Arity, Attribute, Call, Meaning, OpDef, Trait, Write, arity
from jaxmesh.dialects.ttnn.forms import TILES, Forms, Occurrence, Rule
from jaxmesh.errors import MissingRuleError, VerifyError

NEEDED: Any = inspect.Parameter.empty
Source = Literal[
    "operand", "operands", "operand_or_attribute", "operand_device", "attribute", "memory_config", "dtype",
    "changed_dtype", "layout", "shape", "device", "mesh_device", "compute_config", "text", "none",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Param:
    """One argument of a call, as printed; for Python also one parameter of the function, as called.

    Attributes:
      name: the parameter's name in the real API.
      source: where its value comes from: `operand` (number `key`; None if it is absent), `operands` (all, in a list),
        `operand_or_attribute` (the attribute that `form` names, where the operand is absent), `operand_device` (the
        mesh device of operand number `key`), `attribute` (called `key`), `memory_config`,
        `dtype`, `layout`, `shape` (of the result), `changed_dtype` (of the result if the operand has another one),
        `device` (the last operand), `mesh_device` (the same; in C++ a pointer, not an option), `compute_config`,
        `text` (always `key`, in the target language), or `none`.
      key: the number or name for the source.
      form: how an attribute is printed: `value` (a number, truth value, string, None, or `[1, 2]` for several),
        `shape` (`ttnn.Shape([1, 2])`), `float`, `coordinate` (`ttnn.MeshCoordinate((0, 1))`), `path` (a string: a
        file in the program's folder), `enum:X` (`X.<value>`, value as `spell` maps it), `string:X` (the same as a
        string), `array` (all numbers of an array in one list,
        row-major; `::std::vector<float>{..}` in C++), `pairs` (low and high numbers by turns, as `[[0, 1], [2, 3]]`;
        `::ttsl::SmallVector<::ttnn::PadSpecDim>{{0, 1}, {2, 3}}` in C++), and for integers in C++ `int32s`, `int64s`
        (`::ttsl::SmallVector`), `vector` (`::std::vector<int32_t>`), `uint32s` (`::std::array<uint32_t, n>`), `span`
        (`ttsl::make_const_span` of a variable that is an `int32s`). The source `shape` has the forms `shape` and
        `value`.
      keyword: True if Python prints it as `name=value`.
      default: the real API's default; `NEEDED` if there is none.
      if_set: True if it is printed only when the attribute is there.
      also: other names of the parameter in overloads of the real function, such as of the one that takes a number.
      on_host: True if it is printed when the result is a host tensor; the device and the memory config are unset then.
    """

    name: str
    source: Source
    key: int | str = 0
    form: str = "value"
    keyword: bool = False
    default: Any = NEEDED
    on_host: bool = True
    if_set: bool = False
    also: tuple[str, ...] = ()


SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "ReduceType": {"sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod"},
    "AttentionMaskType": {"none": "None", "causal": "Causal", "arbitrary": "Arbitrary"},
    "StochasticRounding": {"True": "Enabled", "False": "Disabled"},
    "GeluVariant": {"none": "Accurate", "tanh": "Tanh"},
    "Layout": {"tile": "TILE", "row_major": "ROW_MAJOR"},
    "BufferType": {"dram": "DRAM", "l1": "L1", "l1_small": "L1_SMALL", "system_memory": "SYSTEM_MEMORY"},
    "DataType": {
        "f32": "FLOAT32", "bf16": "BFLOAT16", "si32": "INT32", "u32": "UINT32", "u16": "UINT16", "u8": "UINT8",
        "bfp_bf8": "BFLOAT8_B", "bfp_bf4": "BFLOAT4_B",
    },
    "ScatterReduction": {"sum": "add", "prod": "multiply", "max": "amax", "min": "amin", "invalid": ""},
}  # fmt: skip
"""By the last part of an enum's name: the enum's names of the dialect's values, where they differ; empty for none."""


def spell(enum: str, value: str) -> str:
    """Returns the API's name of a value of the dialect's enum.

    Raises:
      VerifyError: the enum has no such value; another text would be code of the printed program.

    >>> spell("ttnn.ReduceType", "sum"), spell("ScatterReduction", "max")
    ('Sum', 'amax')
    """
    names = SPELLINGS[enum.replace("::", ".").rsplit(".", 1)[-1]]
    if value not in names and value not in names.values():
        raise VerifyError(f"{enum} has the values {', '.join(names)}, got {value!r:.100}; correct the attribute.")
    return names.get(value, value)


def inside_folder(path: str) -> str:
    """Returns the path of a file that a program reads or writes, which is in the program's folder.

    Raises:
      VerifyError: the path leaves the folder: a text could name any file of its reader.

    >>> inside_folder("tensors/weights.tensorbin")
    'tensors/weights.tensorbin'
    """
    if (
        not path
        or PurePosixPath(path).is_absolute()
        or set(path) & {"\0", "\\", ":"}
        or ".." in PurePosixPath(path).parts
    ):
        raise VerifyError(
            f"a program reads and writes files in its own folder alone, got the path {path!r:.200}; name a file in the "
            "folder, such as tensors/weights.tensorbin."
        )
    return path


_FIELD = re.compile(r"(\w+) = (?:#ttnn\.core_coord<([0-9, ]+)>|(\w+))", re.ASCII)


def parse_config(text: str) -> dict[str, int | bool | str | tuple[int, ...]]:
    """Returns the fields of a config of the dialect; a word is the name of an element type.

    >>> parse_config("#ttnn.sdpa_program_config<grid = #ttnn.core_coord<8, 4>, q_chunk_size = 32, exact = true>")
    {'grid': (8, 4), 'q_chunk_size': 32, 'exact': True}
    """
    found: dict[str, int | bool | str | tuple[int, ...]] = {}
    for name, place, word in _FIELD.findall(text):
        if place:
            found[name] = tuple(map(int, place.split(",")))
        elif word in ("true", "false") or word.isdigit():
            found[name] = word == "true" if word.isalpha() else int(word)
        elif name.endswith("dtype") and word in SPELLINGS["DataType"]:
            found[name] = SPELLINGS["DataType"][word]
        else:
            raise MissingRuleError(f"{text}: {name} = {word} has no call in Python and C++; leave it out.")
    return found


_MEMORY = re.compile(r"#ttnn\.memory_config<#(?:ttnn\.buffer_type<(\w+)>|(\w+)), <interleaved>>")


def parse_memory(text: str) -> str:
    """Returns the memory of a memory config of the dialect whose tensors are not spread over cores.

    >>> parse_memory("#ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>")
    'DRAM'
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise MissingRuleError(f"{text} has no call in Python and C++; give an interleaved memory config.")
    return spell("BufferType", found[1] or found[2])


def operand(
    name: str, number: int = 0, *, keyword: bool = False, default: Any = NEEDED, also: tuple[str, ...] = ()
) -> Param:
    """Returns an argument that is an operand, by number; other overloads name it as `also` does."""
    return Param(name, "operand", number, keyword=keyword, default=default, also=also)


def operands(name: str) -> Param:
    """Returns an argument that is the list of all operands."""
    return Param(name, "operands")


def attribute(
    name: str,
    key: str | None = None,
    *,
    form: str = "value",
    keyword: bool = False,
    default: Any = NEEDED,
    if_set: bool = False,
) -> Param:
    """Returns an argument that is an attribute; `key` is its name in the dialect if the parameter has another."""
    return Param(name, "attribute", key or name, form, keyword, default, if_set=if_set)


def text(name: str, printed: str, *, keyword: bool = False, default: Any = None) -> Param:
    """Returns an argument with one printed value; a caller's value for it is accepted and ignored."""
    return Param(name, "text", printed, keyword=keyword, default=default)


def unset(name: str, *, keyword: bool = True) -> Param:
    """Returns an argument that is printed as unset."""
    return Param(name, "none", keyword=keyword, default=None)


MEMORY = Param("memory_config", "memory_config", keyword=True, default=None)
DTYPE = Param("dtype", "dtype", keyword=True, default=None)
LAYOUT = Param("layout", "layout", keyword=True, default=None)
DEVICE = Param("device", "device", keyword=True, default=None)
COMPUTE = Param("compute_kernel_config", "compute_config", keyword=True, default=None)


def positional(*params: Param) -> tuple[Param, ...]:
    """Returns the arguments without their keywords, as C++ has them."""
    return tuple(replace(p, keyword=False) for p in params)


@dataclass(frozen=True, slots=True)
class Signature:
    """A call: the function's name (`ttnn.add`; `ttnn::add` in C++) and its arguments, in order."""

    callee: str
    params: tuple[Param, ...]


NO_CALL = Signature("", ())
"""The call of an operation that has none."""


@dataclass(frozen=True)
class TtnnOp(OpDef):
    """The definition of an operation of TTNN.

    Attributes:
      python: the Python call; `NO_CALL` if there is none, or the printer writes several statements.
      cpp: the C++ call, likewise.
      like: the TTIR operation with the same meaning and operands, without the dialect; None if there is none.
      accepts: the element types and layouts that the real function takes and gives, or a function that returns them for
        an occurrence; `jaxmesh/passes/layouts` converts to them.
      work: the reduced elements and the other operations for each element of the first operand, where they differ from
        one operation per element of the result.
      cpp_results: what a C++ function of several results returns: a `vector`, a `tuple`, or `optionals`, a vector in
        which results are missing that were not asked for.
    """

    python: Signature = NO_CALL
    cpp: Signature = NO_CALL
    like: str | None = None
    accepts: Rule = TILES
    work: tuple[int, int] | None = None
    cpp_results: Literal["vector", "tuple", "optionals"] = "vector"

    @cached_property
    def on_device(self) -> bool:
        """True if MLIR writes the device as the last operand when the result is on the devices."""
        return self.handles[1] != 0

    def forms_of(self, occurrence: Occurrence) -> Forms:
        """Returns what the real function takes and gives in one occurrence."""
        return self.accepts if isinstance(self.accepts, Forms) else self.accepts(occurrence)


def define(
    ops: dict[str, TtnnOp],
    name: str,
    *,
    python: Sequence[Param] = (),
    cpp: Sequence[Param] | None = None,
    like: str | None = None,
    meaning: Meaning | None = None,
    operands: int | Arity | None = None,
    results: int | Arity | None = None,
    attributes: Sequence[Attribute] | None = None,
    omit: Sequence[str] = (),
    respelled: Sequence[Attribute] = (),
    more: Sequence[Attribute] = (),
    traits: Sequence[Trait] = (),
    options: Sequence[str] = (),
    callee: str | None = None,
    cpp_callee: str | None = None,
    handles: Arity = (0, 0),
    writes: Mapping[int, Write] | None = None,
    accepts: Rule = TILES,
    work: tuple[int, int] | None = None,
) -> None:
    """Adds an operation of TTNN to a table. Facts shared with a TTIR operation are declared only there.

    Args:
      ops: the table.
      name: without the dialect.
      python: the arguments of the Python call, in order; none if there is no call.
      cpp: the arguments of the C++ call, in order; by default Python's without keywords.
      like: the TTIR operation whose facts it shares; by default the one of the same name.
      meaning, operands, results, attributes, writes: in place of the TTIR operation's.
      omit: names of TTIR's attributes that it does not have.
      respelled: attributes in place of TTIR's of the same name, such as in another MLIR form.
      more: attributes that TTIR's operation does not have.
      traits: facts beside the TTIR operation's; `NOT_UPSTREAM` is not inherited.
      options, handles: as in `OpDef`.
      callee: the function's dotted name if it is not `ttnn.<name>` (C++ has `::` for the dots).
      cpp_callee: the same for C++ alone.
      accepts, work: as in `TtnnOp`.
    """
    assert name not in ops, name
    base = ttir.OPS.get(like or name)
    assert meaning or base or Trait.MEMORY in traits, name
    if attributes is None:
        own = {a.name: a for a in respelled}
        attributes = [own.get(a.name, a) for a in base.attributes if a.name not in omit] if base else ()
    if operands is None:
        assert base is not None, name
        operands = base.operands
    # `NOT_UPSTREAM` is a fact about one dialect.
    shared = frozenset[Trait]() if base is None else base.traits - {Trait.NOT_UPSTREAM}
    if writes is None:
        writes = {} if base is None else base.writes
    if results is None:
        results = 1 if base is None else base.results
    dotted = callee or f"ttnn.{name}"
    ops[name] = TtnnOp(
        "ttnn",
        name,
        arity(operands),
        (*attributes, *more),
        meaning or (None if base is None else base.meaning),
        arity(results),
        casts=meaning is None and base is not None and base.casts,
        traits=shared.union(traits),
        options=frozenset(options),
        writes=writes,
        handles=handles,
        former=None if base is None or meaning is not None else base.former,
        python=Signature(dotted, tuple(python)),
        cpp=Signature((cpp_callee or dotted).replace(".", "::"), positional(*python) if cpp is None else tuple(cpp)),
        like=None if meaning or base is None else base.name,
        accepts=accepts,
        work=work,
    )


def ttir_meaning(call: Call, name: str | None = None, /, **attributes: Any) -> Any:
    """Computes a call by the TTIR operation of the same or another name, with some attributes changed."""
    meaning = ttir.OPS[name or call.name].meaning
    assert meaning is not None, call.title
    return meaning(replace(call, attributes={**call.attributes, **attributes}))
