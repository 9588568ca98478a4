"""Runs an exported program on the real ttnn: `python runner FOLDER REPORT [--shapes] [--board] [--check]`."""

from __future__ import annotations

import sys
import types
from pathlib import Path


def enter_packages() -> None:
    """Makes the modules of this folder importable by their names.

    The parent packages are registered by folder only: their files import JAX, which this Python does not have.
    """
    folder, name = Path(__file__).resolve().parent, "jaxmesh.analysis.judge.runner"
    # Without this file's own folder: its modules are imported through their packages.
    sys.path = [p for p in sys.path if p != str(folder)]
    while name:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
        folder, name = folder.parent, name.rpartition(".")[0]


if __name__ == "__main__":
    enter_packages()
    from jaxmesh.analysis.judge.runner.run import main

    main(sys.argv[1:])
