"""The texts of one program, one per stage of Tenstorrent's compiler, from a folder of tt-xla's `export_path`."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxmesh.analysis.diagnose.functions import only, public_names
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, MissingFileError, ParseError
from jaxmesh.frontends.mlir.source import read, split

T = TypeVar("T")
_FILE = re.compile(r"(?P<stage>shlo_frontend|shlo_compiler|shlo|ttir|ttnn)(?P<suffix>(?:[_.-].*)?)\.mlir")
_OTHERS = re.compile(r"_(?:cleaned|set_mesh_attr|runtime)")
_NUMBER = re.compile(r"\d+")
_MODULE = re.compile(r"^module\b.*?(?:^\}[^\n]*\n?|\Z)", re.MULTILINE | re.DOTALL)
STAGES = ("ttir", "ttnn")
"""The stages with local shapes, which are compared with the program with global shapes."""


@dataclass(frozen=True, slots=True)
class StageTexts:
    """The texts of one program.

    Attributes:
      frontend: the StableHLO program with global shapes and Shardy's annotations.
      compiler: the partitioned StableHLO program, whose `sdy.manual_computation` has the shardings of arguments and
        results; empty if it is not known.
      stages: the texts of the stages with local shapes, by name.
      name: the name of the program among several of a folder.
      path: the file with the program with global shapes, or its name.
    """

    frontend: str
    compiler: str
    stages: Mapping[str, str]
    name: str = ""
    path: str = ""


def texts_of(source: Any, graph: int | None = None, function: str | None = None) -> list[StageTexts]:
    """Returns the programs of a folder, or of a mapping from stage to text.

    Args:
      source: the folder, or the mapping.
      graph: the number of the one program that is wanted, from 1 on.
      function: the name of the function that is wanted.

    Raises:
      MissingFileError: the folder does not exist.
      ParseError: it has no program with global shapes, or no text with local shapes.
      ArgumentValueError: it has no such graph or function.
    """
    path: Any = source
    stages: Any = source
    if isinstance(source, (str, os.PathLike)):
        rows, where = _read_folder(Path(path)), str(path)
    elif isinstance(source, Mapping):
        rows, where = {str(k): [("", text) for text in graphs(str(v))] for k, v in stages.items()}, "the mapping"
    else:
        raise ArgumentTypeError(
            f"diagnose takes a folder of tt-xla's export_path, or a mapping from stage to text; got {source!r:.100}."
        )
    count = max(map(len, rows.values()), default=0)
    found = [_program(rows, i, count, where, function) for i in range(count)] or [_checked({}, where)]
    return chosen(found, graph, function, where, lambda t: t.frontend)


def graphs(text: str) -> list[str]:
    """Returns the modules of a text, each alone on its lines.

    >>> graphs("module @a {\\n}\\nmodule @b {\\n}\\n")
    ['module @a {\\n}\\n\\n\\n', '\\n\\nmodule @b {\\n}\\n']
    """
    found: list[str] = []
    for piece, line in split(text):
        spans = [m.span() for m in _MODULE.finditer(piece)]
        for own in spans:
            # Aliases stand between modules.
            cut = [piece[a:b] if (a, b) == own else "\n" * piece.count("\n", a, b) for a, b in spans]
            ends = [0, *(b for _, b in spans)], [*(a for a, _ in spans), len(piece)]
            between = [piece[a:b] for a, b in zip(*ends, strict=True)]
            found.append("\n" * (line - 1) + "".join(map("".join, zip(between, [*cut, ""], strict=True))))
    return found if len(found) > 1 else [text]


def chosen(
    found: Sequence[T], graph: int | None, function: str | None, where: str, text: Callable[[T], str]
) -> list[T]:
    """Returns the graphs with a number and a function.

    Raises:
      ArgumentValueError: there is none.
    """
    numbered = found if graph is None else found[max(graph - 1, 0) : graph]
    kept = [g for g in numbered if function is None or function in public_names(text(g))]
    if found and not kept:
        lacking = f"no graph {graph}" if not numbered else f"no function @{function}"
        known = ", ".join(f"{i + 1}: @{', @'.join(public_names(text(g)))}" for i, g in enumerate(found[:20]))
        raise ArgumentValueError(f"{where} has {lacking}; it has the graphs {known}.")
    return kept


def _checked(texts: Mapping[str, str], where: str, name: str = "", path: str = "") -> StageTexts:
    frontend = texts.get("shlo_frontend") or texts.get("shlo")
    stages = {s: texts[s] for s in STAGES if s in texts}
    if not frontend or not stages:
        missing = "shlo_frontend or shlo (the program with global shapes)" if not frontend else "ttir or ttnn"
        raise ParseError(
            f"{where} lacks the text of {missing}; found are {', '.join(sorted(texts)) or 'no texts'}. Export with "
            'compiler_options={"export_path": FOLDER} of tt-xla, whose folder has irs/shlo_frontend*.mlir, '
            "irs/ttir*.mlir and irs/ttnn*.mlir."
        )
    return StageTexts(frontend, texts.get("shlo_compiler", ""), stages, name, path)


def _read_folder(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns by stage the graphs of its files, with the name of the file."""
    if not folder.is_dir():
        raise MissingFileError(f"{str(folder)!r} is not a folder; name a folder of export_path.")
    inner = folder / "irs" if (folder / "irs").is_dir() else folder
    if not os.access(inner, os.R_OK | os.X_OK):
        raise MissingFileError(f"{str(inner)!r} cannot be read; change its permissions with chmod u+rx.")
    found: dict[str, list[tuple[tuple[Any, ...], Path]]] = defaultdict(list)
    for path in sorted(inner.glob("*.mlir")):
        match = _FILE.fullmatch(path.name)
        if match and not _OTHERS.match(match["suffix"]):
            # The suffix has the time in milliseconds, which differs between the stages of one program.
            found[match["stage"]].append((tuple(map(int, _NUMBER.findall(match["suffix"]))), path))
    return {stage: [(p.name, g) for _, p in sorted(paths) for g in graphs(read(p))] for stage, paths in found.items()}


def _program(
    rows: Mapping[str, Sequence[tuple[str, str]]], number: int, count: int, where: str, function: str | None
) -> StageTexts:
    """Returns the texts of one program; the k-th graph of each stage belongs to the k-th program."""
    uneven = {stage: len(found) for stage, found in rows.items() if len(found) != count}
    if uneven and not {"shlo", "shlo_compiler"}.issuperset(uneven):
        raise ParseError(
            f"{where} has {count} programs, but other numbers of {uneven}; keep the files of one program in a folder."
        )
    texts = {stage: only(found[number][1], function) for stage, found in rows.items() if stage not in uneven}
    path = next((rows[s][number][0] for s in ("shlo_frontend", "shlo") if s in texts), "")
    return _checked(texts, where, f"graph {number + 1} of {count}" if count > 1 else "", path)
