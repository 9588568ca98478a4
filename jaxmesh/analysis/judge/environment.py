"""The Python environment of ttnn: finds it, checks it, and creates it from a package index."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from jaxmesh.analysis.environments import Library
from jaxmesh.errors import TtnnError

_ASK = """
import importlib.util, json, platform
from importlib.metadata import PackageNotFoundError, version
try:
    installed = version("ttnn")
except PackageNotFoundError:
    installed = None
spec = importlib.util.find_spec("ttnn")
folder = spec and spec.submodule_search_locations[0]
print(json.dumps({"python": platform.python_version(), "version": installed, "folder": folder}))
"""

TTNN = Library(
    name="ttnn",
    requirement="ttnn",
    tested="0.81.1",
    pythons=("3.12", "3.10"),
    variable="JAXMESH_TTNN_PYTHON",
    command="ttnn-env",
    megabytes=700,
    error=TtnnError,
    question=_ASK,
)
_COMPILER_FOLDER = Path("runtime", "sfpi", "compiler", "bin")


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with ttnn.

    Attributes:
      python: the path of its executable.
      version: the version of ttnn.
      stand_in: True if a stand-in replaces the compiler of kernels: only mock devices work.
    """

    python: Path
    version: str
    stand_in: bool


def find_environment(python: str | os.PathLike[str] | None = None) -> Environment:
    """Returns the environment of `python`, else of the Python in `JAXMESH_TTNN_PYTHON`, else the one from `ttnn-env`.

    Raises:
      TtnnError: no Python was found, or it cannot be started, or ttnn is not installed in it.
    """
    return check_python(*TTNN.find(python))


def check_python(python: Path, why: str) -> Environment:
    """Returns the environment of a Python with ttnn.

    Raises:
      TtnnError: the Python cannot be started, or ttnn is not installed in it.
    """
    answer = TTNN.ask(python, why)
    stand_in = (Path(answer["folder"]) / _COMPILER_FOLDER / PROGRAM).exists()
    return Environment(python, str(answer["version"]), stand_in)


def make_environment(
    folder: Path, version: str = TTNN.tested, python: str | os.PathLike[str] | None = None
) -> Environment:
    """Creates a virtual environment with ttnn and a stand-in for the compiler of kernels.

    An environment with this version is kept. So is a compiler of kernels that came with ttnn.

    Raises:
      TtnnError: no supported Python was found, or pip cannot install ttnn; the message has pip's reason.
    """
    own = TTNN.install(folder, version, python, _add_stand_in)
    return check_python(own, "it was made just now")


def _add_stand_in(folder: Path) -> None:
    site = next(folder.glob("lib/python3*/site-packages/ttnn"), None)
    if site is None:
        raise TtnnError(f"pip installed ttnn, but the package ttnn is missing in {str(folder)!r}; try again.")
    compiler = site / _COMPILER_FOLDER
    if not compiler.exists() or (compiler / PROGRAM).exists():
        install_stand_in(compiler)


# --- a stand-in for the compiler of kernels ---------------------------------------------------------------------------

# Mock devices run no kernel, but ttnn loads one for every op that it plans. The stand-in copies one small program for
# RISC-V to the path of each compiled kernel. It has the parts that ttnn's loader reads: a text segment at its address,
# a symbol table, and the relocations of the text.


COMPILER = "riscv-tt-elf-g++"
PROGRAM = "stand_in.elf"
_ADDRESS = 0x4000
_RETURN, _NOTHING = 0x00008067, 0x00000013  # ret, nop
_HEADER, _SEGMENT = 52, 32  # bytes of the headers of a 32-bit ELF file, and of one segment
_EXECUTABLE, _RISCV, _LOAD = 2, 243, 1
_READ_EXECUTE = 5

SCRIPT = f"""\
#!/bin/sh
# Made by jaxmesh ttnn-env: stands in for the compiler of kernels, which mock devices do not run.
case "$1" in
  --version | -dumpversion | -dumpfullversion) echo "{COMPILER} (stand-in of jaxmesh) 15.1.0"; exit 0 ;;
esac
out= before=
for argument in "$@"; do
  [ "$before" = -o ] && out=$argument
  before=$argument
done
[ -z "$out" ] && exit 0
cp "${{0%/*}}/{PROGRAM}" "$out"
echo "$out:" > "${{out%.*}}.d"
"""


def stand_in_program() -> bytes:
    """Returns the smallest 32-bit RISC-V executable that ttnn's loader accepts."""
    text = struct.pack("<4I", _RETURN, _NOTHING, _NOTHING, _NOTHING)
    names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0.rela.text\0"
    # The fields of a section's header: name, type, flags, address, data, link, info, alignment, size of an entry.
    sections = (
        (b".text", 1, 6, _ADDRESS, text, 0, 0, 4, 0),
        (b".symtab", 2, 0, 0, bytes(16), 3, 1, 4, 16),
        (b".strtab", 3, 0, 0, b"\0", 0, 0, 1, 0),
        (b".shstrtab", 3, 0, 0, names, 0, 0, 1, 0),
        (b".rela.text", 4, 0x40, 0, struct.pack("<IIi", _ADDRESS, 0, 0), 2, 1, 4, 12),
    )
    offset, body, table = _HEADER + _SEGMENT, b"", bytes(40)
    for name, kind, flags, address, data, *links, align, entry in sections:
        body += bytes(-(offset + len(body)) % align)
        fields = (kind, flags, address, offset + len(body), len(data), *links, align, entry)
        table += struct.pack("<10I", names.index(name + b"\0"), *fields)
        body += data
    body += bytes(-(offset + len(body)) % 4)
    magic = b"\x7fELF" + bytes((1, 1, 1)) + bytes(9)
    head = struct.pack("<HHIIIIIHHHHHH", _EXECUTABLE, _RISCV, 1, _ADDRESS, _HEADER, offset + len(body), 0,
                       _HEADER, _SEGMENT, 1, 40, len(sections) + 1, 4)  # fmt: skip
    segment = struct.pack("<8I", _LOAD, offset, _ADDRESS, _ADDRESS, len(text), len(text), _READ_EXECUTE, 4)
    return magic + head + segment + body + table


def install_stand_in(folder: Path) -> None:
    """Writes the stand-in into the compiler's folder of a ttnn installation."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(stand_in_program())
    script = folder / COMPILER
    script.write_text(SCRIPT)
    script.chmod(0o755)
