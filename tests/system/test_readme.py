"""The README's Python and commands run and print what is shown; its picture is what `jm.visualize` draws.

Every path that the documents name exists.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)
MOST_BYTES = 18_000


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def without_digits(text: str) -> str:
    """Sums over devices may be taken in any order, so the last digits are not the same each time."""
    return re.sub(r"(?<==)[-+.0-9a-f]+|(?<=difference )[-+.0-9e]+", "#", one_line(text))


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= MOST_BYTES


def test_quick_start_has_two_blocks_of_one_line() -> None:
    section = re.search(r"^## Quick start\s*$(.*?)(?=^## )", README, re.M | re.S)
    assert section is not None
    commands = re.findall(r"^```bash\n(.*?)^```", section[1], re.M | re.S)
    assert [c.count("\n") for c in commands] == [1, 1]


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


PATH = re.compile(r"(?<![\w./-])(?:[\w.-]|\{[\w,]+\})+/(?:[\w./-]|\{[\w,]+\})*")


def paths_in(text: str) -> set[str]:
    """The paths of files and folders in a document; `a/{b,c}` names two."""
    found = set(PATH.findall(text))
    while braced := {p for p in found if "{" in p}:
        found -= braced
        for path in braced:
            before, options, after = re.split(r"[{}]", path, maxsplit=2)
            found |= {f"{before}{option}{after}" for option in options.split(",")}
    return {p.rstrip(".") for p in found}


@pytest.mark.parametrize(
    "document", ["README.md", ".github/CONTRIBUTING.md", "tests/README.md", "tests/benchmarks/README.md"]
)
def test_the_paths_in_a_document_exist(document: str) -> None:
    folders = (ROOT, ROOT / "jaxmesh", (ROOT / document).parent)
    first = {p.name for folder in folders for p in folder.iterdir() if p.is_dir()}
    paths = {p for p in paths_in((ROOT / document).read_text()) if p.split("/")[0] in first}
    assert paths
    assert sorted(p for p in paths if not any((folder / p).exists() for folder in folders)) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    assert paths_in("see `tests/{a,b}/c.py`, jaxmesh/emit/.") == {"tests/a/c.py", "tests/b/c.py", "jaxmesh/emit/"}


def test_python_blocks_print_the_texts_after_them() -> None:
    """A text block shows what the python block before it prints, in order; `...` stands for what is left out."""
    names: dict[str, Any] = {"__name__": "readme"}
    printed, at, shown = "", 0, 0
    for kind, text in BLOCKS:
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(text, names)
            printed, at = one_line(out.getvalue()), 0
        elif kind == "text" and printed:
            for part in text.split("..."):
                at = printed.index(one_line(part), at)
                shown += 1
    assert shown > 10


def test_the_error_is_the_one_shown() -> None:
    source = "\n".join(blocks("python")[:2]).replace('lax.psum(jnp.tanh(x @ w1) @ w2, "x")', "jnp.tanh(x @ w1) @ w2")
    with pytest.raises(jm.ReplicationError) as caught:
        exec(source, {"__name__": "readme"})
    (shown,) = blocks("pytb")
    assert str(caught.value) == one_line(shown).removeprefix("jaxmesh.errors.ReplicationError: ")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "matmul.mlir").write_text(blocks("mlir")[0])
    jaxmesh = f'jaxmesh() {{ "{sys.executable}" -m jaxmesh "$@"; }}'
    # Where the package is not installed, the child finds it as this process does.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for block in blocks("console"):
        commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
        shown = "\n".join(line for line in block.splitlines() if not line.startswith("$ "))
        script = "\n".join([jaxmesh, *commands])
        done = subprocess.run(
            ["bash", "-uc", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is ("error" not in shown), done.stderr
        if shown:
            assert without_digits(done.stdout + done.stderr) == without_digits(shown)
    assert done.stdout.splitlines()[-1].endswith(": ok")


def test_the_picture_is_what_is_drawn() -> None:
    """Set JAXMESH_GOLDEN=write to write it anew."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    drawn = jm.visualize((8, 16), P(None, "x"), mesh=mesh)._repr_svg_()
    if os.environ.get("JAXMESH_GOLDEN") == "write":
        (ROOT / ".github" / "w1.svg").write_text(drawn)
    assert (ROOT / ".github" / "w1.svg").read_text() == drawn
