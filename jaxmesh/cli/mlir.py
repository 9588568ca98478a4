"""The commands that read TTIR files: `jaxmesh opt` and `jaxmesh run`."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

import jaxmesh as jm
from jaxmesh.cli.options import MAX_DEVICES, check_out, common_options, input_options, parse_mesh
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.frontends.mlir.decode import Program, decode
from jaxmesh.frontends.mlir.module import Function, Source, choose, load_text, public_functions
from jaxmesh.frontends.mlir.source import decode as decode_text, read
from jaxmesh.runtime import npz
from jaxmesh.sharding.mesh import default_axis_names
from jaxmesh.stages.from_mlir import import_program, mesh_sizes
from jaxmesh.ttnn.assemble import assemble

OPT = """\
Verifies a TTIR file: every function (or --func NAME), every op, its types, and that no shard is used as a full tensor.
Prints the program; with --ttir-to-ttnn the lowered one, in which distribute_tensor and aggregate_tensor say every
transfer. FILE may be - for standard input."""

OPT_NOTES = """\
examples:
  jaxmesh opt model.mlir                  verify, print
  jaxmesh opt model.mlir --ttir-to-ttnn   lower, print
  jaxmesh opt model.mlir --mesh 2x4       for a file that names no mesh
  jaxmesh opt model.mlir --strict         a wrong shard_shape is an error, not a warning

exit codes: 0 legal, 2 an error (one line on standard error), or wrong usage"""

RUN = """\
Runs one function of a TTIR file on emulated devices, and prints a line per result. Inputs come from an .npz file, or
are random. FILE may be - for standard input, or a folder that an export wrote (jaxmesh translate --out, codegen_py):
then its Python program is run, with its own inputs, and --check compares with its expected results. Both ways --check
also compares, on the devices, all copies that are taken to be equal although no type proves it."""

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

exit codes: 0 done, 1 --check found a difference, also between copies, 2 an error (one line on standard error), or
wrong usage"""


def add_commands(commands: Any) -> None:
    """Adds `opt` and `run` to the parser of the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    opt = commands.add_parser(
        "opt", help="verify and lower a TTIR file", description=OPT, epilog=OPT_NOTES, formatter_class=raw
    )
    common_options(opt)
    opt.add_argument("--ttir-to-ttnn", action="store_true", help="lower to distribute_tensor and aggregate_tensor")
    run = commands.add_parser(
        "run", help="run a TTIR file on emulated devices", description=RUN, epilog=RUN_NOTES, formatter_class=raw
    )
    common_options(run)
    input_options(run)
    run.add_argument("--out", type=Path, metavar="NPZ", help="write the results: result0, result1, ...")
    run.add_argument("--per-device", action="store_true", help="print what each device holds of each result")
    run.add_argument("--check", action="store_true", help="also run the reference executor and compare")


def emulated_mesh(shape: tuple[int, ...]) -> Mesh:
    """A mesh of CPU devices even where there is an accelerator: its arithmetic would need another tolerance."""
    return jm.make_mesh(shape, devices=jm.emulate(math.prod(shape)))


# --- reading ---------------------------------------------------------------------------------------------------------

_WIDE = re.compile(r"(?:\dx|tensor<)(?:[su]?i64|f64|index|complex<f64>)\b")


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`."""
    if name != "-":
        return read(Path(name))
    stdin: Any = sys.stdin
    if stdin is None:
        raise jm.ParseError("there is no standard input to read; it is closed. Name a file.")
    return decode_text(stdin.buffer.read())


@contextlib.contextmanager
def reading(text: str) -> Generator[None]:
    """64-bit types where the file has them; warnings as lines on standard error."""
    wide = bool(_WIDE.search(text)) or bool(cast("Any", jax.config).jax_enable_x64)
    with jax.enable_x64(wide), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for text in dict.fromkeys(str(w.message) for w in caught):
                say("warning", text)


def say(kind: str, text: str) -> None:
    """One line on standard error."""
    print(f"jaxmesh: {kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)


# --- opt -------------------------------------------------------------------------------------------------------------


def opt(arguments: argparse.Namespace) -> None:
    """Verifies, and lowers where it is asked for."""
    mesh = None if arguments.mesh is None else abstract_mesh(parse_mesh(arguments.mesh))
    text = read_text(arguments.file)
    with reading(text):
        file = load_text(text)
        functions = chosen_functions(file, arguments.func)
        for function in functions:
            traced = import_program(file, decode(function, file.functions), mesh, strict=arguments.strict)
            shown = traced.lower().as_text() if arguments.ttir_to_ttnn else traced.as_text()
            heading = f"// @{function.name} (line {function.line})\n" if len(functions) > 1 else ""
            print(f"{heading}{shown}", flush=True)


def abstract_mesh(sizes: tuple[int, ...]) -> AbstractMesh:
    """A mesh without devices, its axes named as ever."""
    return AbstractMesh(sizes, default_axis_names(len(sizes)))


def chosen_functions(file: Source, name: str | None) -> Sequence[Function]:
    """The function that `--func` names, else all public ones."""
    public = public_functions(file)
    return public if name is None and public else [choose(file, name)]


# --- run -------------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Runs one function, or an exported folder; gives the exit code: 1 where `--check` found a difference."""
    if arguments.file != "-" and Path(arguments.file).is_dir():
        return _run_folder(arguments)
    return 0 if _run_file(arguments) else 1


_UNREADABLE = 2
"""The exit code of an exported program that cannot read its files."""


def _line(error: Exception, script: str) -> int:
    """Where a program failed: its own last line that was running."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    return (lines[-1] if lines else None) or 1


def _program_of(folder: str, *options: str) -> int:
    """Runs a program, which says in its own words on standard error why it stopped."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            code = run_folder(folder, options)
    except jm.JaxmeshError:
        raise
    except Exception as error:
        script = str(Path(folder).resolve() / "main.py")
        raise jm.JaxmeshError(
            f"{script!r}, line {_line(error, script)}: {type(error).__name__}: {_words(error)}; export the program "
            "again, or correct the file."
        ) from error
    if code == _UNREADABLE:
        say("error", said.getvalue())
    else:
        print(said.getvalue(), end="", file=sys.stderr, flush=True)
    return code


def _run_folder(arguments: argparse.Namespace) -> int:
    """The Python program of an exported folder, on the emulated `ttnn`."""
    unused = [o for o in ("mesh", "func", "inputs", "out") if getattr(arguments, o) is not None]
    unused += [o for o in ("strict", "per_device") if getattr(arguments, o)]
    if unused or arguments.seed:
        names = ", ".join(f"--{o.replace('_', '-')}" for o in (*unused, *(["seed"] if arguments.seed else [])))
        raise jm.ArgumentTypeError(
            f"{arguments.file!r} is an exported folder, which has its mesh, inputs and results itself, so {names} says "
            "nothing there; leave it out."
        )
    if not arguments.check:
        return _program_of(arguments.file)
    try:
        with jm.check_replication():
            return _program_of(arguments.file, "--check")
    except jm.ReplicationError as error:
        say("check", f"{error}: FAILED")
        return 1


def _run_file(arguments: argparse.Namespace) -> bool:
    """Runs one function of a file; gives whether it agrees with the reference, where that is asked for."""
    sizes = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    if arguments.out is not None:
        check_out(arguments.out)
    text = read_text(arguments.file)
    with reading(text):
        program, traced = imported(text, sizes, arguments)
        args = inputs_of(program, traced.mesh, arguments)
        lowered = traced.lower()
        compiled, count = lowered.compile(check_replication=arguments.check or None), len(program.results)
        try:
            results = _row(compiled(*args), count)
        except jm.ReplicationError as error:
            say("check", f"{error}: FAILED")
            return False
        _report(results, arguments)
        if not arguments.check:
            return True
        return _check(results, _row(lowered.reference(*args, check_replication=True), count))


def imported(text: str, sizes: tuple[int, ...] | None, arguments: argparse.Namespace) -> tuple[Program, jm.Traced]:
    """The function that the options name, as it stands in the file and traced on emulated devices."""
    file = load_text(text)
    program = decode(choose(file, arguments.func), file.functions)
    mesh = devices_of(sizes or mesh_sizes(file, program))
    return program, import_program(file, program, mesh, strict=arguments.strict)


def devices_of(sizes: tuple[int, ...] | None) -> Mesh | None:
    """Emulated devices for a mesh; for none, one device.

    Raises:
      MeshError: too many to emulate.
    """
    if sizes is None:
        jm.emulate(1)
        return None
    if math.prod(sizes) > MAX_DEVICES:
        raise jm.MeshError(
            f"the file's mesh {'x'.join(map(str, sizes))} has {math.prod(sizes)} devices, but at most {MAX_DEVICES} "
            "are emulated, as all of them share this machine's cores; use `jaxmesh opt` to verify it."
        )
    return emulated_mesh(sizes)


def _row(results: Any, count: int) -> list[Any]:
    return [results] if count == 1 else list(results)


def inputs_of(program: Program, mesh: Any, arguments: argparse.Namespace) -> list[Any]:
    """The arguments of a program: of the file that `--inputs` names, else random ones."""
    devices = math.prod(mesh.shape.values())
    rows = list(zip(program.body.arguments, program.presharded, strict=True))
    kinds = [jax.ShapeDtypeStruct((devices, *a.shape) if p else a.shape, a.dtype) for a, p in rows]
    if arguments.inputs is not None:
        found = npz.read_inputs(arguments.inputs, kinds)
    else:
        rng = np.random.default_rng(arguments.seed)
        found = [npz.random_array(rng, kind) for kind in kinds]
    return [_presharded(x, mesh) if p else x for x, (_, p) in zip(found, rows, strict=True)]


def _presharded(stacked: npz.Array, mesh: Mesh) -> jm.MeshTensor:
    varying = tuple(a for a in mesh.axis_names if mesh.shape[a] > 1)
    shards = dict(zip(np.ndindex(mesh.devices.shape), stacked, strict=True))
    return assemble(shards, mesh, varying, None)


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
        with arguments.out.open("wb") as file:
            np.savez(file, allow_pickle=False, **stored)


def _array(result: Any) -> npz.Array:
    """A result as one NumPy array, shards stacked."""
    if isinstance(result, jm.MeshTensor):
        return np.stack([np.asarray(shard) for _, shard in result.shards()])
    return np.asarray(result)


def _show(result: Any) -> None:
    if not isinstance(result, jm.MeshTensor):
        print(f"  host: {npz.shown(np.asarray(result), '        ')}")
        return
    for coordinate, shard in result.shards():
        heading = f"  device {tuple(coordinate)}: "
        print(f"{heading}{npz.shown(np.asarray(shard), ' ' * len(heading))}")


def _stacked(want: Any) -> npz.Array:
    """A result of the reference executor; one on the devices is a dict from coordinate to shard."""
    if not isinstance(want, dict):
        return np.asarray(want)
    shards = cast("dict[tuple[int, ...], Any]", want)
    return np.stack([np.asarray(shards[c]) for c in sorted(shards)])


def _check(results: Sequence[Any], wanted: Sequence[Any]) -> bool:
    good = True
    for number, (result, want) in enumerate(zip(results, wanted, strict=True)):
        reference = _stacked(want)
        apart, allowed = npz.difference(_array(result), reference), npz.tolerance(reference)
        passed = apart <= allowed
        good = good and passed
        verdict = "passed" if passed else "FAILED"
        print(f"check result{number}: largest difference {apart:.3g}, allowed {allowed:.3g}: {verdict}", flush=True)
    return good


def _words(error: Exception) -> str:
    """What an error of somebody's program says; it may fail at that too."""
    try:
        return str(error)
    except Exception:
        return "an error that cannot be shown"
