"""Arrays for programs: random inputs, `.npz` files in and out, and a summary of a result.

NumPy's files have neither bfloat16 nor the 8-bit floats. Such an array is stored as its raw bits: as `np.savez` writes
it, in void elements of the same width; on the way in, unsigned integers of that width are taken too. To read one:
`np.load("out.npz")["result0"].view(jnp.bfloat16)`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import ArgumentTypeError, MissingFileError

Array = np.ndarray[Any, Any]
_MAX_SHOWN = 64


def random_array(rng: np.random.Generator, kind: jax.ShapeDtypeStruct) -> Array:
    """Random numbers that suit a dtype: normal floats, small non-negative integers (which index any table), coins."""
    made: Array = _random(rng, kind.shape, kind.dtype).astype(kind.dtype)
    return made


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype == jnp.bool_:
        return rng.integers(0, 2, shape)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, min(10, int(jnp.iinfo(dtype).max) + 1), shape)
    values: Any = rng.standard_normal(shape, np.float32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return values + 1j * rng.standard_normal(shape, np.float32)
    # The exponent-only dtype has no sign.
    return np.abs(values) if dtype.name == "float8_e8m0fnu" else values


def raw(array: Array) -> Array:
    """The array as an `.npz` file holds it."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.dtype(f"V{array.dtype.itemsize}"))


def read_inputs(path: Path, kinds: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Returns the arguments in an `.npz` file: `arg0`, `arg1`, ... (or `0`, ..., or `arr_0`, ..., NumPy's names)."""
    try:
        # Opened here: NumPy would leave a file that is no archive open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            names, found = file.files, {_index(name): (name, file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise MissingFileError(
            f"--inputs {str(path)!r} is not an .npz file ({error}); write one with np.savez."
        ) from None
    twice = [n for n in names if found[_index(n)][0] != n]
    if twice:
        other = found[_index(twice[0])][0]
        raise ArgumentTypeError(f"--inputs has two arrays for one argument, {twice[0]!r} and {other!r}; leave one out.")
    for number, (name, _) in found.items():
        if number is None or number >= len(kinds):
            wanted = ", ".join(f"arg{i}" for i in range(len(kinds))) or "none"
            raise ArgumentTypeError(f"--inputs has an array {name!r}, but the function's arguments are: {wanted}.")
    missing = [f"arg{i}" for i in range(len(kinds)) if i not in found]
    if missing:
        raise ArgumentTypeError(f"--inputs has no array {', '.join(missing)}; it has: {_names(found)}.")
    return [_check(found[i][1], kind, f"--inputs: arg{i}") for i, kind in enumerate(kinds)]


def _names(found: dict[int | None, tuple[str, Array]]) -> str:
    return ", ".join(name for name, _ in found.values()) or "none"


def _index(name: str) -> int | None:
    digits = name.removeprefix("arg").removeprefix("arr_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else None


def _check(array: Array, kind: jax.ShapeDtypeStruct, what: str) -> Array:
    bits = array.dtype.kind in "Vu" and array.dtype.names is None and array.dtype.itemsize == kind.dtype.itemsize
    if array.dtype != kind.dtype and bits and kind.dtype.isbuiltin != 1:
        array = array.view(kind.dtype)
    if array.dtype != kind.dtype or array.shape != kind.shape:
        raise ArgumentTypeError(
            f"{what} is {array.dtype}{list(array.shape)}, but the function takes {kind.dtype}{list(kind.shape)} (of a "
            "presharded argument the first dim counts the devices); convert it, or store raw bits of a dtype that "
            "NumPy does not know."
        )
    return array


def numbers(array: Array) -> Array:
    """Values to compute with: wide floats for narrow ones, integers as they are."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def summary(array: Array) -> str:
    """A few numbers, and a checksum of the bytes."""
    checksum = (
        f"crc32={zlib.crc32(np.ascontiguousarray(array).view(np.uint8).tobytes()):08x}" if array.size else "empty"
    )
    if not array.size or jnp.issubdtype(array.dtype, jnp.complexfloating):
        return checksum
    values = array.astype(np.float64)
    return f"min={values.min():.6g} max={values.max():.6g} mean={values.mean():.6g} {checksum}"


def show_values(array: Array, indent: str) -> str:
    """The values, with the middle of large arrays left out."""
    return np.array2string(numbers(array), threshold=_MAX_SHOWN, precision=6, prefix=indent)
