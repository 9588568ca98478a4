"""A program as Tenstorrent's compiler compiled it: the texts of its stages, or a refusal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxmesh.drawing.html import framed, table
from jaxmesh.drawing.text_layout import align_columns
from jaxmesh.errors import FolderError, UpstreamError
from jaxmesh.frontends.mlir.source import read
from jaxmesh.validate import as_path, folder_aside

_STAGE = re.compile(r"(?:vhlo|shlo|ttir|ttnn)(?:_[a-z]+)*")
"""The compiler's names of its stages."""
_REFUSAL = "irs/refusal.txt"
"""The file of a saved program with the reason of its refusal."""


def _is_global(path: Path) -> bool:
    """Returns True for the text of a stage with global shapes, which every reader needs."""
    return path.stem in ("shlo", "shlo_frontend")


@dataclass(frozen=True, slots=True)
class UpstreamRefusal:
    """The reason of the compiler for not compiling a program.

    Attributes:
      message: its first diagnostic, in one line.
      source: the source line of the user, as `file:line:column`; empty if the diagnostic has none.
      name: the operation as JAX named it, such as `jit(f)/reduce`; empty if the diagnostic has none.
      text: everything that the compiler wrote.
    """

    message: str
    source: str = ""
    name: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.message}" if self.source else self.message


@dataclass(frozen=True, eq=False)
class UpstreamProgram:
    """A program as Tenstorrent's compiler compiled or refused it; true if it was compiled.

    Attributes:
      stages: the texts by the compiler's names of its stages, in its order: `vhlo`, `shlo`, `shlo_frontend` (global
        shapes with shardings), ..., `ttir` and `ttnn` (local shapes); as far as it came, if it refused.
      flatbuffer: the program for the runtime, which `ttrt run` takes; None if it was refused.
      refusal: the reason; None if the program was compiled.
      plugin: the compiler's package and version.
      cluster: the machine that was described to it.
      log: what the compiler wrote.
    """

    stages: Mapping[str, str]
    flatbuffer: bytes | None = None
    refusal: UpstreamRefusal | None = None
    plugin: str = ""
    cluster: str = ""
    log: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return self.refusal is None

    @property
    def ttir(self) -> str | None:
        """The TTIR text; None if the compiler did not come so far."""
        return self.stages.get("ttir")

    @property
    def ttnn(self) -> str | None:
        """The TTNN text; None if the compiler did not come so far."""
        return self.stages.get("ttnn")

    def text(self, stage: str) -> str:
        """Returns the text of a stage.

        Raises:
          UpstreamError: the compiler did not come so far; the message has its reason.
        """
        found = self.stages.get(stage)
        if found is None:
            why = "" if self.refusal is None else f", since the compiler refused the program: {self.refusal}"
            raise UpstreamError(f"the text {stage!r} is missing{why}; the texts are {', '.join(self.stages)}.")
        return found

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes the texts and the flatbuffer as tt-xla's option `export_path` does; returns the files.

        The texts are `irs/STAGE.mlir`, the flatbuffer is `fb.ttnn`, the reason of a refusal `irs/refusal.txt`. Those of
        an earlier call are replaced: its texts of global shapes go first, and come last, so that after a kill readers
        refuse the folder.

        Raises:
          ArgumentTypeError: `folder` is not a path.
          FolderError: the files cannot be written.
        """
        home = as_path("save", folder, "folder")
        files = {f"irs/{stage}.mlir": text.encode() for stage, text in self.stages.items()}
        files |= {} if self.flatbuffer is None else {"fb.ttnn": self.flatbuffer}
        files |= {} if self.refusal is None else {_REFUSAL: f"{self.refusal}\n".encode()}
        try:
            with folder_aside(home) as aside:
                (aside / "irs").mkdir()
                for name, data in files.items():
                    (aside / name).write_bytes(data)
                (home / "irs").mkdir(exist_ok=True)
                old = [p for p in (home / "irs").glob("*.mlir") if _STAGE.fullmatch(p.stem)]
                for path in (home / _REFUSAL, *sorted(old, key=_is_global, reverse=True), home / "fb.ttnn"):
                    path.unlink(missing_ok=True)
                for name in sorted(files, key=lambda name: _is_global(Path(name))):
                    os.replace(aside / name, home / name)
        except OSError as error:
            why = error.strerror or error
            raise FolderError(f"{str(home)!r} cannot be written ({why}); name another folder.") from error
        return [home / name for name in files]

    @property
    def heading(self) -> str:
        """The outcome in one line."""
        return f"{'compiled' if self else 'refused'} by {self.plugin} for a described {self.cluster}"

    def rows(self) -> list[tuple[str, str]]:
        """Returns the rows of the table, as names and texts."""
        rows = [] if self.refusal is None else [("where", self.refusal.source or "unknown")]
        rows += [] if self.refusal is None else [("reason", self.refusal.message)]
        rows += [(stage, f"{text.count(chr(10)):,} lines") for stage, text in self.stages.items()]
        return rows + ([] if self.flatbuffer is None else [("flatbuffer", f"{len(self.flatbuffer):,} bytes")])

    def __str__(self) -> str:
        return "\n".join([self.heading, *(f"  {line}" for line in align_columns(self.rows()))])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.heading})"

    def _repr_html_(self) -> str:
        return framed(self.heading, table(self.rows()))


def refused_or_given(source: Any) -> Any:
    """Returns the refused program that `save` wrote into a folder, without its texts; of other sources the source."""
    named: Any = source
    path = Path(named) / _REFUSAL if isinstance(source, (str, os.PathLike)) else None
    if path is None or not path.is_file():
        return named
    return UpstreamProgram({}, refusal=UpstreamRefusal(read(path).strip()))
