"""MLIR syntax of strings, types, numbers, elements and layouts: byte for byte as MLIR's printer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.attributes import is_uniform
from jaxmesh.dialects.program import Shape, Type
from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.dialects.ttnn.layouts import element_type, layout_text, signed, stored_type
from jaxmesh.jaxprs.untyped import Array, DType

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_INTEGER = re.compile(r"(u?)int(\d+)$")
LISTED = 100
"""The number of elements above which MLIR prints a constant as hex."""


def symbol(name: str) -> str:
    """Returns a function's name as a symbol, quoted unless it is plain.

    >>> print(symbol("main"), symbol("<lambda>"))
    @main @"<lambda>"
    """
    name = name or "main"
    return f"@{name}" if _SYMBOL.fullmatch(name) else f"@{mlir_string(name)}"


class Spelling:
    """Types and numbers, each spelled once; MLIR prints floats and elements."""

    def __init__(self, layouts: Layouts | None = None) -> None:
        self._context: Any = None
        self._layouts = layouts
        """If given, types are printed with layouts and the element types on the devices."""
        self._types: dict[tuple[Shape, Any], str] = {}
        self._placed: dict[Type, str] = {}
        self._floats: dict[tuple[str, bytes], str] = {}

    def type(self, value_type: Type) -> str:
        """Returns the type of a value."""
        if value_type.kind != "tensor":
            return f"!ttnn.{value_type.kind}"
        if self._layouts is None:
            return self.tensor(value_type.shape, value_type.dtype)
        if value_type not in self._placed:
            alias = self._layouts.alias(value_type, self._element(value_type.dtype))
            self._placed[value_type] = f"{self.tensor(value_type.shape, value_type.dtype)[:-1]}, {alias}>"
        return self._placed[value_type]

    def _element(self, dtype: DType) -> str:
        return signed(element_type(stored_type(dtype))) if self._layouts is not None else element_type(dtype)

    def tensor(self, shape: Shape, dtype: DType) -> str:
        """Returns a tensor type."""
        key = (shape, dtype)
        if key not in self._types:
            self._types[key] = f"tensor<{''.join(f'{n}x' for n in shape)}{self._element(dtype)}>"
        return self._types[key]

    def float(self, value: float, float_type: str) -> str:
        """Returns a number as a float attribute, such as `1.000000e+00 : f32`, rounded to that type."""
        key = (float_type, np.float64(value).tobytes())
        if key not in self._floats:
            context = self._mlir()
            number = (ir.F32Type if float_type == "f32" else ir.F64Type).get(context)
            self._floats[key] = str(ir.FloatAttr.get(number, value, loc=ir.Location.unknown(context)))
        return self._floats[key]

    def elements(self, array: Array) -> str:
        """Returns a constant: `dense<...> : tensor<...>`."""
        # One element stands for equal elements, which may need more memory than the machine has.
        few = array[(slice(0, 1),) * array.ndim].reshape(()) if array.size and is_uniform(array) else array
        elements = _little_endian(self.as_stored(few))
        return f"dense<{self._inside(elements)}> : {self.tensor(array.shape, array.dtype)}"

    def as_stored(self, array: Array) -> Array:
        """Returns a constant in the printed element type."""
        return array.astype(stored_type(array.dtype)) if self._layouts is not None else array

    def resource(self, name: str, array: Array) -> str:
        """Returns a constant with its elements in the section of resources: `dense_resource<...> : tensor<...>`."""
        return f"dense_resource<{name}> : {self.tensor(array.shape, array.dtype)}"

    def _inside(self, elements: Array) -> str:
        if not elements.size:
            return ""
        if elements.size > LISTED:
            return f'"0x{_stored_bytes(elements).hex().upper()}"'
        return self._list(elements)

    def _list(self, elements: Array) -> str:
        if elements.dtype.kind == "b":
            return str(elements.tolist()).lower()
        text = f'dense<"0x{_stored_bytes(elements).hex()}"> : {self.tensor(elements.shape, elements.dtype)}'
        spelled = str(ir.Attribute.parse(text, self._mlir()))
        return spelled[len("dense<") : spelled.rindex(">", 0, spelled.rindex(" : "))]

    def _mlir(self) -> Any:
        # A separate context: a context keeps every constant until it is freed.
        if self._context is None:
            self._context = ir.Context()
        return self._context


def resource_section(arrays: Mapping[str, Array]) -> str:
    """Returns the section of a file with the elements of its resources; empty without resources."""
    if not arrays:
        return ""
    blobs = ",\n".join(f'      {name}: "0x{_blob(array)}"' for name, array in arrays.items())
    return f"\n{{-#\n  dialect_resources: {{\n    builtin: {{\n{blobs}\n    }}\n  }}\n#-}}\n"


def _blob(array: Array) -> str:
    """Returns the alignment, in four bytes, and the elements, as hex digits."""
    alignment = array.dtype.itemsize.to_bytes(4, "little")
    return alignment.hex().upper() + _stored_bytes(_little_endian(array)).hex().upper()


def _little_endian(array: Array) -> Array:
    """Returns the array in row-major order and in the byte order of MLIR."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(array.shape)


def _stored_bytes(elements: Array) -> bytes:
    """Returns elements as MLIR stores them: an element narrower than a byte takes one byte, without sign."""
    integer = _INTEGER.match(elements.dtype.name)
    if integer is None or int(integer.group(2)) >= 8:
        return elements.tobytes()
    return (elements.astype(np.uint8) & (2 ** int(integer.group(2)) - 1)).astype(np.uint8).tobytes()


_BUFFER = re.compile(r"#ttnn\.buffer_type<(\w+)>")
_ALIAS = re.compile(r"#(?:dram|l1|l1_small|system_memory|trace)\b")
"""The memories, by their names in a text."""


@dataclass(slots=True)
class Layouts:
    """The layouts of one module, named in the order of their first use."""

    _names: dict[str, str] = field(default_factory=dict[str, str])
    _buffers: dict[str, None] = field(default_factory=dict[str, None])

    def alias(self, tensor_type: Type, element: str) -> str:
        """Returns the name of a value's layout."""
        text = _BUFFER.sub(r"#\1", tensor_type.layout) or layout_text(tensor_type, element)
        if text not in self._names:
            self._buffers.update(dict.fromkeys(_ALIAS.findall(text)))
            self._names[text] = f"#ttnn_layout{len(self._names) or ''}"
        return self._names[text]

    def definitions(self) -> Iterator[str]:
        """Yields the lines that define the names: memories first, since layouts refer to them."""
        for name in self._buffers:
            yield f"{name} = #ttnn.buffer_type<{name[1:]}>"
        for text, name in self._names.items():
            yield f"{name} = {text}"
