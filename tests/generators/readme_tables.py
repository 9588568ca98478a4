"""Generated tables of documents, most of tests/README.md: each between two comments with its name."""

from __future__ import annotations

import re
from pathlib import Path

from tests import ROOT

README = ROOT / "tests" / "README.md"


def stored(name: str, document: Path = README) -> str:
    """Returns the table of a name that a document has."""
    found = re.search(f"<!-- {name}: begin -->\n(.*)\n<!-- {name}: end -->", document.read_text(), re.DOTALL)
    assert found, f"{document} has no line <!-- {name}: begin -->"
    return found[1].strip()


def write(name: str, text: str, document: Path = README) -> None:
    """Writes the table of a name into a document."""
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    new = document.read_text().replace(f"{begin}{stored(name, document)}{end}", f"{begin}{text}{end}")
    document.write_text(new)
