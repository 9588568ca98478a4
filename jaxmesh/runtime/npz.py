"""Arrays for programs: random inputs, `.npz` files in and out, and a summary of a result.

NumPy's files support neither bfloat16 nor the 8-bit floats. Such an array is stored as raw bits: in void elements of
the same width, as by `np.savez`; unsigned integers of that width are read, too. To read an output:
`np.load("out.npz")["result0"].view(jnp.bfloat16)`.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import ArgumentTypeError, MissingFileError, RecordingError
from jaxmesh.jaxprs.untyped import Array, DType
from jaxmesh.validate import regular_file

_MAX_SHOWN = 64
_PIECE = 1 << 20
"""The bytes that are read, and the elements that are drawn, at a time."""


def random_array(rng: np.random.Generator, struct: jax.ShapeDtypeStruct) -> Array:
    """Returns random numbers that suit a dtype: normal floats, small non-negative integers (valid indices), or
    booleans."""
    array: Array = np.empty(struct.shape, struct.dtype)
    flat = array.reshape(-1)
    for part in (flat.real, flat.imag) if flat.dtype.kind == "c" else (flat,):
        for at in range(0, part.size, _PIECE):
            piece = part[at : at + _PIECE]
            piece[...] = _random(rng, piece.shape, struct.dtype)
    return array


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype == jnp.bool_:
        return rng.integers(0, 2, shape)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, min(10, int(jnp.iinfo(dtype).max) + 1), shape)
    values = rng.standard_normal(shape, np.float32)
    # The exponent-only dtype is unsigned.
    return np.abs(values) if dtype.name == "float8_e8m0fnu" else values


def raw(array: Array) -> Array:
    """Returns the array as stored in an `.npz` file."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.dtype(f"V{array.dtype.itemsize}"))


class Arrays:
    """The arrays of an `.npz` file of a stranger: no pickle, no more memory than the file names."""

    def __init__(self, archive: zipfile.ZipFile, most: int) -> None:
        self._archive = archive
        self._infos = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        total = sum(i.file_size for i in archive.infolist())
        if total > most:
            raise ValueError(f"its arrays unpack to {total} bytes, of at most {most}")
        self.names = list(self._infos)

    def __getitem__(self, name: str) -> Array:
        with self._archive.open(self._infos[name]) as file:
            shape, fortran, dtype, size = self._header(name, file)
            data = bytearray(file.read(size))
        array: object = np.frombuffer(data, dtype) if size else np.zeros(math.prod(shape), dtype)
        return array.reshape(shape, order="F" if fortran else "C")

    def check(self, name: str) -> StoredArray:
        """Reads an array in pieces, which compares it with its checksum; returns it without its elements."""
        with self._archive.open(self._infos[name]) as file:
            shape, _, dtype, _ = self._header(name, file)
            while file.read(_PIECE):
                pass
        return StoredArray(self, name, shape, dtype)

    def _header(self, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, DType, int]:
        """Reads a header; returns the shape, True for column-major order, the dtype, and the bytes of the elements."""
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.kind not in "biufcVU" or dtype.names or dtype.subdtype or dtype.char in "gG":
            raise ValueError(f"{name} has elements of {dtype}, which is not a dtype of numbers")
        size = math.prod(shape) * dtype.itemsize
        if size != self._infos[name].file_size - file.tell() or any(n < 0 for n in shape):
            raise ValueError(f"{name} is {dtype}{list(shape)}, and the file has another number of bytes")
        return shape, fortran, dtype, size


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file, whose elements are read where they are used; the file stays open."""

    arrays: Arrays | Spool
    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, dtype: DType) -> StoredArray:
        """Returns the array with its bits as another dtype of the same width."""
        if dtype.itemsize != self.dtype.itemsize:
            raise ValueError(f"{self.name} has elements of {self.dtype}, which are not of the width of {dtype}")
        return replace(self, dtype=dtype)

    def read(self) -> Array:
        """Reads the elements."""
        array: object = self.arrays[self.name].view(self.dtype)
        return array if array.shape == self.shape else np.broadcast_to(array, self.shape)


_HELD = 1 << 26
"""The bytes of arrays that a spool holds in memory."""


class Spool:
    """Stores arrays: the first in memory, further arrays in an unnamed file."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._held, self._places = 0, dict[str, tuple[int, tuple[int, ...], DType]]()

    def add(self, array: Array) -> Array | StoredArray:
        """Returns the array, or a reference to its elements in the file.

        Raises:
          RecordingError: the disk is full.
        """
        # Copies that share memory are written once.
        stored = array[:1] if array.ndim and not array.strides[0] else array
        self._held += stored.nbytes
        if self._held <= _HELD:
            return array
        name = str(len(self._places))
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._places[name] = self._file.seek(0, os.SEEK_END), stored.shape, stored.dtype
            self._file.write(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise RecordingError(
                f"a value of {stored.nbytes} bytes cannot be written to {tempfile.gettempdir()!r} "
                f"({error.strerror or error}); free space there, or name another folder in TMPDIR."
            ) from None
        return StoredArray(self, name, array.shape, array.dtype)

    def __getitem__(self, name: str) -> Array:
        start, shape, dtype = self._places[name]
        assert self._file is not None
        self._file.flush()
        size = math.prod(shape) * dtype.itemsize
        data = np.memmap(self._file, np.uint8, "r", start, (size,)) if size else np.empty(0, np.uint8)
        return np.asarray(data).view(dtype).reshape(shape)


@contextlib.contextmanager
def open_arrays(path: Path, unpacked: int | None = None) -> Generator[Arrays]:
    """Opens an `.npz` file; the arrays have at most `unpacked` bytes, by default the size of the file."""
    with zipfile.ZipFile(regular_file(path)) as archive:
        yield Arrays(archive, max(path.stat().st_size, unpacked or 0))


BROKEN = (
    OSError, ValueError, EOFError, AttributeError, TypeError, KeyError, MemoryError, NotImplementedError, SyntaxError,
    RuntimeError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
"""The errors of `open_arrays` for a file that is not an archive of arrays."""
_MORE = 1 << 20
"""The bytes of headers, and of arrays of another dtype than the program's, in a file of inputs."""


def read_inputs(path: Path, structs: Sequence[jax.ShapeDtypeStruct], option: str = "--inputs") -> list[Array]:
    """Returns the arguments in an `.npz` file: `arg0`, `arg1`, ... (or `0`, ..., or `arr_0`, ..., NumPy's names).

    `option` names the file in errors.
    """
    wanted = sum(math.prod(s.shape) * s.dtype.itemsize for s in structs)
    try:
        with open_arrays(path, 8 * wanted + _MORE) as file:
            names, by_index = file.names, {_index(name): (name, file[name]) for name in file.names}
    except BROKEN as error:
        raise MissingFileError(
            f"{option} {str(path)!r} is not an .npz file ({error}); write one with np.savez."
        ) from None
    twice = [n for n in names if by_index[_index(n)][0] != n]
    if twice:
        other = by_index[_index(twice[0])][0]
        raise ArgumentTypeError(f"{option} has two arrays for one argument, {twice[0]!r} and {other!r}; leave one out.")
    for number, (name, _) in by_index.items():
        if number is None or number >= len(structs):
            wanted = ", ".join(f"arg{i}" for i in range(len(structs))) or "none"
            raise ArgumentTypeError(f"{option} has an array {name!r}, but the function's arguments are: {wanted}.")
    missing = [f"arg{i}" for i in range(len(structs)) if i not in by_index]
    if missing:
        raise ArgumentTypeError(f"{option} lacks {', '.join(missing)}; its arrays are: {_names(by_index)}.")
    return [_check(by_index[i][1], struct, f"{option}: arg{i}") for i, struct in enumerate(structs)]


def _names(by_index: dict[int | None, tuple[str, Array]]) -> str:
    return ", ".join(name for name, _ in by_index.values()) or "none"


def _index(name: str) -> int | None:
    digits = name.removeprefix("arg").removeprefix("arr_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else None


def _check(array: Array, struct: jax.ShapeDtypeStruct, what: str) -> Array:
    bits = array.dtype.kind in "Vu" and array.dtype.names is None and array.dtype.itemsize == struct.dtype.itemsize
    if array.dtype != struct.dtype and bits and struct.dtype.isbuiltin != 1:
        array = array.view(struct.dtype)
    if array.dtype != struct.dtype or array.shape != struct.shape:
        raise ArgumentTypeError(
            f"{what} is {array.dtype}{list(array.shape)}, but the function takes {struct.dtype}{list(struct.shape)} "
            "(the first dim of a presharded argument counts the devices); convert it, or store raw bits of a dtype "
            "that NumPy does not know."
        )
    return array


def numbers(array: Array) -> Array:
    """Returns values to compute with: narrow floats are widened, integers are unchanged."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def summary(array: Array) -> str:
    """Returns a few statistics, and a checksum of the bytes."""
    checksum = (
        f"crc32={zlib.crc32(np.ascontiguousarray(array).view(np.uint8).tobytes()):08x}" if array.size else "empty"
    )
    if not array.size or jnp.issubdtype(array.dtype, jnp.complexfloating):
        return checksum
    values = array.astype(np.float64)
    return f"min={values.min():.6g} max={values.max():.6g} mean={values.mean():.6g} {checksum}"


def show_values(array: Array, indent: str) -> str:
    """Returns the values as text, with the middle of large arrays left out."""
    return np.array2string(numbers(array), threshold=_MAX_SHOWN, precision=6, prefix=indent)
