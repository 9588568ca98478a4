"""The inputs and expected results of an exported program, as its files store them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Program, Value
from jaxmesh.dialects.signature import Argument
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.export_folder import write_folder
from jaxmesh.emit.languages import EXPORTED, MADE
from jaxmesh.errors import ArgumentTypeError
from jaxmesh.jaxprs.compat import words_of
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import jnp
from jaxmesh.passes.memory import RESHAPE
from jaxmesh.runtime.npz import Array, random_array
from jaxmesh.runtime.progress import note_step
from jaxmesh.sharding.distribution import resolve_mapper
from jaxmesh.sharding.mesh import storage_spec
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.validate import quote


def exact_results(program: Program) -> tuple[bool, ...]:
    """Returns per result of a TTNN program whether its data was only moved: every way to run it gives the same bits."""
    rounded: set[Value] = set()
    for op in program.ops:
        if not has_trait(op.name, Trait.MOVES) or not rounded.isdisjoint(op.used):
            rounded.update(op.results)
    return tuple(port.value not in rounded for port in program.results)


def narrow_results(program: Program) -> tuple[int, ...]:
    """Returns per result the bits of the narrowest floats it was computed from; 0 unless its own type is wider.

    A compiler keeps more digits of narrow floats than execution op by op, so a wide result has only their precision.
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
    """Returns the bits of a float type; 0 for other types."""
    return int(jnp.finfo(kind).bits) if jax.dtypes.issubdtype(kind, np.floating) else 0


def sample(arguments: Sequence[Argument], mesh: Mesh, seed: int) -> list[Any]:
    """Returns random arguments of a program: arrays, and tensors on the devices."""
    rng = np.random.default_rng(seed)
    return [_sample(a, mesh, rng) for a in arguments]


def _sample(argument: Argument, mesh: Mesh, rng: np.random.Generator) -> object:
    if jax.dtypes.issubdtype(argument.aval.dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), argument.aval.shape)
        if keys.dtype != argument.aval.dtype:
            raise ArgumentTypeError(
                f"random arguments cannot be made of type {argument.aval.dtype}; give the arguments to export with."
            )
        return keys
    if argument.varying is None:
        return random_array(rng, argument.aval)
    # One shard per coordinate of the varying axes; the other devices hold copies.
    sizes = tuple(mesh.shape[a] for a in argument.varying)
    shape = (*argument.aval.shape, *sizes)
    stored = random_array(rng, jax.ShapeDtypeStruct(shape, argument.aval.dtype))
    sharding = NamedSharding(mesh, storage_spec(len(argument.aval.shape), argument.varying))
    return MeshTensor(typed.device_put(stored, sharding), mesh, argument.varying)


def stack_shards(x: Array | jax.Array) -> Array:
    """Returns a value as a file stores it: a full array, or shards stacked over all devices, row-major over the mesh.

    Numbers and 64-bit arrays become 32-bit ones, as in JAX, unless its 64-bit mode is on.
    """
    if not isinstance(x, MeshTensor):
        host = np.asarray(words_of(x))
        return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    shards = {tuple(c): np.asarray(words_of(s)) for c, s in x.shards()}
    sizes = tuple(x.mesh.shape.values())
    return np.stack([shards[c] for c in itertools.product(*map(range, sizes))])


def stored_inputs(plain: Program, program: Program, leaves: Sequence[Array | jax.Array]) -> list[Array]:
    """Returns the arguments in the form of their files: the shards of an argument that `program` has on the devices
    and that `plain` distributes."""
    stored, sizes = [stack_shards(x) for x in leaves], tuple(plain.mesh.values())
    placed = {op.used[0]: op.attributes["mapper_config"] for op in plain.ops if op.name == "ttnn.distribute_tensor"}
    reshaped = {op.used[0]: op.results[0] for op in plain.ops if op.name == RESHAPE and op.results[0] in placed}
    for i, (before, after) in enumerate(zip(plain.arguments, program.arguments, strict=True)):
        if after.presharded and not before.presharded:
            given = reshaped.get(before.value, before.value)
            full = stored[i].reshape(plain.types[given].shape)
            found, shape = resolve_mapper(placed[given], sizes, full.shape), program.types[after.value].shape
            blocks = {c: full[found.index(at)].reshape(shape) for c, at in found.shard_coordinates()}
            stored[i] = np.stack([blocks[c] for c in itertools.product(*map(range, sizes))])
    return stored


def as_languages(languages: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages of an export."""
    names = tuple(languages) if isinstance(languages, (tuple, list)) else None
    if not names or not all(x in EXPORTED for x in names):
        raise ArgumentTypeError(
            f"an export's languages are a tuple of {' and '.join(map(repr, EXPORTED))}, got {quote(languages)}."
        )
    return names


def made_inputs(leaves: Sequence[object], asked: str | None) -> str | None:
    """Returns how an exported program makes its inputs when it runs: as asked, zeros for types; None if it loads them.

    Raises:
      ArgumentTypeError: arguments that are not all arrays, or all types; or arrays that would not be read.
    """
    if asked is not None and asked not in MADE:
        raise ArgumentTypeError(f"export makes inputs of {' or '.join(map(repr, MADE))}, got {quote(asked)}.")
    stored = [leaf.data if isinstance(leaf, MeshTensor) else leaf for leaf in leaves]
    arrays = [i for i, x in enumerate(stored) if not isinstance(x, jax.ShapeDtypeStruct)]
    if arrays and len(arrays) < len(leaves):
        kind = next(i for i in range(len(leaves)) if i not in arrays)
        raise ArgumentTypeError(
            f"argument {kind} of an export is {leaves[kind]!r}, which holds no numbers, and argument {arrays[0]} is an "
            "array; export with arrays alone, or with types alone, for which the program makes its inputs."
        )
    if arrays and asked is not None:
        raise ArgumentTypeError(
            f"export was given argument {arrays[0]}, and make_inputs={asked!r}, so the argument is not read; leave out "
            "the arguments or make_inputs."
        )
    return asked or (MADE[0] if leaves and not arrays else None)


def export_program(
    directory: Path,
    program: Program,
    mlir: Mapping[str, str],
    languages: Sequence[str],
    constant_limit: int,
    values: str | tuple[Sequence[Array], Callable[[], Sequence[Any]]],
) -> list[Path]:
    """Writes a TTNN program with its texts into a folder; returns the files written.

    `values` are its inputs in the form of their files and its expected results, or how it makes its inputs.
    """
    exact, bits = exact_results(program), narrow_results(program)
    making = values if isinstance(values, str) else None
    inputs, results = ((), lambda: ()) if isinstance(values, str) else values
    texts = dict(mlir)
    if "cpp" in languages:
        note_step("main.cpp")
        texts["main.cpp"] = cpp_text(
            program, load=True, exact=exact, bits=bits, constant_limit=constant_limit, make_inputs=making
        )
    note_step("computing the expected results")
    expected = [stack_shards(x) for x in results()]
    note_step("writing the files")
    return write_folder(
        directory,
        program,
        texts=texts,
        inputs=inputs,
        expected=expected,
        exact=exact,
        bits=bits,
        python="python" in languages,
        constant_limit=constant_limit,
        make_inputs=making,
    )
