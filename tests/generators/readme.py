"""The blocks of README.md, docs/lowering.md and docs/guide/ as they run.

`python -m tests.generators.readme` writes what they print.
With `--check` it says what would change. It needs the packages that the README installs, and no other.

A text block shows what the python block before it prints, a pycon block what each of its calls prints. A line `...`
stands for lines left out: what is before the first is the beginning of the output, what is after the last is its end,
and what is between two stands in it as it is.
The judge, upstream's compiler and the simulated chip are asked where `JAXMESH_TTNN_PYTHON`, `JAXMESH_UPSTREAM_PYTHON`
and `JAXMESH_CHIP_PYTHON` name them.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests import ROOT

README, PICTURE, LOWERING = ROOT / "README.md", ROOT / ".github" / "w1.svg", ROOT / "docs" / "lowering.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
SCRIPT = "mlp.py"
"""The file that a reader copies the python blocks into, one after the other."""
TEXT = "shard.mlir"
"""The file of an mlir block."""
NEEDS = {
    ".judge(": "JAXMESH_TTNN_PYTHON",
    ".upstream(": "JAXMESH_UPSTREAM_PYTHON",
    ".run_on_chip(": "JAXMESH_CHIP_PYTHON",
}
"""The variables without which a block with such a call does not run."""
LEFT_OUT = "..."
_WIDTH = 120
_PROMPT = ">>> "
_NEXT = "\x1e"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document: its language, its text, and where the text begins and ends."""

    language: str
    text: str
    begin: int
    end: int


def blocks_of(document: str) -> list[Block]:
    """Returns the blocks of a document in order."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```", document, re.M | re.S)
    return [Block(m[1], m[2], m.start(2), m.end(2)) for m in found]


def run_python(blocks: Sequence[Block]) -> dict[int, str]:
    """Returns what the python blocks print, and the sessions, by the number of the block.

    Blocks that need what is missing are left out.
    """
    names: dict[str, Any] = {"__name__": "readme"}
    shown = dict[int, str]()
    line, lacking = 0, set[str]()
    for number, block in enumerate(blocks):
        can_run = all(variable in os.environ for call, variable in NEEDS.items() if call in block.text)
        can_run = can_run and lacking.isdisjoint(re.findall(r"\w+", block.text))
        if not can_run and block.language == "python":
            lacking |= set(re.findall(r"^(\w+) = ", block.text, re.M)) - names.keys()
        if block.language == "pycon" and can_run:
            shown[number] = "".join(f"{_PROMPT}{call}\n{fit(text, run(call, names))}" for call, text in calls_of(block))
        elif block.language == "python":
            if can_run:
                shown[number] = run("\n" * line + block.text, names)
            line += block.text.count("\n")
    return shown


def run(code: str, names: dict[str, Any]) -> str:
    """Returns what a piece of the script prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, SCRIPT, "exec"), names)
    return out.getvalue()


def calls_of(block: Block) -> list[tuple[str, str]]:
    """Returns the calls of a session, each of one line, with the text that is shown after it."""
    return [(m[1], m[2]) for m in re.finditer(rf"^{_PROMPT}(.*)\n((?:(?!{_PROMPT}).*\n)*)", block.text, re.M)]


def run_console(block: Block, folder: Path) -> str:
    """Returns a console block with what its commands print in a folder; long lines of messages are wrapped."""
    commands = [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]
    jaxmesh = f'jaxmesh() {{ "{sys.executable}" -m jaxmesh "$@"; }}'
    script = f"\nprintf '{_NEXT}'\n".join([f"cd {folder}; {jaxmesh}", *commands])
    # Where the package is not installed, the child finds it as this process does.
    package = Path(jm.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        ["bash", "-uc", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    _, *outputs = done.stdout.split(_NEXT)
    return "".join(f"$ {command}\n{wrap(out)}" for command, out in zip(commands, outputs, strict=True))


def wrap(text: str) -> str:
    """Returns lines with those wrapped that are too long for a document; operations of MLIR stay as they are."""
    return "".join(_wrapped(line) + "\n" for line in text.splitlines())


def _wrapped(line: str) -> str:
    return line if line.startswith(" ") else textwrap.fill(line, _WIDTH, break_on_hyphens=False)


def fit(shown: str, printed: str) -> str:
    """Returns what is printed with as many lines left out as a shown text leaves out."""
    lines = printed.splitlines()
    parts = [part.strip("\n").splitlines() for part in re.split(rf"^{re.escape(LEFT_OUT)}$", shown, flags=re.M)]
    if len(parts) == 1:
        return "".join(f"{line}\n" for line in lines)
    head, *middle, tail = parts
    joined, at = "\n".join(lines), 0
    for part in middle:
        at = joined.index("\n".join(part), at)
    cut = [lines[: len(head)], *middle, lines[len(lines) - len(tail) :]]
    return f"\n{LEFT_OUT}\n".join("\n".join(part) for part in cut).strip("\n") + "\n"


def renew(document: str) -> str:
    """Returns a document with what its blocks print now."""
    blocks = blocks_of(document)
    new = dict[int, str]()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            printed = run_python(blocks)
        for number, block in enumerate(blocks):
            if block.language == "mlir":
                (Path(folder) / TEXT).write_text(block.text)
            if block.language == "text" and number - 1 in printed:
                new[number] = fit(block.text, printed[number - 1])
            elif block.language == "pycon" and number in printed:
                new[number] = printed[number]
            elif block.language == "console" and ("g++" not in block.text or shutil.which("g++")):
                new[number] = run_console(block, Path(folder))
    return _replace(document, blocks, new)


def without_digits(text: str) -> str:
    """Sums over devices may be taken in any order, so the last digits are not the same each time."""
    return re.sub(r"(?<==)[-+.0-9a-f]+|(?<=difference )[-+.0-9e]+", "#", text)


def differences(document: Path) -> str:
    """Returns how a document differs from what its blocks print now, apart from the last digits of sums."""
    text = document.read_text()
    lines = [without_digits(t).splitlines(keepends=True) for t in (text, renew(text))]
    return "".join(difflib.unified_diff(*lines, document.name, "what its blocks print"))


def _replace(document: str, blocks: Sequence[Block], new: Mapping[int, str]) -> str:
    for number in sorted(new, reverse=True):
        block = blocks[number]
        document = document[: block.begin] + new[number] + document[block.end :]
    return document


def draw() -> str:
    """Returns the picture of the README."""
    return jm.visualize((1024, 4096), P(None, "x"), mesh=jm.make_mesh((2, 4), ("y", "x")))._repr_svg_()


def main() -> str | None:
    """Writes what the blocks print, or returns how it differs from what is written."""
    parser = argparse.ArgumentParser(prog="python -m tests.generators.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if anything would change")
    documents = README, LOWERING, *GUIDE
    if parser.parse_args().check:
        return "".join(map(differences, documents)) or None
    for document in documents:
        document.write_text(renew(document.read_text()))
    PICTURE.write_text(draw())
    return None


if __name__ == "__main__":
    sys.exit(main())
