"""`jaxmesh run DIR --on ttnn`: an exported folder on the real library."""

from __future__ import annotations

import argparse

from jaxmesh.analysis.judge import judge_folder
from jaxmesh.analysis.judge.environment import TTNN
from jaxmesh.cli.options import cluster_option
from jaxmesh.errors import ArgumentTypeError, printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the real library."""
    parser.add_argument(
        "--on", choices=("emulation", "ttnn"), default="emulation",
        help="of an exported folder: the emulated ttnn (the default), or the real one",
    )  # fmt: skip
    parser.add_argument(
        "--ttnn-python", metavar="PYTHON",
        help=f"with --on ttnn: the Python that has it (default: that of {TTNN.variable}, or of jaxmesh ttnn-env)",
    )  # fmt: skip
    cluster_option(parser, "with --on ttnn, the machine to describe (default: the board, or the smallest that fits)")


def check_options(arguments: argparse.Namespace, is_folder: bool) -> None:
    """Checks that `--on ttnn` is given an exported folder, and its options `--on ttnn`.

    Raises:
      ArgumentTypeError: `--on ttnn` with a file, or one of its options without it.
    """
    if arguments.on == "ttnn":
        if not is_folder:
            raise ArgumentTypeError(
                f"--on ttnn runs an exported folder, but {arguments.file!r} is not one; export it first: jaxmesh "
                "translate FILE --to python --out DIR."
            )
        return
    for option, value in (("--ttnn-python", arguments.ttnn_python), ("--cluster", arguments.cluster)):
        if value is not None:
            raise ArgumentTypeError(f"{option} is an option of runs on the real ttnn and needs --on ttnn; add that.")


def run_on_ttnn(arguments: argparse.Namespace) -> int:
    """Runs an exported folder on the real library and prints the verdict; returns the exit code: 1 if it is refused."""
    verdict = judge_folder(
        arguments.file,
        python=arguments.ttnn_python,
        cluster=arguments.cluster,
        shapes=arguments.make_inputs is not None,
        check=arguments.check,
    )
    print(printable(verdict.output), end="")
    print(printable(str(verdict)))
    return verdict.exit_code if verdict else 1
