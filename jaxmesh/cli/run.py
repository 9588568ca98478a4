"""`jaxmesh run`: runs a TTIR or StableHLO file, or an exported folder, on emulated devices."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

import jaxmesh as jm
from jaxmesh.analysis.judge import judge_folder
from jaxmesh.analysis.judge.environment import TTNN
from jaxmesh.analysis.judge.judge import UNREADABLE
from jaxmesh.analysis.record.metrics import largest_difference, tolerance
from jaxmesh.cli import options
from jaxmesh.cli.options import Commands
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.errors import ArgumentTypeError, printable
from jaxmesh.runtime import npz
from jaxmesh.runtime.progress import progress
from jaxmesh.validate import whole_file

RUN = """\
Runs one function of a TTIR or StableHLO file on emulated devices, and prints a line per result. Inputs come from an
.npz file, or are random. FILE may be - for standard input, or a folder that an export wrote (jaxmesh translate --out,
codegen_py): then its Python program is run, with its own inputs, and --check compares with its expected results. Both
ways --check also compares, on the devices, all copies that are taken to be equal although no type proves it. With --on
ttnn a folder is run on the real library instead: on the board, or on a cluster that is only described, where every
operation checks its arguments and takes its memory, and computes nothing. It prints whether the program is accepted, or
where and why it is refused, the memory of each device, what is left in it, and the device operations."""

RUN_NOTES = """\
arrays in .npz files:
  inputs are named arg0, arg1, ...; results result0, result1, ...
  a presharded argument or result has a leading dim over all devices of the mesh, row-major
  dtypes that NumPy does not know (bfloat16, 8-bit floats) are stored as raw bits of the same width, as np.savez does:
  read them with array.view(jax.numpy.bfloat16); on the way in unsigned integers are taken as bits too

examples:
  jaxmesh run model.mlir                                random inputs, the same every time
  jaxmesh run model.mlir --seed 3 --check               compare with the reference executor
  jaxmesh run model.mlir --inputs in.npz --out out.npz
  jaxmesh run model.mlir --mesh 2x4 --per-device        what each device holds
  jaxmesh run DIR --check                               an exported folder
  jaxmesh run DIR --make-inputs random                  the same on inputs that are made, not loaded
  jaxmesh run DIR --on ttnn                             the same, judged by the real ttnn; see jaxmesh ttnn-env

exit codes: 0 done, 1 --check found a difference, also between copies, or the real ttnn refused the program, 2 an error
(one line on standard error), or wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `run` to the parser of the command line."""
    parser = options.add_command(commands, "run", RUN, RUN_NOTES)
    options.common_options(parser)
    options.input_options(parser, made="how inputs are made (default: random; a folder has its own)")
    parser.add_argument("--out", type=Path, metavar="NPZ", help="write the results: result0, result1, ...")
    parser.add_argument("--per-device", action="store_true", help="print what each device holds of each result")
    parser.add_argument("--check", action="store_true", help="also run the reference executor and compare")
    parser.add_argument(
        "--on", choices=("emulation", "ttnn"), default="emulation",
        help="of an exported folder: the emulated ttnn (the default), or the real one",
    )  # fmt: skip
    parser.add_argument(
        "--ttnn-python", metavar="PYTHON",
        help=f"with --on ttnn: the Python that has it (default: that of {TTNN.variable}, or of jaxmesh ttnn-env)",
    )  # fmt: skip
    machine = "with --on ttnn, the machine to describe (default: the board, or the smallest that fits)"
    options.cluster_option(parser, machine)


def run(arguments: argparse.Namespace) -> int:
    """Runs one function, or an exported folder; returns the exit code: 1 if `--check` finds a difference."""
    is_folder = arguments.file != "-" and Path(arguments.file).is_dir()
    _check_ttnn_options(arguments, is_folder)
    if is_folder:
        return _run_folder(arguments)
    return 0 if _run_file(arguments) else 1


def _failed_line(error: Exception, script: str) -> int:
    """Returns the last line of a program's code in an error's traceback."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    return (lines[-1] if lines else None) or 1


def _run_program(folder: str, *flags: str) -> int:
    """Runs a program, which reports errors on standard error; returns its exit code."""
    stderr = io.StringIO()
    try:
        with progress("run"), contextlib.redirect_stderr(stderr):
            code = run_folder(folder, flags)
    except jm.JaxmeshError:
        raise
    except Exception as error:
        script = str(Path(folder).resolve() / "main.py")
        raise jm.JaxmeshError(
            f"{script!r}, line {_failed_line(error, script)}: {type(error).__name__}: {error}; export the program "
            "again, or correct the file."
        ) from error
    if code == UNREADABLE:
        options.say("error", stderr.getvalue())
    else:
        print(stderr.getvalue(), end="", file=sys.stderr, flush=True)
    return code


def _run_folder(arguments: argparse.Namespace) -> int:
    """Runs the Python program of an exported folder on the emulated `ttnn`; returns the exit code."""
    unused = [o for o in ("mesh", "func", "inputs", "out") if getattr(arguments, o) is not None]
    unused += [o for o in ("strict", "per_device") if getattr(arguments, o)]
    if arguments.seed and arguments.make_inputs != "random":
        unused.append("seed")
    if unused:
        names = ", ".join(f"--{o.replace('_', '-')}" for o in unused)
        raise jm.ArgumentTypeError(
            f"{arguments.file!r} is an exported folder, which contains its mesh, inputs and results, so {names} does "
            "not apply to it; leave it out."
        )
    if arguments.on == "ttnn":
        return _run_on_ttnn(arguments)
    flags = ["--check"] if arguments.check else []
    if arguments.make_inputs is not None:
        flags += ["--make-inputs", arguments.make_inputs, "--seed", str(arguments.seed)]
    try:
        with jm.check_replication() if arguments.check else contextlib.nullcontext():
            return _run_program(arguments.file, *flags)
    except jm.ReplicationError as error:
        options.say("check", f"{error}: FAILED")
        return 1


def _run_file(arguments: argparse.Namespace) -> bool:
    """Runs one function of a file; returns False if `--check` finds a difference from the reference."""
    if arguments.out is not None:
        options.check_out(arguments.out)
    with options.read_file(arguments) as (file, sizes):
        traced = options.import_function(file, sizes, arguments)
        lowered = traced.lower()
        # Refuses what cannot be executed before any input is drawn.
        compiled, count = lowered.compile(check_replication=arguments.check or None), len(traced.out_avals)
        args = options.inputs_of(traced, arguments)
        try:
            with progress("compiling and running"):
                results = _as_list(compiled(*args), count)
        except jm.ReplicationError as error:
            options.say("check", f"{error}: FAILED")
            return False
        _report(results, arguments)
        if not arguments.check:
            return True
        with progress("reference executor"):
            wanted = _as_list(lowered.reference(*args, check_replication=True), count)
        return _check(results, wanted)


def _as_list(results: Any, count: int) -> list[object]:
    return [results] if count == 1 else list(results)


def _report(results: Sequence[Any], arguments: argparse.Namespace) -> None:
    stored: dict[str, npz.Array] = {}
    for number, result in enumerate(results):
        array = _array(result)
        where = f" on each of {array.shape[0]} devices" if isinstance(result, jm.MeshTensor) else ""
        shape = array.shape[1:] if where else array.shape
        print(f"result{number}: {array.dtype}{list(shape)}{where} {npz.summary(array)}", flush=True)
        if arguments.per_device:
            _show(result)
        stored[f"result{number}"] = npz.raw(array)
    if arguments.out is not None:
        with whole_file(arguments.out) as file:
            np.savez(file, allow_pickle=False, **stored)


def _array(result: Any) -> npz.Array:
    """Returns a result as one NumPy array, shards stacked; a reference's are a dict by coordinate."""
    if isinstance(result, jm.MeshTensor):
        return np.stack([np.asarray(shard) for _, shard in result.shards()])
    if isinstance(result, dict):
        return np.stack([np.asarray(shard) for _, shard in sorted(cast("dict[object, object]", result).items())])
    return np.asarray(result)


def _show(result: object) -> None:
    if not isinstance(result, jm.MeshTensor):
        print(f"  host: {npz.show_values(np.asarray(result), '        ')}")
        return
    for coordinate, shard in result.shards():
        heading = f"  device {tuple(coordinate)}: "
        print(f"{heading}{npz.show_values(np.asarray(shard), ' ' * len(heading))}")


def _check(results: Sequence[Any], wanted: Sequence[object]) -> bool:
    good = True
    for number, (result, want) in enumerate(zip(results, wanted, strict=True)):
        reference = _array(want)
        apart, allowed = largest_difference(reference, _array(result)), tolerance(reference)
        passed = apart <= allowed
        good = good and passed
        verdict = "passed" if passed else "FAILED"
        print(f"check result{number}: largest difference {apart:.3g}, allowed {allowed:.3g}: {verdict}", flush=True)
    return good


# --- on the real library ----------------------------------------------------------------------------------------------


def _check_ttnn_options(arguments: argparse.Namespace, is_folder: bool) -> None:
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


def _run_on_ttnn(arguments: argparse.Namespace) -> int:
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
