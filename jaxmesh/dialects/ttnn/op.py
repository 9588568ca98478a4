"""Definitions of operations of TTNN: TTIR's facts, with a Python call and a C++ call.

To add an operation of TTNN, write its row in `dialects/operations.txt` and one `OPS.define(...)` in a file of
`dialects/ttnn/` if it has a meaning here. The emitters print calls from it, `jaxmesh.ttnn` takes calls by it, and the
importer reads operations by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal

from jaxmesh.dialects import ttir
from jaxmesh.dialects.op import Call, Meaning, OpDef, Trait
from jaxmesh.dialects.table import ROWS
from jaxmesh.dialects.ttnn.forms import TILES, Forms, Occurrence, Rule
from jaxmesh.errors import MissingRuleError, VerifyError

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
        a `::ttsl::SmallVector` of `PadSpecDim`s in C++), and for integers in C++ `int32s`, `int64s`
        (`::ttsl::SmallVector`), `vector` (`::std::vector<int32_t>`), `uint32s`, `ints` (`::std::array`), `span`
        (`ttsl::make_const_span` of a variable that is an `int32s`). The source `shape` has the forms `shape` and
        `value`.
      keyword: True if Python prints it as `name=value`.
      if_set: True if it is printed only when the attribute is there.
      also: other names of the parameter in overloads of the real function, such as of the one that takes a number.
      on_host: True if it is printed when the result is a host tensor; the device and the memory config are unset then.
    """

    name: str
    source: Source
    key: int | str = 0
    form: str = "value"
    keyword: bool = False
    on_host: bool = True
    if_set: bool = False
    also: tuple[str, ...] = ()


SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "ReduceType": {"sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod"},
    "AttentionMaskType": {"none": "None", "causal": "Causal", "arbitrary": "Arbitrary"},
    "StochasticRounding": {"True": "Enabled", "False": "Disabled"},
    "GeluVariant": {"none": "Accurate", "tanh": "Tanh"},
    "unary.GeluVariant": {"none": "ACCURATE", "tanh": "TANH"},
    "Layout": {"tile": "TILE", "row_major": "ROW_MAJOR"},
    "BufferType": {"dram": "DRAM", "l1": "L1", "l1_small": "L1_SMALL", "system_memory": "SYSTEM_MEMORY"},
    "DataType": {
        "f32": "FLOAT32", "bf16": "BFLOAT16", "si32": "INT32", "u32": "UINT32", "u16": "UINT16", "u8": "UINT8",
        "bfp_bf8": "BFLOAT8_B", "bfp_bf4": "BFLOAT4_B",
    },
    "ScatterReduction": {"sum": "add", "prod": "multiply", "max": "amax", "min": "amin", "invalid": ""},
}  # fmt: skip
"""By the last part of an enum's name, or the last two: its names of the dialect's values, if other; empty for none."""


def spell(enum: str, value: str) -> str:
    """Returns the API's name of a value of the dialect's enum.

    Raises:
      VerifyError: the enum has no such value; another text would be code of the printed program.

    >>> spell("ttnn.ReduceType", "sum"), spell("ScatterReduction", "max")
    ('Sum', 'amax')
    """
    owner, _, name = enum.replace("::", ".").rpartition(".")
    names = SPELLINGS.get(f"{owner.rpartition('.')[2]}.{name}") or SPELLINGS[name]
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
        # The library writes the last letter of two names large.
        name = name.replace("per_core_m", "per_core_M").replace("per_core_n", "per_core_N")
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


@dataclass(frozen=True, slots=True)
class Signature:
    """A call: the function's name (`ttnn.add`; `ttnn::add` in C++) and its arguments, in order."""

    callee: str
    params: tuple[Param, ...]


NO_CALL = Signature("", ())
"""The call of an operation that has none."""

_CALL = re.compile(r"(?:(vector|array|tuple|optionals|variant) )?([\w.:]*)\((.*)\)")
_ITEM = re.compile(r"(?:`[^`]*`|[^,`])+")
_ARGUMENT = re.compile(r" ?(?:([\w/]+)([=:]))?(.*?)([?!]?)")


def read_call(text: str) -> tuple[Any, Signature]:
    """Returns what a C++ call of several results returns, and a call, from its notation.

    A call is a function and its arguments in order: `%0` (an operand), `%0 or attribute`, `none`, a fixed text in
    backquotes, `@device` (a source of `Param`), or an attribute; `|form` behind it says how to print it. The parameter
    precedes its argument: `name=` if Python prints the name, `name:` if not. `name=` and `name` alone stand for the
    attribute of that name, `name=@` for the source. `name/other` has another name in some overload of the function. An
    argument with `?` is printed only if the attribute is there, an argument with `!` only on the devices. Before the
    function may be what it returns, as in `TtnnOp.cpp_results`.

    >>> read_call("ttnn.pow(input_tensor:%0, exponent:%1, dtype=none)")[1].params[1]
    Param(name='exponent', source='operand', key=1, form='value', keyword=False, on_host=True, if_set=False, also=())
    """
    found = _CALL.fullmatch(text)
    assert found is not None, text
    results, callee, items = found.groups()
    return results or "", Signature(callee, tuple(map(_read_argument, _ITEM.findall(items))))


def _read_argument(item: str) -> Param:
    found = _ARGUMENT.fullmatch(item)
    assert found is not None, item
    names, mark, value, printed = found.groups()
    name, *also = (names or "").split("/")
    key: int | str = 0
    source, form = "none", ""
    if value.startswith("`"):
        source, key = "text", value.strip("`")
    elif value.startswith("%"):
        number, _, form = value[1:].partition(" or ")
        source, key = "operand_or_attribute" if form else "operand", int(number)
    elif value != "none":
        word, _, form = value.partition("|")
        if word.startswith("@"):
            source = word[1:] or name
        else:
            source, key, name = "attribute", word or name, name or word
    known: Any = source
    return Param(name, known, key, form or "value", mark == "=", printed != "!", printed == "?", tuple(also))


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
      cpp_results: what a C++ function returns: a `vector`, `array` or `tuple`, `optionals`, a vector in which results
        are missing that were not asked for, or a `variant` with the tensor first; empty for a tensor, or a vector of
        several.
    """

    python: Signature = NO_CALL
    cpp: Signature = NO_CALL
    like: str | None = None
    accepts: Rule = TILES
    work: tuple[int, int] | None = None
    cpp_results: Literal["", "vector", "array", "tuple", "optionals", "variant"] = ""

    @cached_property
    def on_device(self) -> bool:
        """True if MLIR writes the device as the last operand when the result is on the devices."""
        return self.handles[1] != 0

    def forms_of(self, occurrence: Occurrence) -> Forms:
        """Returns what the real function takes and gives in one occurrence."""
        return self.accepts if isinstance(self.accepts, Forms) else self.accepts(occurrence)


_NO_BASE = OpDef("ttir", "", (0, 0), (), None)


class TtnnOps(dict[str, TtnnOp]):
    """Operations of TTNN by name, without the dialect."""

    def define(
        self,
        name: str,
        *,
        like: str | None = None,
        meaning: Meaning | None = None,
        traits: Sequence[Trait] = (),
        accepts: Rule = TILES,
        work: tuple[int, int] | None = None,
    ) -> None:
        """Adds an operation of the table `operations.txt`; what TTIR's operation means is declared only there.

        Args:
          name: without the dialect. Without a call in the table, the function is `ttnn.<name>`, and C++ is as Python.
          like: the TTIR operation whose meaning it shares; by default the one of the same name.
          meaning: in place of the TTIR operation's.
          traits: facts beside the TTIR operation's; `NOT_UPSTREAM` is not inherited.
          accepts, work: as in `TtnnOp`.
        """
        assert name not in self, name
        row, base = ROWS[f"ttnn.{name}"], ttir.OPS.get(like or name, _NO_BASE)
        assert meaning or base is not _NO_BASE or Trait.MEMORY in traits, name
        python_call = read_call(row.calls.get("python", "()"))[1]
        python_call = replace(python_call, callee=python_call.callee or f"ttnn.{name}")
        cpp_results, cpp_call = read_call(row.calls["cpp"]) if "cpp" in row.calls else ("", python_call)
        if cpp_call is python_call or not cpp_call.callee:
            cpp_call = replace(cpp_call, callee=python_call.callee.replace(".", "::"))
        known = row.definition
        self[name] = TtnnOp(
            "ttnn",
            name,
            known.operands,
            known.attributes,
            meaning or base.meaning,
            known.results,
            casts=meaning is None and base.casts,
            # `NOT_UPSTREAM` is a fact about one dialect.
            traits=(base.traits - {Trait.NOT_UPSTREAM}).union(traits),
            options=known.options,
            writes=known.writes,
            handles=known.handles,
            former=None if meaning else base.former,
            python=python_call,
            cpp=cpp_call,
            cpp_results=cpp_results,
            like=None if meaning or base is _NO_BASE else base.name,
            accepts=accepts,
            work=work,
        )


def ttir_meaning(call: Call, name: str | None = None, /, **attributes: object) -> Any:
    """Computes a call by the TTIR operation of the same or another name, with some attributes changed."""
    meaning = ttir.OPS[name or call.name].meaning
    assert meaning is not None, call.title
    return meaning(replace(call, attributes={**call.attributes, **attributes}))
