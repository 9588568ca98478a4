"""Generated tables of tests/README.md: each between two comments with its name."""

from __future__ import annotations

import re

from tests import ROOT

README = ROOT / "tests" / "README.md"


def stored(name: str) -> str:
    """Returns the table of a name that tests/README.md has."""
    found = re.search(f"<!-- {name}: begin -->\n(.*)\n<!-- {name}: end -->", README.read_text(), re.DOTALL)
    assert found, f"{README} has no line <!-- {name}: begin -->"
    return found[1].strip()


def write(name: str, text: str) -> None:
    """Writes the table of a name into tests/README.md."""
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    README.write_text(README.read_text().replace(f"{begin}{stored(name)}{end}", f"{begin}{text}{end}"))
