"""The signatures of the functions of `ttnn`, as its binder knows them; runs with the real library.

A signature is written as Python: `(tensor: Tensor, dim: int | None = None, *, memory_config: MemoryConfig | None =
None)`. A default of `...` marks an argument that is needed although one before it has a default, which Python's own
functions cannot have.
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

PLAIN = {
    "collections.abc.Sequence": "Sequence",
    "ForwardRef('Tensor')": "Tensor",
    "CppTensorToMesh": "TensorToMesh",
    "CppMeshToTensor": "MeshToTensor",
    "int | int | float": "int | float",
}
DRAM = "MemoryConfig(memory_layout=TensorMemoryLayout::INTERLEAVED,buffer_type=BufferType::DRAM"


class Meshes:
    """No mesh is opened."""

    def __init__(self, ttnn: Any) -> None:
        pass

    def close(self) -> None:
        """Does nothing."""


def outcome_of(ttnn: Any, meshes: Meshes, job: dict[str, Any]) -> dict[str, Any]:
    """Returns the signatures of a function by its dotted name, one per overload; None if there is no such function."""
    import importlib.metadata

    entry: Any = ttnn
    for name in job["callee"].split(".")[1:]:
        entry = getattr(entry, name, None)
    signatures = None if entry is None else list(dict.fromkeys(signatures_of(entry)))
    return {"callee": job["callee"], "signatures": signatures, "release": importlib.metadata.version("ttnn")}


def signatures_of(entry: Any) -> list[str]:
    """Returns the signatures of a function, an operation or a class."""
    if inspect.isclass(entry) and hasattr(entry.__init__, "__nb_signature__"):
        return [bound_signature(*s) for s in entry.__init__.__nb_signature__]
    function = getattr(entry, "function", entry)
    for bound in (type(function).__call__, function):
        found = getattr(bound, "__nb_signature__", None)
        if found is not None:
            return [bound_signature(*s) for s in found]
    return [python_signature(function)]


def bound_signature(text: str, _: Any, defaults: Any) -> str:
    """Returns a signature of nanobind: defaults are numbered there and stand in a tuple."""
    text = text.replace("\\*", "*")
    text = re.sub(r"(\w+)\[[^\[\]]*dtype[^\[\]]*\]|ArrayLike\[\]", "ArrayLike", text)
    # An argument without a default behind one with a default is no Python.
    head, found = text.partition("(")[2].rpartition(") ->")[0] or text.partition("(")[2].rpartition(")")[0], []
    optional = False
    for part in split(head):
        name = part.partition(":")[0].partition("=")[0].strip()
        if name == "self":
            continue
        if name in ("*", "/") or name.startswith("*"):
            optional = False
            found.append(name)
            continue
        kind = plain(re.split(r"\s=\s", part)[0].partition(":")[2].strip())
        number = re.search(r"=\s*\\(\d+)$", part)
        value = literal(defaults[int(number[1])]) if number else (re.split(r"\s=\s", part)[1] if " = " in part else "")
        if optional and not value and "*" not in found:
            value = "..."
        optional = optional or bool(value)
        found.append(f"{name}{': ' + kind if kind else ''}{' = ' + value if value else ''}")
    return f"({', '.join(found)})"


def split(text: str) -> list[str]:
    """Splits a list of parameters at its outer commas."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    return [*parts, rest] if (rest := text[begin:].strip()) else parts


def plain(annotation: str) -> str:
    """Returns a type without the modules in front of its names."""
    for long, short in PLAIN.items():
        annotation = annotation.replace(long, short)
    annotation = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", annotation)
    return re.sub(r"int \| int \| float", "int | float", annotation)


def literal(value: Any) -> str:
    """Returns a default as Python; an object without a literal is named after its class."""
    if str(value).startswith(DRAM):
        return "DRAM_MEMORY_CONFIG"
    text = repr(value)
    member = re.fullmatch(r"<?((?:\w+\.)*\w+\.\w+)(?:: [^>]*)?>?", text)
    if member:
        return ".".join(member[1].split(".")[-2:])
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return repr(f"<{type(value).__name__}>")
    return text


def python_signature(function: Any) -> str:
    """Returns the signature of a function written in Python."""
    parts: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(x.startswith("*") for x in parts):
            parts.append("*")
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty else written(p.annotation)
        default = "" if p.default is p.empty else f" = {literal(p.default)}"
        parts.append(f"{mark}{p.name}{': ' + kind if kind else ''}{default}")
    return f"({', '.join(parts)})"


def written(annotation: Any) -> str:
    """Returns an annotation of a Python function, as `plain` has it."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = str(annotation) if re.search(r"[\[|]", str(annotation)) else text
    optional = re.fullmatch(r"(?:typing\.)?Optional\[(.*)\]", text)
    return f"{plain(optional[1])} | None" if optional else plain(text)
