"""Options shared by several commands, their valid values, and the inputs: a file, its function, mesh and arguments."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

import jaxmesh as jm
from jaxmesh.analysis.machines import MACHINES, machine_named, one_of
from jaxmesh.dialects.residency import DEVICE
from jaxmesh.emit.languages import MADE
from jaxmesh.errors import printable
from jaxmesh.frontends.mlir.attributes import x64_for
from jaxmesh.frontends.mlir.module import Function, Source, choose, load_text, public_functions
from jaxmesh.frontends.mlir.source import decode as decode_text, read
from jaxmesh.jaxprs.compat import Axes, varying_axes
from jaxmesh.runtime import npz
from jaxmesh.runtime.progress import note_step
from jaxmesh.sharding.mesh import default_axis_names
from jaxmesh.stages.read_mlir import decode_function, import_program, mesh_sizes
from jaxmesh.tensor.assemble import assemble

MAX_DEVICES = 256
"""The maximum number of devices that commands emulate: they share this machine's cores, and each has threads and
buffers.

On two busy cores `run --check` of a matmul takes 4 seconds on 64 devices (0.4 GB) and on 1024 (0.7 GB), the `demo` 26
seconds on 64 and 38 seconds on 256 (0.9 GB).
"""


class Commands(Protocol):
    """The commands of a parser."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Adds a command."""
        ...


def add_command(commands: Commands, name: str, description: str, notes: str) -> argparse.ArgumentParser:
    """Adds a command whose texts keep their line breaks; returns its parser."""
    raw = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, description=description, epilog=notes, formatter_class=raw)


def input_options(
    parser: argparse.ArgumentParser, when: str = "", made: str = "how inputs are made (default: random)"
) -> None:
    """Adds the options for the arguments of the program."""
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--inputs", type=Path, metavar="NPZ", help=f"{when}the arguments: arg0, arg1, ...")
    inputs.add_argument(
        "--seed", type=seed_of, default=0, metavar="N", help=f"{when}seed of random inputs (default: 0)"
    )
    parser.add_argument("--make-inputs", choices=MADE, help=f"{when}{made}")


def common_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every command that reads a TTIR or StableHLO file."""
    parser.add_argument("file", metavar="FILE", help="TTIR or StableHLO text, or - for standard input")
    parser.add_argument("--mesh", metavar="AxB", help="sizes of the mesh axes, joined by x (default: the file's)")
    parser.add_argument("--func", metavar="NAME", help="the function; NAME@LINE where a file has several of one name")
    parser.add_argument("--strict", action="store_true", help="make errors of warnings")


def cluster_option(parser: argparse.ArgumentParser, when: str, default: str | None = None) -> None:
    """Adds the option for a machine, named in any case."""
    parser.add_argument(
        "--cluster", metavar="NAME", type=_machine_name, default=default, help=f"{when}: {one_of(MACHINES)}"
    )


def _machine_name(text: str) -> str:
    try:
        return machine_named(text).name
    except jm.ArgumentValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def emulation_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option to print types and meshes that the real library cannot run."""
    parser.add_argument(
        "--for-emulation", action="store_true", help="print element types and meshes that the real ttnn lacks, too"
    )


def seed_of(text: str) -> int:
    """Returns a seed from the text of an option."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"a seed is a non-negative integer of at most 18 digits, got {text!r}")
    return int(text)


def parse_mesh(text: str) -> tuple[int, ...]:
    """Returns the sizes in a text such as `2x4`, of at most `MAX_DEVICES` devices.

    >>> parse_mesh("2x4")
    (2, 4)
    """
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise jm.MeshError(f"--mesh takes positive integers joined by 'x', got {text!r}; write for example --mesh 2x4.")
    sizes = tuple(map(int, text.split("x")))
    if min(sizes) < 1:
        raise jm.MeshError(f"--mesh takes sizes of at least 1, got {text!r}; leave the axis out, or write 1 for it.")
    if math.prod(sizes) > MAX_DEVICES:
        raise jm.MeshError(
            f"--mesh takes at most {MAX_DEVICES} devices, as all of them share this machine's cores, got {text!r} with "
            f"{math.prod(sizes)}; write a smaller mesh, for example --mesh 2x4."
        )
    return sizes


def check_out(path: Path) -> None:
    """Checks the path of an output file before the run, so that a wrong path is reported at once."""
    if path.is_dir() or not path.parent.is_dir():
        raise jm.JaxmeshError(f"--out takes a file in a folder that exists, got {str(path)!r}; name another.")


def say_step(text: str, start: float) -> None:
    """Prints a step on standard error, with the seconds since `start`."""
    print(f"[{time.monotonic() - start:6.2f} s] {text}", file=sys.stderr, flush=True)
    note_step(text)


# --- inputs -----------------------------------------------------------------------------------------------------------


def read_text(name: str) -> str:
    """Returns the text of a file, or of standard input for `-`."""
    if name != "-":
        return read(Path(name))
    stdin = sys.stdin
    if stdin is None:
        raise jm.ParseError("standard input is closed; name a file.")
    return decode_text(stdin.buffer.read())


@contextlib.contextmanager
def read_file(arguments: argparse.Namespace) -> Generator[tuple[Source, tuple[int, ...] | None]]:
    """Reads the file of a command; yields it with the sizes of `--mesh`.

    Enables 64-bit types if the file contains them; prints warnings as lines on standard error.
    """
    sizes = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    text = read_text(arguments.file)
    with x64_for(text), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield load_text(text), sizes
        finally:
            for warning in dict.fromkeys(str(w.message) for w in caught):
                say("warning", warning)


def say(kind: str, text: str) -> None:
    """Prints one line on standard error."""
    print(f"jaxmesh: {kind}: {' '.join(printable(text).split())}", file=sys.stderr, flush=True)


def emulated_mesh(shape: tuple[int, ...]) -> Mesh:
    """Returns a mesh of CPU devices, even on a machine with an accelerator, whose arithmetic needs a different
    tolerance."""
    return jm.make_mesh(shape, devices=jm.emulate(math.prod(shape)))


def abstract_mesh(sizes: tuple[int, ...] | None) -> AbstractMesh | None:
    """Returns a mesh without devices, with the default axis names; None for no sizes."""
    return None if sizes is None else AbstractMesh(sizes, default_axis_names(len(sizes)))


def chosen_functions(file: Source, name: str | None) -> Sequence[Function]:
    """Returns the function named by `--func`, else all public functions, else all functions."""
    if name is not None:
        return [choose(file, name)]
    return public_functions(file) or [f for f in file.functions if f.has_body] or [choose(file, None)]


def import_function(file: Source, sizes: tuple[int, ...] | None, arguments: argparse.Namespace) -> jm.Traced:
    """Returns the function named by the options, traced on emulated devices."""
    program = decode_function(file, choose(file, arguments.func))
    mesh = devices_of(sizes or mesh_sizes(file, program))
    return import_program(file, program, mesh, jm.Traced, strict=arguments.strict)


def devices_of(sizes: tuple[int, ...] | None) -> Mesh | None:
    """Returns a mesh of emulated devices; for no sizes, emulates one device and returns None."""
    if sizes is None:
        jm.emulate(1)
        return None
    if math.prod(sizes) > MAX_DEVICES:
        raise jm.MeshError(
            f"the file's mesh {'x'.join(map(str, sizes))} has {math.prod(sizes)} devices, but at most {MAX_DEVICES} "
            "are emulated, as all of them share this machine's cores; use `jaxmesh opt` to verify it."
        )
    return emulated_mesh(sizes)


def inputs_of(traced: jm.Traced, arguments: argparse.Namespace) -> list[object]:
    """Returns the arguments of a program from the file `--inputs`, or random arguments."""
    mesh: Any = traced.mesh
    presharded = [(a, r is DEVICE) for a, r in zip(traced.in_avals, traced.residency.inputs, strict=True)]
    types = [jax.ShapeDtypeStruct((mesh.size, *a.shape) if p else a.shape, a.dtype) for a, p in presharded]
    if arguments.inputs is not None:
        if arguments.make_inputs is not None:
            raise jm.ArgumentTypeError("--inputs reads the arguments, and --make-inputs generates them; leave one out.")
        arrays = npz.read_inputs(arguments.inputs, types)
    else:
        rng = np.random.default_rng(arguments.seed)
        zeros = arguments.make_inputs == "zeros"
        arrays = [np.zeros(t.shape, t.dtype) if zeros else npz.random_array(rng, t) for t in types]
    generated = arguments.inputs is None
    return [
        _load_presharded(x, mesh, varying_axes(a), generated=generated) if p else x
        for x, (a, p) in zip(arrays, presharded, strict=True)
    ]


def _load_presharded(stacked: npz.Array, mesh: Mesh, varying: Axes, *, generated: bool) -> jm.MeshTensor:
    """Returns a MeshTensor of stacked shards; generated shards are equal along replicated axes."""
    axes = tuple(a for a in mesh.axis_names if a in varying)
    shards = stacked.reshape(*mesh.devices.shape, *stacked.shape[1:])
    first = tuple(slice(None) if a in varying else slice(1) for a in mesh.axis_names)
    same = np.broadcast_to(shards[first], shards.shape)
    if not generated and same.tobytes() != shards.tobytes():
        other = ", ".join(a for a in mesh.axis_names if a not in varying)
        raise jm.ArgumentValueError(
            f"an array of --inputs differs between devices along {other}, but its type varies over {axes or 'no axis'} "
            "only; give these devices equal arrays."
        )
    return assemble({c: same[c] for c in np.ndindex(mesh.devices.shape)}, mesh, axes, None)
