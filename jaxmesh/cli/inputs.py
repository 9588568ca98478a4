"""The inputs of the commands: a file, its function and mesh, and the function's arguments."""

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
from jaxmesh.errors import printable
from jaxmesh.frontends.mlir.module import Function, Source, choose, load_text, public_functions
from jaxmesh.frontends.mlir.source import decode as decode_text, read
from jaxmesh.jaxprs.compat import Axes, varying_axes
from jaxmesh.runtime import npz
from jaxmesh.sharding.mesh import default_axis_names
from jaxmesh.stages.read_mlir import decode_function, import_program, mesh_sizes
from jaxmesh.tensor.assemble import assemble

_WIDE = re.compile(r"(?:\dx|tensor<)(?:[su]?i64|f64|index|complex<f64>)\b")


def read_text(name: str) -> str:
    """Returns the text of a file, or of standard input for `-`."""
    if name != "-":
        return read(Path(name))
    stdin: Any = sys.stdin
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


def inputs_of(traced: jm.Traced, arguments: argparse.Namespace) -> list[Any]:
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
