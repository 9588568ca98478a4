"""Generated tables of documents, most of docs/tables: each between two comments with its name."""

from __future__ import annotations

import re
from pathlib import Path

from tests import ROOT

TABLES = ROOT / "docs" / "tables"


def stored(name: str, document: Path | None = None) -> str:
    """Returns the table of a name that a document has, by default its own in docs/tables."""
    document = document or TABLES / f"{name}.md"
    found = re.search(f"<!-- {name}: begin -->\n(.*)\n<!-- {name}: end -->", document.read_text(), re.DOTALL)
    assert found, f"{document} has no line <!-- {name}: begin -->"
    return found[1].strip()


def write(name: str, text: str, document: Path | None = None) -> None:
    """Writes the table of a name into a document, by default its own in docs/tables."""
    document = document or TABLES / f"{name}.md"
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    new = document.read_text().replace(f"{begin}{stored(name, document)}{end}", f"{begin}{text}{end}")
    document.write_text(new)
