"""The pages of docs/upstream-errors: an issue for tt-mlir of each row, as `report` writes it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax

import jaxmesh as jm
from tests import ROOT
from tests.generators.outcome import Say
from tests.generators.upstream.rows import PLUGIN, ROWS, Row

FOLDER = ROOT / "docs" / "upstream-errors"


def page_of(row: Row) -> Path:
    """Returns the file of a row."""
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', row.name.lower()).strip('-')}.md"


def index() -> str:
    """Returns the page that lists the others."""
    lines = [
        "# What Tenstorrent's compiler compiles wrongly or refuses",
        "",
        f"Each page is an issue for tt-mlir, as `lowered.upstream().report()` writes it: {PLUGIN}, a described T3000. "
        "`python -m tests.generators.upstream --pages` writes them.",
        "",
        "| cause | verdict | after `repair` |",
        "|---|---|---|",
    ]
    return "\n".join([
        *lines,
        *(f"| [{r.name}]({page_of(r).name}) | {r.verdict} | {r.stays or 'right'} |" for r in ROWS),
    ]) + "\n"  # fmt: skip


def page_text(row: Row) -> str:
    """Compiles the smallest program of a row, and returns its page."""
    candidate = row.program.candidate()
    with warnings.catch_warnings(), jax.enable_x64(candidate.wide):
        warnings.simplefilter("ignore")
        made = jm.jit(candidate.fun, **candidate.options).lower(*candidate.args).upstream()
        return made.report(*candidate.args).replace("<program>:1", f"`{row.program.source}`")


def write_pages(names: Sequence[str], say: Say) -> None:
    """Writes the pages of the rows of these names, or of all rows, and the list of them."""
    unknown = set(names) - {r.name for r in ROWS}
    if unknown:
        raise SystemExit(f"no row of tests/generators/upstream/rows.py has the name {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    for row in (r for r in ROWS if not names or r.name in names):
        page_of(row).write_text(page_text(row))
        say(row.name)
    (FOLDER / "README.md").write_text(index())
