"""The tests; `tests/README.md` shows what they prove and how to run them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
FILECHECK = ROOT / "tests" / "filecheck"
