"""The inputs of the commands: a file, the function that `--func` names, its mesh, and its arguments."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

import jaxmesh as jm
from jaxmesh.cli.options import MAX_DEVICES, parse_mesh
from jaxmesh.dialects.residency import DEVICE
from jaxmesh.frontends.mlir.module import Function, Source, choose, load_text, public_functions
from jaxmesh.frontends.mlir.source import decode as decode_text, read
from jaxmesh.jaxprs.compat import Axes, varying_axes
from jaxmesh.runtime import npz
from jaxmesh.sharding.mesh import default_axis_names
from jaxmesh.stages.from_mlir import decode_function, import_program, mesh_sizes
from jaxmesh.ttnn.assemble import assemble

_WIDE = re.compile(r"(?:\dx|tensor<)(?:[su]?i64|f64|index|complex<f64>)\b")


def read_text(name: str) -> str:
    """Returns the text of a file, or of standard input for `-`."""
    if name != "-":
        return read(Path(name))
    stdin: Any = sys.stdin
    if stdin is None:
        raise jm.ParseError("there is no standard input to read; it is closed. Name a file.")
    return decode_text(stdin.buffer.read())


@contextlib.contextmanager
def read_file(arguments: argparse.Namespace) -> Generator[tuple[Source, tuple[int, ...] | None]]:
    """Reads the file of a command; yields it with the sizes of `--mesh`.

    Enables 64-bit types if the file has them; prints warnings as lines on standard error.
    """
    sizes = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    text = read_text(arguments.file)
    wide = bool(_WIDE.search(text)) or bool(cast("Any", jax.config).jax_enable_x64)
    with jax.enable_x64(wide), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield load_text(text), sizes
        finally:
            for warning in dict.fromkeys(str(w.message) for w in caught):
                say("warning", warning)


def say(kind: str, text: str) -> None:
    """Prints one line on standard error."""
    print(f"jaxmesh: {kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)


def emulated_mesh(shape: tuple[int, ...]) -> Mesh:
    """Returns a mesh of CPU devices, also beside an accelerator, whose arithmetic would need another tolerance."""
    return jm.make_mesh(shape, devices=jm.emulate(math.prod(shape)))


def abstract_mesh(sizes: tuple[int, ...] | None) -> AbstractMesh | None:
    """Returns a mesh without devices, with the default axis names; None for no sizes."""
    return None if sizes is None else AbstractMesh(sizes, default_axis_names(len(sizes)))


def chosen_functions(file: Source, name: str | None) -> Sequence[Function]:
    """Returns the function that `--func` names, else all public ones, else all."""
    if name is not None:
        return [choose(file, name)]
    return public_functions(file) or [f for f in file.functions if f.has_body] or [choose(file, None)]


def import_function(file: Source, sizes: tuple[int, ...] | None, arguments: argparse.Namespace) -> jm.Traced:
    """Returns the function that the options name, traced on emulated devices."""
    program = decode_function(file, choose(file, arguments.func))
    mesh = devices_of(sizes or mesh_sizes(file, program))
    return import_program(file, program, mesh, strict=arguments.strict)


def devices_of(sizes: tuple[int, ...] | None) -> Mesh | None:
    """Returns a mesh of emulated devices; for no sizes, None, and emulates one device."""
    if sizes is None:
        jm.emulate(1)
        return None
    if math.prod(sizes) > MAX_DEVICES:
        raise jm.MeshError(
            f"the file's mesh {'x'.join(map(str, sizes))} has {math.prod(sizes)} devices, but at most {MAX_DEVICES} "
            "are emulated, as all of them share this machine's cores; use `jaxmesh opt` to verify it."
        )
    return emulated_mesh(sizes)


def inputs_of(traced: jm.Traced, arguments: argparse.Namespace) -> list[Any]:
    """Returns the arguments of a program: those of the file that `--inputs` names, else random ones."""
    mesh: Any = traced.mesh
    rows = [(a, r is DEVICE) for a, r in zip(traced.in_avals, traced.residency.inputs, strict=True)]
    kinds = [jax.ShapeDtypeStruct((mesh.size, *a.shape) if p else a.shape, a.dtype) for a, p in rows]
    if arguments.inputs is not None:
        if arguments.make_inputs is not None:
            raise jm.ArgumentTypeError("--inputs reads the arguments, and --make-inputs makes them; leave one out.")
        found = npz.read_inputs(arguments.inputs, kinds)
    else:
        rng = np.random.default_rng(arguments.seed)
        zeros = arguments.make_inputs == "zeros"
        found = [np.zeros(k.shape, k.dtype) if zeros else npz.random_array(rng, k) for k in kinds]
    made = arguments.inputs is None
    return [
        _load_presharded(x, mesh, varying_axes(a), made=made) if p else x for x, (a, p) in zip(found, rows, strict=True)
    ]


def _load_presharded(stacked: npz.Array, mesh: Mesh, varying: Axes, *, made: bool) -> jm.MeshTensor:
    """A tensor of what each device holds; over axes along which its type does not vary, all that is made is equal."""
    axes = tuple(a for a in mesh.axis_names if a in varying)
    held = stacked.reshape(*mesh.devices.shape, *stacked.shape[1:])
    first = tuple(slice(None) if a in varying else slice(1) for a in mesh.axis_names)
    same = np.broadcast_to(held[first], held.shape)
    if not made and same.tobytes() != held.tobytes():
        other = ", ".join(a for a in mesh.axis_names if a not in varying)
        raise jm.ArgumentValueError(
            f"an array of --inputs differs between devices along {other}, but its type varies over {axes or 'no axis'} "
            "only; give these devices equal arrays."
        )
    return assemble({at: same[at] for at in np.ndindex(mesh.devices.shape)}, mesh, axes, None)
