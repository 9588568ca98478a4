"""The README's Python and commands print what is shown; its picture is what `jm.visualize` draws.

Every path that the documents name exists.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

import jaxmesh as jm
from jaxmesh.analysis.diagnose.diagnosis import WRONG
from tests import ROOT
from tests.generators.readme import (
    GUIDE,
    LOWERING,
    NEEDS,
    PICTURE,
    README,
    SCRIPT,
    blocks_of,
    calls_of,
    differences,
    draw,
    fit,
    renew,
    without_digits,
)
from tests.generators.upstream.report import stored_counts

TEXT = README.read_text()
BLOCKS = blocks_of(TEXT)
MOST_BYTES = 12_288
QUESTIONS = 4
SCREEN, COLUMNS = 54, 115
"""The lines of text of the first screen, and the columns of a line on GitHub."""


def blocks(language: str) -> list[str]:
    return [block.text for block in BLOCKS if block.language == language]


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_the_readme_is_short() -> None:
    assert len(TEXT.encode()) <= MOST_BYTES


def test_quick_start_has_two_blocks_of_one_line() -> None:
    section = re.search(r"^## Quick start\s*$(.*?)(?=^## )", TEXT, re.M | re.S)
    assert section is not None
    commands = re.findall(r"^```bash\n(.*?)^```", section[1], re.M | re.S)
    assert [c.count("\n") for c in commands] == [1, 1]


def test_the_questions_come_first_and_mlir_after_them() -> None:
    """Each question has a call with what it prints; the first screen shows no text of the compiler."""
    screen = TEXT[: TEXT.index("\n## ")]
    assert re.findall(r"^\*\*(\d)\. .*\?\*\*", screen, re.M) == [str(n + 1) for n in range(QUESTIONS)]
    for part in re.split(r"^\*\*\d\. ", screen, flags=re.M)[1:]:
        (block,) = blocks_of(part)
        assert block.language == "pycon"
        *_, (_, last) = calls_of(block)
        assert last
    assert "mesh_shard" not in screen
    assert "<{" not in screen


def test_the_first_screen_is_one_screen() -> None:
    """The lines of code, and of prose as GitHub folds it: a link shows its text alone, a paragraph is one line."""
    screen = TEXT[: TEXT.index("\n## ")]
    code = [line for block in blocks_of(screen) for line in block.text.splitlines() if line]
    prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"^```\w+\n.*?^```$", "", screen, flags=re.M | re.S))
    lines = [line for part in prose.split("\n\n") for line in textwrap.wrap(re.sub(r"[*`]", "", part), COLUMNS)]
    assert len(code) + len(lines) <= SCREEN


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
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
    "document",
    ["README.md", "docs/lowering.md", ".github/CONTRIBUTING.md", "tests/README.md", "tests/benchmarks/README.md"],
)
def test_the_paths_in_a_document_exist(document: str) -> None:
    folders = (ROOT, ROOT / "jaxmesh", (ROOT / document).parent)
    first = {p.name for folder in folders for p in folder.iterdir() if p.is_dir()}
    paths = {p for p in paths_in((ROOT / document).read_text()) if p.split("/")[0] in first}
    assert paths
    assert sorted(p for p in paths if not any((folder / p).exists() for folder in folders)) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    assert paths_in("see `tests/{a,b}/c.py`, jaxmesh/emit/.") == {"tests/a/c.py", "tests/b/c.py", "jaxmesh/emit/"}


def test_blocks_print_what_is_shown() -> None:
    """Each text that can be printed here is blanked, and comes back; `python -m tests.generators.readme` writes it."""
    missing = [call for call, variable in NEEDS.items() if variable not in os.environ]
    blank = TEXT
    for before, block in zip(BLOCKS[-2::-1], BLOCKS[:0:-1], strict=True):
        calls = before.text if block.language == "text" else block.text
        if block.language in ("text", "pycon") and not any(call in calls for call in missing):
            text = re.sub(r"^(?!\.\.\.$|>>> )\S.*$", "other", block.text, flags=re.M)
            blank = blank[: block.begin] + text + blank[block.end :]
    assert blank.count("other\n") > QUESTIONS
    assert without_digits(renew(blank)) == without_digits(TEXT)


def test_the_lowering_prints_what_is_shown() -> None:
    text = LOWERING.read_text()
    assert len(text.encode()) <= 4096
    blank = re.sub(r"^    %\d+ = \"ttnn.*$", "other", text, flags=re.M)
    assert blank.count("other\n") == 2
    assert renew(blank) == text


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_the_guide_prints_what_is_shown(page: Path) -> None:
    assert differences(page) == ""


def test_lines_that_are_left_out_stay_so() -> None:
    printed = "".join(f"line {n}\n" for n in range(9))
    assert fit("a\n", printed) == printed
    assert fit("a\nb\n...\n", printed) == "line 0\nline 1\n...\n"
    assert fit("a\n...\nline 4\n...\nb\n", printed) == "line 0\n...\nline 4\n...\nline 8\n"
    with pytest.raises(ValueError, match="not found"):
        fit("a\n...\nline 9\n...\n", printed)


def test_the_error_is_the_one_shown() -> None:
    right = next(n for n, text in enumerate(blocks("python")) if "lax.psum" in text)
    source = "\n".join([blocks("python")[0], blocks("python")[right]])
    wrong = source.replace('lax.psum(jnp.tanh(x @ w1) @ w2, "x")', "jnp.tanh(x @ w1) @ w2")
    assert wrong != source
    with pytest.raises(jm.ReplicationError) as caught:
        exec(compile(wrong, SCRIPT, "exec"), {"__name__": "readme"})
    (shown,) = blocks("pytb")
    assert str(caught.value) == one_line(shown).removeprefix("jaxmesh.errors.ReplicationError: ")


def test_the_count_of_wrong_compiles_is_the_stored_one() -> None:
    counts = stored_counts()
    assert f"{counts.verdicts[WRONG]:,} of {counts.programs:,} programs" in one_line(TEXT)


def test_the_picture_is_what_is_drawn() -> None:
    assert PICTURE.read_text() == draw()
