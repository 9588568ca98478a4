"""Values in C++ syntax: numbers, lists of numbers, element types, tables of constants."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Type
from jaxmesh.dialects.quoting import cpp_string
from jaxmesh.dialects.ttnn.layouts import Spread, buffer_type, spread
from jaxmesh.dialects.ttnn.op import inside_folder, parse_config, parse_memory, spell
from jaxmesh.emit.names import comment, identifier
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.untyped import Array, DType

NOTHING = "::std::nullopt"
TENSOR = "::ttnn::Tensor"
TENSORS = f"::std::vector<{TENSOR}>"

_ELEMENTS = frozenset({
    "float64", "float32", "bfloat16", "float16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "int64", "int32", "int16", "int8", "int4", "int2", "uint64",
    "uint32", "uint16", "uint8", "uint4", "uint2", "bool",
})  # fmt: skip
"""The element types that the header defines."""


def data_type(dtype: DType) -> str:
    """Returns an element type: `::ttnn::DataType::FLOAT32`."""
    if dtype.name not in _ELEMENTS:
        raise UnsupportedError(
            f"C++ programs do not support tensors of {dtype.name}; the element types are "
            f"{', '.join(sorted(_ELEMENTS))}. Convert to a listed element type (astype)."
        )
    return f"::ttnn::DataType::{dtype.name.upper()}"


def layout(tile: bool) -> str:
    """Returns a page layout."""
    return "::ttnn::Layout::TILE" if tile else "::ttnn::Layout::ROW_MAJOR"


def memory_config(tensor_type: Type) -> str:
    """Returns the memory config of a tensor."""
    buffer, cores = "SYSTEM_MEMORY" if tensor_type.host else buffer_type(tensor_type), spread(tensor_type)
    layout, shard_spec = ("INTERLEAVED", NOTHING) if cores is None else (cores.layout, _shard_spec(cores))
    return f"::ttnn::MemoryConfig{{::ttnn::TensorMemoryLayout::{layout}, ::ttnn::BufferType::{buffer}, {shard_spec}}}"


def _coordinate(coordinate: tuple[int, ...]) -> str:
    return f"::ttnn::CoreCoord{{{', '.join(map(str, coordinate))}}}"


def _shard_spec(cores: Spread) -> str:
    ranges = ", ".join(f"::ttnn::CoreRange{{{_coordinate(a)}, {_coordinate(b)}}}" for a, b in cores.cores)
    shape = ", ".join(map(str, cores.shape))
    return (
        f"::ttnn::ShardSpec{{::ttnn::CoreRangeSet{{::std::vector<::ttnn::CoreRange>{{{ranges}}}}}, "
        f"::std::array<uint32_t, 2>{{{shape}}}, ::ttnn::types::ShardOrientation::ROW_MAJOR}}"
    )


def _config(owner: str, text: str) -> str:
    """Returns a config of the dialect as a struct."""
    return f"{owner}{{{', '.join(f'.{k} = {_configured(v)}' for k, v in parse_config(text).items())}}}"


def _configured(value: int | bool | str | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return _coordinate(value)
    return f"::ttnn::DataType::{value}" if isinstance(value, str) else str(value).lower()


def _memory(text: str) -> str:
    """Returns a memory config of the dialect."""
    fields = f"::ttnn::TensorMemoryLayout::INTERLEAVED, ::ttnn::BufferType::{parse_memory(text)}, {NOTHING}"
    return f"::ttnn::MemoryConfig{{{fields}}}"


COMPUTE_CONFIG = (
    "::ttnn::WormholeComputeKernelConfig{.math_fidelity = ::tt::tt_metal::MathFidelity::HiFi4, "
    ".math_approx_mode = false, .fp32_dest_acc_en = true}"
)


def integer(value: int) -> str:
    """Returns an integer literal of any size."""
    for bits in (31, 63):
        # C++ has no negative literals: the smallest `int` would be a `long`.
        if value == -(2**bits):
            return f"(-{2**bits - 1} - 1)"
    return f"{value}u" if value >= 2**63 else str(value)


def real(value: float) -> str:
    """Returns a floating-point literal that reads back as the same number: a float literal if that is exact."""
    if math.isnan(value):
        return "::std::numeric_limits<float>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}::std::numeric_limits<float>::infinity()"
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return f"{_as_pointer(str(single))}f" if float(single) == value else _as_pointer(repr(float(value)))


def _as_pointer(text: str) -> str:
    return text if set(text) & set(".e") else f"{text}.0"


def one(value: Any) -> str:
    """Returns a single value: a number, a truth value, a string, or nothing."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "true" if value else "false"
        case int():
            return integer(value)
        case float():
            return real(value)
        case str():
            return cpp_string(value)
        case _:
            raise UnsupportedError(f"C++ calls take numbers, truth values and strings, got {value!r}.")


def _list_of(values: Sequence[object]) -> str:
    return ", ".join(map(one, values))


def _braced_list(container: str) -> Callable[[Any], str]:
    return lambda value: f"{container}{{{_list_of(value)}}}"


def value(attribute_value: Any) -> str:
    """Returns a value of any type; several numbers become a `SmallVector`."""
    several = isinstance(attribute_value, (tuple, list))
    return _braced_list("::ttsl::SmallVector<int32_t>")(attribute_value) if several else one(attribute_value)


def _pairs(numbers: Sequence[int]) -> str:
    pairs = ", ".join(f"{{{_list_of(p)}}}" for p in zip(numbers[::2], numbers[1::2], strict=True))
    return f"::ttsl::SmallVector<::ttnn::operations::data_movement::PadSpecDim>{{{pairs}}}"


FORMS: Mapping[str, Callable[[Any], str]] = {
    "value": value,
    "float": lambda value: real(float(value)),
    "path": lambda value: cpp_string(inside_folder(str(value))),
    "shape": lambda value: f"::ttnn::Shape({{{_list_of(value)}}})",
    "coordinate": lambda value: f"::ttnn::MeshCoordinate(ttsl::Span<const uint32_t>{{{_list_of(value)}}})",
    "int32s": _braced_list("::ttsl::SmallVector<int32_t>"),
    "int64s": _braced_list("::ttsl::SmallVector<int64_t>"),
    "vector": _braced_list("::std::vector<int32_t>"),
    "uint32s": lambda value: f"::std::array<uint32_t, {len(value)}>{{{_list_of(value)}}}",
    "ints": lambda value: f"::std::array<int, {len(value)}>{{{_list_of(value)}}}",
    "pairs": _pairs,
    "one": lambda value: f"::std::vector<uint32_t>{{{one(value)}}}",
    "memory": lambda value: _memory(str(value)),
}
"""The spelling of an attribute, by the form of its parameter; `array` and `span` need separate statements."""


def attribute(form: str, attribute_value: Any) -> str:
    """Returns an attribute in the form of its parameter; `NOTHING` for an omitted attribute."""
    if attribute_value is None:
        return NOTHING
    kind, _, owner = form.partition(":")
    if kind == "enum":
        return f"{owner.replace('.', '::')}::{spell(owner, str(attribute_value))}"
    if kind == "config":
        return _config(owner, str(attribute_value))
    if kind == "string":
        return cpp_string(name) if (name := spell(owner, attribute_value)) else NOTHING
    return FORMS[form](attribute_value)


# --- constants -------------------------------------------------------------------------------------------------------


def table(array: Array) -> tuple[str, list[str]]:
    """Returns the element type of a C++ table for an array, and its elements, row-major."""
    flat = array.reshape(-1)
    match element_type := table_type(flat.dtype):
        case "double":
            return element_type, [_as_pointer(repr(v)) if math.isfinite(v) else real(v) for v in flat.tolist()]
        case "float":
            return element_type, [real(v) for v in flat.astype(np.float32).tolist()]
        case _:
            return element_type, [integer(int(v)) for v in flat.tolist()]


def table_type(dtype: DType) -> str:
    """Returns the element type of a C++ table for elements of a dtype."""
    if dtype.name in ("float64", "uint64"):
        return {"float64": "double", "uint64": "uint64_t"}[dtype.name]
    whole = dtype.kind in "biu" or dtype.name in ("int4", "int2", "uint4", "uint2")
    return "int64_t" if whole else "float"


_KEYWORDS = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
    "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr", "constinit",
    "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete", "do", "double",
    "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
    "or_eq", "private", "protected", "public", "register", "reinterpret_cast", "requires", "return", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
    "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual",
    "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "final", "override", "import", "module",
})  # fmt: skip

_HEADERS = frozenset({
    "std", "ttnn", "ttsl", "tt", "util_create_vec", "assert", "errno", "stdin", "stdout", "stderr", "linux", "unix",
    "i386", "offsetof", "environ", "daylight", "timezone", "tzname", "signgam", "stat", "timespec", "timeval",
    "timex", "tm", "itimerspec", "lconv", "sched_param", "random_data", "drand48_data",
    "math_errhandling", "setjmp", "alloca", "fd_mask", "fd_set", "getdate_err", "issubnormal", "optarg", "opterr",
    "optind", "optopt", "program_invocation_name", "program_invocation_short_name", "pthread_cleanup_pop",
    "pthread_cleanup_pop_restore_np", "pthread_cleanup_push", "pthread_cleanup_push_defer_np", "strdupa", "strndupa",
    "u_char", "u_int", "u_long", "u_short", "uint", "ulong", "ushort", "va_list",
})  # fmt: skip
"""Globals and macros of the standard headers with names that a function could have."""

_RISKY = re.compile(r".*_t|(SYS|[A-Z])_.*")
"""Name patterns that are too common in the system's headers to list: types, and macros such as `SYS_read` and
`M_PIf`."""
TAKEN = _KEYWORDS | _HEADERS


def function_name(text: str) -> str:
    """Returns a name for a function of the file; `main` is taken by the program, so it becomes `_main`.

    Reserved names (leading or double underscores) and possible macros (`EOF`) or types (`x_t`) are changed.

    >>> function_name("main"), function_name("__f"), function_name("EOF"), function_name("size_t")
    ('_main', 'f', 'eof', 'size_t_0')
    """
    name = identifier(text)
    if name == "main":
        return "_main"
    name = name.lower() if name.isupper() else name
    return identifier(name, TAKEN | {name} if _RISKY.fullmatch(name) else TAKEN)


def remark(text: str) -> str:
    """Returns a comment for the end of a line; empty for an empty text."""
    escaped = comment(text).replace("??", "? ?")
    return f"  // {escaped}" if escaped else ""
