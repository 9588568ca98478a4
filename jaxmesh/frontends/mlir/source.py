"""TTIR text: where it comes from, the pieces of a file, and MLIR's parser with messages that name a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxmesh.errors import ArgumentTypeError, MissingFileError, ParseError
from jaxmesh.frontends.mlir.preprocess import Rewritten, rewrite
from jaxmesh.jaxprs.guarded_passes import refusal
from jaxmesh.validate import regular_file

_SPLIT = re.compile(r"^(?:[ \t]*// ?-----.*|.*\bMLIR Module \w+:[ \t]*|-+ END OF MLIR MODULE -+)$", re.MULTILINE)
"""A line between modules, also one of tt-xla's log."""
_MARKS = "-----", "MLIR M"
"""A part of each such line."""
_BEGINS = re.compile(r"^(?:(#[\w$.\-]+)[ \t]*=|module\b)", re.MULTILINE)
"""The definition of an alias, or the beginning of a module."""
_ALIAS = re.compile(r"#[\w$.\-]+")
_RUN = re.compile(r"^[ \t]*//[ \t]*RUN:[^\n]*?mesh-shape=([0-9]+(?:,[0-9]+)*)", re.MULTILINE)
_DIALECTS = ("stablehlo", "sdy", "mhlo", "chlo", "vhlo", "mpmd", "llvm", "nvvm", "nvgpu", "gpu", "memref", "vector",
             "shape", "affine", "cf", "scf", "math", "ub")  # fmt: skip
"""Dialects that MLIR parses by their own code, which may end the process."""
_ENDS = "|".join(rf"(?<=\b{name}\.)" for name in _DIALECTS)
_NATIVE = re.compile(rf"\.(?<![0-9]\.)(?<!tt[in][rn]\.)(?:{_ENDS})")
_NATIVE_NAMES = [re.compile(rf"{mark}(?!tt(?:nn|ir|core)?<)\w+<") for mark in "#!"]
"""Each begins with one character, for which Python looks fast."""
_LONGEST = 2000
"""The characters of MLIR's message that an error repeats."""
_HINT = "print the file in generic form (mlir-opt --mlir-print-op-generic, ttmlir-opt takes it too)"


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One module of a file.

    Attributes:
      module: parsed by MLIR.
      offset: the line of the file where it begins, less one.
      rewritten: the text that was parsed, and what was taken out of it.
      dialects: for each nested module that was asked for, True if it is of StableHLO.
    """

    module: ir.Module
    offset: int
    rewritten: Rewritten
    dialects: dict[ir.Operation, bool] = field(default_factory=dict[ir.Operation, bool])


@dataclass(frozen=True, slots=True)
class RunLine:
    """The mesh that a RUN line of a test file gives to the compiler."""

    sizes: tuple[int, ...]
    line: int


def read(source: str | os.PathLike[str]) -> str:
    """Returns the text of a program, or of the file that a str of one line names, or whose name ends in `.mlir`."""
    if isinstance(source, os.PathLike):
        return _file(os.fspath(source))
    if not isinstance(source, str):
        raise ArgumentTypeError(f"from_mlir takes TTIR text or a path, got {type(source).__name__}.")
    one_line = "\n" not in source and "\0" not in source
    if one_line and (source.endswith(".mlir") or os.path.isfile(source)):
        return _file(source)
    return decode(source.encode("utf-8", "surrogatepass"))


def _file(name: str) -> str:
    try:
        data = regular_file(Path(name)).read_bytes()
    except MissingFileError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise MissingFileError(f"cannot read {name!r} ({why}); give the path of a .mlir file, or its text.") from None
    return decode(data)


def decode(data: bytes) -> str:
    """Decodes UTF-8, without a byte order mark."""
    if data.startswith(b"ML\xefR"):
        raise ParseError("line 1: this is MLIR bytecode, not text; print it as text with ttmlir-opt.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ParseError(f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; MLIR text is.") from None


def run_lines(text: str) -> list[RunLine]:
    """Returns the meshes of a file's RUN lines.

    >>> run_lines("// RUN: ttmlir-opt --ttcore-register-device='mesh-shape=2,4' %s")
    [RunLine(sizes=(2, 4), line=1)]
    """
    # Python refuses to read very long numbers; no mesh has one.
    matches = _RUN.finditer(text) if "RUN:" in text else ()
    found = [(m.start(), tuple(int(n[:20]) for n in m.group(1).split(","))) for m in matches]
    return [RunLine(sizes, 1 + text.count("\n", 0, start)) for start, sizes in found]


def parse(text: str) -> list[Piece]:
    """Returns the pieces of a file between lines `// -----`, and between sections that were appended to each other.

    Errors have the file's line and MLIR's message.
    """
    shared = _context()
    return [_parse(piece, line, shared) for piece, line in split(text)]


def _context() -> ir.Context:
    """Returns a context that reads any dialect.

    JAX may share a context among its own lowerings on a thread. This context is changed, and holds the constants of a
    file as long as it lives, so it is made on a new thread.
    """
    with ThreadPoolExecutor(max_workers=1) as fresh:
        context = fresh.submit(mlir.make_ir_context).result()
    context.allow_unregistered_dialects = True
    return context


def split(text: str) -> Iterator[tuple[str, int]]:
    """Yields the pieces of a file with their first lines.

    >>> list(split("#a = 1\\nmodule {}\\n#a = 2\\nmodule {}"))
    [('#a = 1\\nmodule {}\\n', 1), ('#a = 2\\nmodule {}', 3)]
    """
    start, line = 0, 1
    for mark in _SPLIT.finditer(text) if any(part in text for part in _MARKS) else ():
        yield from _sections(text[start : mark.start()], line)
        start, line = mark.end(), line + text.count("\n", start, mark.start())
    yield from _sections(text[start:], line)


def _sections(text: str, line: int) -> Iterator[tuple[str, int]]:
    """Yields the sections of a piece: each defines a name once, and begins after what the one before it uses."""
    start, known, modules, between = 0, set[str](), list[int](), list[re.Match[str]]()
    # Behind the last definition of an alias none is defined again.
    for found in _BEGINS.finditer(text, 0, text.find("=", text.rfind("\n#") + 1) + 1):
        name = found[1]
        if name is None:
            modules.append(found.start())
        elif name in known and modules:
            used = set(_ALIAS.findall(text, start, between[0].start() if between else found.start()))
            own = max((i + 1 for i, m in enumerate(between) if m[1] in used), default=0)
            first = min([m.start() for m in (*between[own:], found)] + modules[1:])
            yield text[start:first], line
            line += text.count("\n", start, first)
            start, known = first, {m[1] for m in _BEGINS.finditer(text, first, found.end()) if m[1]}
            del modules[: len(modules) - sum(m >= first for m in modules)]
            between.clear()
        else:
            known.add(name)
            if len(modules) == 1:
                between.append(found)
    yield text[start:], line


def _parse(text: str, line: int, shared: ir.Context) -> Piece:
    ready = rewrite(text, line)
    # In one context a second blob of one name would be renamed.
    context = _context() if "dense_resource" in text else shared
    if _is_native(ready.text) and (refused := refusal(ready.text)):
        raise _refusal(*refused, line - 1)
    try:
        module = ir.Module.parse(ready.text, context)
        if "vhlo.func_v1" in ready.text:
            module = _from_vhlo(module)
    except ir.MLIRError as error:
        first = next(iter(error.error_diagnostics), None)
        raise _refusal(*((str(first.location), first.message) if first else ("", str(error))), line - 1) from None
    return Piece(module, line - 1, ready)


def _from_vhlo(module: ir.Module) -> ir.Module:
    """Returns a module of VHLO, the versioned form of StableHLO, as StableHLO."""
    data = BytesIO()
    module.operation.write_bytecode(data)
    return stablehlo.deserialize_portable_artifact(module.context, data.getvalue())


def _is_native(text: str) -> bool:
    """Returns True if a text may have operations, attributes or types of dialects that MLIR has code for.

    >>> _is_native("#ttnn<mesh_shape 2x4>"), _is_native("sdy.mesh @mesh"), _is_native("!quant<i8>")
    (False, True, True)
    """
    return any(pattern.search(text) for pattern in (_NATIVE, *_NATIVE_NAMES))


def _refusal(location: str, message: str, offset: int) -> ParseError:
    place = re.search(r":([0-9]+):[0-9]+\)$", location)
    where = f"line {offset + (int(place.group(1)) if place else 1)}"
    custom = message.startswith("Dialect `") or "is unknown (tried" in message
    hint = f". Only generic op forms of this dialect are read; {_HINT}." if custom else ""
    short = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."
    return ParseError(f"{where}: {' '.join(short.split())}{hint}")
