"""`jaxmesh ttnn-env`: creates an environment with the real ttnn, which judges programs without a board."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxmesh.analysis.judge.environment import TESTED, VARIABLE, default_folder, make_environment
from jaxmesh.cli.options import add_command

TTNN_ENV = """\
Makes a virtual environment with Tenstorrent's own ttnn, for jaxmesh run --on ttnn and lowered.judge(). It needs a
package index, 700 MB, and Python 3.12 or 3.10. No board is needed: ttnn then judges programs on clusters that are only
described, and a stand-in takes the place of the compiler of kernels, which such devices do not run."""

NOTES = """\
exit codes: 0 made, 2 an error (one line on standard error)"""


def add_commands(commands: Any) -> None:
    """Adds `ttnn-env` to the parser of the command line."""
    parser = add_command(commands, "ttnn-env", "make an environment with the real ttnn", TTNN_ENV, NOTES)
    parser.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", help=f"a new folder (default: {default_folder()})"
    )
    parser.add_argument("--version", default=TESTED, help=f"of ttnn (default: {TESTED}, which jaxmesh is tested with)")
    parser.add_argument("--python", metavar="PYTHON", help="the Python to make it from (default: one that is found)")


def ttnn_env(arguments: argparse.Namespace) -> None:
    """Creates the environment, and prints the variable that selects it."""
    folder = (arguments.folder or default_folder()).absolute()
    environment = make_environment(folder, arguments.version, arguments.python)
    print(f"ttnn {environment.version} in {folder}")
    if folder != default_folder():
        print(f"export {VARIABLE}={environment.python}")
