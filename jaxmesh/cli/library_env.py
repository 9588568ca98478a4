"""`jaxmesh ttnn-env`, `upstream-env` and `chip-env`: create environments with Tenstorrent's own libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxmesh.analysis.chip import environment as chip
from jaxmesh.analysis.environments import Library
from jaxmesh.analysis.judge import environment as ttnn
from jaxmesh.analysis.upstream import environment as upstream
from jaxmesh.cli.options import Commands, add_command

TTNN_ENV = """\
Makes a virtual environment with Tenstorrent's own ttnn, for jaxmesh run --on ttnn and lowered.judge(). It needs a
package index, 700 MB, and Python 3.12 or 3.10. No board is needed: ttnn then judges programs on clusters that are only
described, and a stand-in takes the place of the compiler of kernels, which such devices do not run."""

UPSTREAM_ENV = """\
Makes a virtual environment with Tenstorrent's own compiler (tt-xla and tt-mlir, a plugin of JAX), for
lowered.upstream(). It needs a package index, 700 MB, x86-64 Linux, and Python 3.11 or newer. No board is needed: the
compiler then compiles for a machine that is only described. --plugin PATH names one that is installed, to check it."""

CHIP_ENV = """\
Makes a virtual environment with ttnn, a compiler of kernels, and a simulator of one Blackhole, for
lowered.run_on_chip(). It needs a package index, 1,300 MB, Python 3.12 or 3.10, and upstream-env for the compiler."""

NOTES = """\
exit codes: 0 made, 2 an error (one line on standard error)"""


def add_commands(commands: Commands) -> None:
    """Adds the commands to the parser of the command line."""
    _add(commands, ttnn.TTNN, TTNN_ENV)
    _add(commands, chip.CHIP, CHIP_ENV)
    parser = _add(commands, upstream.UPSTREAM, UPSTREAM_ENV)
    parser.add_argument(
        "--plugin", metavar="PATH", help="make nothing: check this plugin (its library, or a Python that has it)"
    )


def _add(commands: Commands, library: Library, description: str) -> argparse.ArgumentParser:
    parser = add_command(commands, library.command, description, NOTES)
    about = f"a new folder (default: {library.folder})"
    parser.add_argument(
        "folder", metavar="DIR", type=lambda p: Path(p).absolute(), nargs="?", default=library.folder, help=about
    )
    parser.add_argument(
        "--version", default=library.tested,
        help=f"of {library.requirement} (default: {library.tested}, which jaxmesh is tested with)",
    )  # fmt: skip
    parser.add_argument("--python", metavar="PYTHON", help="the Python to make it from (default: one that is found)")
    return parser


def ttnn_env(arguments: argparse.Namespace) -> None:
    """Creates the environment of ttnn, and prints the variable that selects it."""
    made = ttnn.make_environment(arguments.folder, arguments.version, arguments.python)
    _say(ttnn.TTNN, f"ttnn {made.version}", arguments.folder, made.python)


def upstream_env(arguments: argparse.Namespace) -> None:
    """Creates the environment of the compiler, or checks a plugin, by compiling one program."""
    from jaxmesh.analysis.upstream import check_plugin

    if arguments.plugin is not None:
        print(f"{check_plugin(arguments.plugin)} compiles; export {upstream.UPSTREAM.variable}={arguments.plugin}")
        return
    made = upstream.make_environment(arguments.folder, arguments.version, arguments.python)
    check_plugin(made.python)
    _say(upstream.UPSTREAM, str(made), arguments.folder, made.python)


def chip_env(arguments: argparse.Namespace) -> None:
    """Creates the environment of the simulated chip, and prints the variable that selects it."""
    versions = chip.make_environment(arguments.folder, arguments.version, arguments.python)
    _say(chip.CHIP, versions, arguments.folder, arguments.folder / "bin" / "python")


def _say(library: Library, what: str, folder: Path, python: Path) -> None:
    print(f"{what} in {folder}")
    if folder != library.folder:
        print(f"export {library.variable}={python}")
