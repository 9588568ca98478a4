"""Runs an exported program on the real ttnn: `python runner FOLDER REPORT [--shapes] [--board] [--check]`."""

from __future__ import annotations

import sys
import types
from pathlib import Path

# The packages above are entered by their folders: their own files import JAX, which this Python does not have.
_HERE = Path(__file__).resolve().parent
for _depth, _name in enumerate(
    ("jaxmesh.analysis.judge.runner", "jaxmesh.analysis.judge", "jaxmesh.analysis", "jaxmesh")
):
    _package = types.ModuleType(_name)
    _package.__path__ = [str((_HERE, *_HERE.parents)[_depth])]
    sys.modules[_name] = _package
# Not the folder of this file: its modules are found through their packages.
sys.path = [p for p in sys.path if p != str(_HERE)]

from jaxmesh.analysis.judge.runner.run import main  # noqa: E402

main(sys.argv[1:])
