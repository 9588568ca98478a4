"""The texts of one program, one per stage of Tenstorrent's compiler, from a folder of tt-xla's `export_path`."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxmesh.errors import ArgumentTypeError, MissingFileError, ParseError
from jaxmesh.frontends.mlir.source import read

_FILE = re.compile(r"(?P<stage>shlo_frontend|shlo_compiler|shlo|ttir|ttnn)(?P<suffix>(?:[_.-].*)?)\.mlir")
_OTHERS = re.compile(r"_(?:cleaned|set_mesh_attr|runtime)")
_NUMBER = re.compile(r"\d+")
_WIDE = re.compile(r"(?:\dx|tensor<)(?:[su]?i64|f64|complex<f64>)\b")
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
    """

    frontend: str
    compiler: str
    stages: Mapping[str, str]
    name: str = ""

    @property
    def has_wide_types(self) -> bool:
        """Returns True if a text has types that JAX supports only in its x64 mode."""
        return any(map(has_wide_types, (self.frontend, *self.stages.values())))


def has_wide_types(text: str) -> bool:
    """Returns True if a text has types that JAX supports only in its x64 mode."""
    return _WIDE.search(text) is not None


def texts_of(source: Any) -> list[StageTexts]:
    """Returns the programs of a folder, or of a mapping from stage to text.

    Raises:
      MissingFileError: the folder does not exist.
      ParseError: it has no program with global shapes, or no text with local shapes.
    """
    if isinstance(source, StageTexts):
        return [source]
    path: Any = source
    if isinstance(source, (str, os.PathLike)):
        return _read_folder(Path(path))
    stages: Any = source
    if not isinstance(source, Mapping):
        raise ArgumentTypeError(
            f"diagnose takes a folder of tt-xla's export_path, or a mapping from stage to text; got {source!r:.100}."
        )
    return [_checked({str(k): str(v) for k, v in stages.items()}, "the mapping", "")]


def _checked(texts: Mapping[str, str], where: str, name: str) -> StageTexts:
    frontend = texts.get("shlo_frontend") or texts.get("shlo")
    stages = {s: texts[s] for s in STAGES if s in texts}
    if not frontend or not stages:
        missing = "shlo_frontend or shlo (the program with global shapes)" if not frontend else "ttir or ttnn"
        raise ParseError(
            f"{where} lacks the text of {missing}; found are {', '.join(sorted(texts)) or 'no texts'}. Export with "
            'compiler_options={"export_path": FOLDER} of tt-xla, whose folder has irs/shlo_frontend*.mlir, '
            "irs/ttir*.mlir and irs/ttnn*.mlir."
        )
    return StageTexts(frontend, texts.get("shlo_compiler", ""), stages, name)


def _read_folder(folder: Path) -> list[StageTexts]:
    if not folder.is_dir():
        raise MissingFileError(f"{str(folder)!r} is not a folder; name a folder of export_path.")
    inner = folder / "irs"
    found: dict[str, list[tuple[tuple[Any, ...], Path]]] = defaultdict(list)
    for path in sorted((inner if inner.is_dir() else folder).glob("*.mlir")):
        match = _FILE.fullmatch(path.name)
        if match and not _OTHERS.match(match["suffix"]):
            # The suffix has the time in milliseconds, which differs between the stages of one program.
            found[match["stage"]].append((tuple(map(int, _NUMBER.findall(match["suffix"]))), path))
    rows = {stage: [path for _, path in sorted(paths)] for stage, paths in found.items()}
    count = max(map(len, rows.values()), default=0)
    return [_program(rows, i, count, folder) for i in range(count)] or [_checked({}, str(folder), "")]


def _program(rows: Mapping[str, Sequence[Path]], number: int, count: int, folder: Path) -> StageTexts:
    """Returns the texts of one program; the k-th file of each stage belongs to the k-th program."""
    uneven = {stage: len(paths) for stage, paths in rows.items() if len(paths) != count}
    if uneven and not {"shlo", "shlo_compiler"}.issuperset(uneven):
        raise ParseError(
            f"{folder} has {count} programs, but other numbers of {uneven}; keep the files of one program in a folder."
        )
    texts = {stage: read(paths[number]) for stage, paths in rows.items() if stage not in uneven}
    return _checked(texts, str(folder), f"program {number + 1} of {count}" if count > 1 else "")
