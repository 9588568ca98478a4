"""What an exported program takes and gives: inputs and expected results as files hold them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Program, Value
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.export_folder import write_folder
from jaxmesh.errors import ArgumentTypeError
from jaxmesh.runtime.npz import Array, random_array
from jaxmesh.stages.signature import Argument
from jaxmesh.ttnn.mesh_tensor import MeshTensor, spec_of
from jaxmesh.validate import quote

_jnp: Any = jax.numpy

LANGUAGES = ("python", "cpp")


def exact_results(program: Program) -> tuple[bool, ...]:
    """Of each result of a TTNN program whether data only moved on the way to it: every way to run it gives its bits."""
    rounded: set[Value] = set()
    for op in program.ops:
        if not has_trait(op.name, Trait.MOVES) or not rounded.isdisjoint(op.used):
            rounded.update(op.results)
    return tuple(port.value not in rounded for port in program.results)


def narrow_results(program: Program) -> tuple[int, ...]:
    """Of each result the bits of the narrowest floats computed on the way to it; 0 where its own type has no more.

    A compiler keeps more digits of such values than op by op are kept: a wide result of them is only as good as they.
    """
    through: dict[Value, int] = {}
    for op in program.ops:
        known = [through[v] for v in op.used if v in through]
        if not has_trait(op.name, Trait.MOVES):
            known += filter(None, [_bits(program.types[v].dtype) for v in op.results])
        if known:
            through.update(dict.fromkeys(op.results, min(known)))
    found = [(through.get(p.value, 0), _bits(program.types[p.value].dtype)) for p in program.results]
    return tuple(bits if bits < own else 0 for bits, own in found)


def _bits(kind: Any) -> int:
    """Those of a float; 0 for other types."""
    return int(_jnp.finfo(kind).bits) if jax.dtypes.issubdtype(kind, np.floating) else 0


def sample(arguments: Sequence[Argument], mesh: Mesh, seed: int) -> list[Any]:
    """Random arguments of a program, the same for the same seed: arrays, and tensors on the devices.

    Args:
      arguments: what the program takes, flattened.
      mesh: the mesh of the program.
      seed: of NumPy's generator.
    """
    rng = np.random.default_rng(seed)
    return [_sample(a, mesh, rng) for a in arguments]


def _sample(argument: Argument, mesh: Mesh, rng: np.random.Generator) -> Any:
    if jax.dtypes.issubdtype(argument.aval.dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), argument.aval.shape)
        if keys.dtype != argument.aval.dtype:
            raise ArgumentTypeError(
                f"random arguments cannot be made of type {argument.aval.dtype}; give the arguments to export with."
            )
        return keys
    if argument.varying is None:
        return random_array(rng, argument.aval)
    # One shard per place along the axes over which they differ; the others hold copies.
    sizes = tuple(mesh.shape[a] for a in argument.varying)
    shape = (*argument.aval.shape, *sizes)
    stored = random_array(rng, jax.ShapeDtypeStruct(shape, argument.aval.dtype))
    sharding = NamedSharding(mesh, spec_of(len(argument.aval.shape), argument.varying))
    return MeshTensor(jax.device_put(stored, sharding), mesh, argument.varying)


def stacked(x: Any) -> Array:
    """A value as a file holds it: a full array as it is, shards stacked over all devices, row-major.

    Numbers and 64-bit arrays are taken as JAX takes them: in 32 bits, unless its 64-bit mode is on.
    """
    if not isinstance(x, MeshTensor):
        host = np.asarray(words(x))
        return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    held = {tuple(c): np.asarray(s) for c, s in x.shards()}
    sizes = tuple(x.mesh.shape.values())
    return np.stack([held[c] for c in itertools.product(*map(range, sizes))])


def words(x: Any) -> Any:
    """Random keys as the numbers they are; anything else as it is."""
    keys = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if keys else x


def checked_languages(languages: Sequence[str]) -> tuple[str, ...]:
    """The languages of an export.

    Raises:
      ArgumentTypeError: one is unknown, or there is none.
    """
    said: Any = tuple(languages) if isinstance(languages, (tuple, list)) else None
    if not said or not all(x in LANGUAGES for x in said):
        raise ArgumentTypeError(
            f"an export's languages are a tuple of {' and '.join(map(repr, LANGUAGES))}, got {quote(languages)}."
        )
    return said


def checked_folder(directory: str | os.PathLike[str]) -> Path:
    """The path of a folder.

    Raises:
      ArgumentTypeError: it is no path.
    """
    try:
        text = os.fspath(directory)
    except Exception:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentTypeError(f"a folder to export to is a path, as text or pathlib.Path, got {quote(directory)}.")
    return Path(text)


def check_values(leaves: Sequence[Any]) -> None:
    """Checks that arguments are numbers, which can be written to files.

    Raises:
      ArgumentTypeError: one is a type alone, or a value of a trace.
    """
    for number, leaf in enumerate(leaves):
        x: Any = leaf.data if isinstance(leaf, MeshTensor) else leaf
        if isinstance(x, (jax.ShapeDtypeStruct, Tracer)):
            raise ArgumentTypeError(
                f"argument {number} of an export is {leaf!r}, which holds no numbers; export with arrays, outside of "
                "jax.jit, or without arguments, which makes random ones."
            )


def export_program(
    directory: Path,
    program: Program,
    mlir: Mapping[str, str],
    languages: Sequence[str],
    inputs: Sequence[Any],
    results: Callable[[], Sequence[Any]],
) -> list[Path]:
    """Writes a TTNN program with its texts, inputs and expected results into a folder: the files written.

    Raises:
      JaxmeshError: the folder holds something else.
    """
    exact, bits = exact_results(program), narrow_results(program)
    texts = dict(mlir)
    if "cpp" in languages:
        texts["main.cpp"] = cpp_text(program, load=True, exact=exact, bits=bits)
    return write_folder(
        directory,
        program,
        texts=texts,
        inputs=[stacked(x) for x in inputs],
        expected=[stacked(x) for x in results()],
        exact=exact,
        bits=bits,
        python="python" in languages,
    )
