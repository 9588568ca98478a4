"""The signatures of the real `ttnn`, read from `signatures.txt`, and the tests of arguments by declared types.

The table first declares parameters that many functions share, as `name: type = default`. Then come groups: the names
of functions, and indented one line per overload. There a bare name is a parameter as declared; a line that begins with
a release holds in that release alone. The default `...` marks an argument that is needed, although one before it has a
default; `Any` stands for a type that the library does not declare.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.sharding.configs import MeshCoordinate, MeshShape
from jaxmesh.tensor import types
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.ttnn import settings

TABLE = Path(__file__).with_name("signatures.txt")
NEWEST, OLDEST = "0.81.1", "0.77.0"
"""The releases of the table; tt-mlir builds against the second."""

NEEDED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a real function.

    Attributes:
      name, type: as the library declares them; `type` is a Python expression such as `DataType | None`.
      default: its default; `NEEDED` if there is none, and a `Name` for an object such as `DataType.BFLOAT16`.
      keyword: True if the argument must be given by name.
    """

    name: str
    type: str
    default: Any
    keyword: bool


class Name(str):
    """The name of a default that is not a literal, such as `DataType.BFLOAT16`."""

    __slots__ = ()


@functools.lru_cache(8)
def table(release: str = NEWEST) -> Mapping[str, Sequence[str]]:
    """Returns the signatures of each function in a release, as the table has them."""
    rows: dict[str, list[str]] = {}
    group: list[str] = []
    inside = False
    for line in TABLE.read_text().splitlines():
        if line.startswith("    "):
            first, _, rest = line.strip().partition(" (")
            if not first.startswith("("):
                if first != release:
                    continue
                line = f"({rest}"
            for callee in group:
                rows[callee].append(line.strip())
            inside = False
        elif line.startswith("ttnn."):
            group = [*group, *line.split()] if inside else line.split()
            inside = True
            rows |= {callee: [] for callee in group}
    return rows


@functools.cache
def _declared() -> Mapping[str, str]:
    """Returns the declarations at the head of the table."""
    lines = TABLE.read_text().split("\n\n")[0].splitlines()
    return {line.partition(":")[0].partition(" =")[0]: line for line in lines if not line.startswith("#")}


@functools.lru_cache(1024)
def signatures(callee: str, release: str = NEWEST) -> tuple[tuple[Parameter, ...], ...]:
    """Returns the overloads of a function in a release, in the library's order; none if it does not exist there.

    >>> [p.name for p in signatures("ttnn.abs")[0]]
    ['input_tensor', 'memory_config', 'output_tensor', 'sub_core_grids']
    """
    return tuple(_parse(expand(row)) for row in table(release).get(callee, ()))


def expand(row: str) -> str:
    """Returns a signature with the declarations of its parameters in place of their bare names."""
    declared = _declared()
    parts = [declared.get(part, part) for part in _split(row[1:-1])]
    return f"({', '.join(parts)})"


def _split(text: str, separator: str = ",") -> list[str]:
    """Splits a list of parameters, or a type, at the separators outside of brackets."""
    parts, depth, begin = list[str](), 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == separator and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    rest = text[begin:].strip()
    return [*parts, rest] if rest else parts


# Before 3.11.8, Python fails where several threads make trees of syntax at once (its issue 106905).
_TREES = threading.Lock()


def _parse(row: str) -> tuple[Parameter, ...]:
    with _TREES:
        node: Any = ast.parse(f"def f{row}: 0").body[0]
    found = node.args
    places = [*found.posonlyargs, *found.args]
    defaults = [*[None] * (len(places) - len(found.defaults)), *found.defaults, *found.kw_defaults]
    return tuple(
        Parameter(a.arg, "Any" if a.annotation is None else ast.unparse(a.annotation), _value(d), i >= len(places))
        for i, (a, d) in enumerate(zip([*places, *found.kwonlyargs], defaults, strict=True))
    )


def _value(node: ast.expr | None) -> Any:
    if node is None:
        return NEEDED
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return Name(ast.unparse(node))
    return NEEDED if value is ... else value


Test = Callable[[Any], bool]
_ARRAYS = (np.ndarray, jax.Array)
_FLOAT: Any = (float, int, np.floating, np.integer, np.bool_)
_BOOL = (bool, np.bool_)
_ROWS: Any = (list, tuple, MeshShape, MeshCoordinate)


def is_tensor(x: object) -> bool:
    """Returns True for a tensor, or an array, which stands for one: in a program, and where a host tensor is wanted."""
    return isinstance(x, (TensorBase, *_ARRAYS))


def _is_integer(x: object) -> bool:
    if type(x) is int:
        return True
    if is_tensor(x) or not isinstance(x, SupportsIndex):
        return False
    try:
        operator.index(x)
    except TypeError:
        return False
    return True


def _is_element_type(x: object) -> bool:
    # A NumPy dtype stands for the `DataType` that equals it.
    return isinstance(x, (types.DataType, np.dtype, type)) or isinstance(getattr(x, "dtype", None), np.dtype)


def _is_row(x: Any) -> bool:
    return isinstance(x, _ROWS) and all(map(_is_integer, x))


_ENUMS: Mapping[str, type[enum.Enum]] = {
    c.__name__: c
    for c in (
        types.DataType, types.Layout, settings.EmbeddingsType, settings.GeluVariant, settings.MathFidelity,
        settings.ReduceType, settings.SigmoidMode, settings.Topology,
    )
}  # fmt: skip
"""The enums of the library that stand in its signatures, by name."""
_TESTS: Mapping[str, Test] = {
    "None": lambda x: x is None,
    "NoneType": lambda x: x is None,
    "Tensor": is_tensor,
    "int": _is_integer,
    "float": lambda x: isinstance(x, _FLOAT) and not is_tensor(x),
    "bool": lambda x: isinstance(x, _BOOL),
    "str": lambda x: isinstance(x, str),
    **{name: lambda x, kind=kind: isinstance(x, kind) for name, kind in _ENUMS.items()},
    "DataType": _is_element_type,
    "MemoryConfig": lambda x: isinstance(x, types.MemoryConfig),
    "MeshDevice": lambda x: isinstance(x, (MeshDevice, Mesh)),
    **dict.fromkeys(("MeshShape", "MeshCoordinate", "Shape"), _is_row),
}
"""By the name of a type; other types, which the emulation does not have, take anything."""


@functools.lru_cache(1024)
def test_of(declared: str) -> Test:
    """Returns a function that checks a value against a declared type."""
    if len(choices := _split(declared, "|")) > 1:
        tests = [test_of(c) for c in choices]
        return lambda x: any(test(x) for test in tests)
    name, _, inside = declared.partition("[")
    if name == "Union":
        return test_of(" | ".join(_split(inside[:-1])))
    if name == "Optional":
        return test_of(f"{inside[:-1]} | None")
    if name in ("Sequence", "Tuple", "List"):
        test = test_of(_split(inside[:-1])[0])
        return lambda x: isinstance(x, _ROWS) and all(map(test, x))
    return _TESTS.get(name, lambda _: True)


def default_of(parameter: Parameter) -> Any:
    """Returns the default of a parameter; its name if the emulation lacks such an object."""
    value = parameter.default
    if value is NEEDED or not isinstance(value, Name):
        return value
    if value == "DRAM_MEMORY_CONFIG":
        return types.DRAM_MEMORY_CONFIG
    owner, _, member = value.partition(".")
    return _ENUMS[owner][member] if owner in _ENUMS else value
