"""The names of layouts in a text: types refer to layouts by aliases, which the module defines first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxmesh.dialects.program import Type
from jaxmesh.dialects.ttnn.layouts import layout_text

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
