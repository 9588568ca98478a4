"""Recordings: every value of one run of a program, in the order of the run.

A file is an `.npz` of plain numbers, with a header in JSON that describes them.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, NoReturn, cast

import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.record.entry import LEVELS, Array, Entry
from jaxmesh.analysis.record.source_path import PathStep, Place
from jaxmesh.errors import MissingFileError, RecordingError, printable
from jaxmesh.jaxprs.source_locations import SourceLocation
from jaxmesh.runtime.npz import Arrays, StoredArray
from jaxmesh.validate import as_path, regular_file, whole_file

FORMAT, VERSION = "jaxmesh recording", 1
_TEXT = "recording"


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Every value of one run of a program, in execution order.

    Returned by `record` of `Traced` (the reference executor before the pass), `Lowered` (after it) and `Compiled` (the
    devices). `jaxmesh.compare` finds where two of them first differ.

    Attributes:
      entries: the values, arguments first.
      mesh: the size of each mesh axis.
      level: `"ttir"`, `"ttnn"` or `"devices"`.
      name: the name of the program.
      partial: True if only some values were recorded.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
    ... def double(x):
    ...     x = jm.full_to_shard(x, P("y"))
    ...     return jm.shard_to_full(x + x, P("y"))
    >>> recording = double.trace(jnp.arange(4.0)).record(jnp.arange(4.0))
    >>> [e.place.op for e in recording.entries]
    ['argument', 'mesh_shard', 'add', 'mesh_shard']
    >>> recording.entries[2].at((1, 0)).tolist()
    [4.0, 6.0]
    """

    entries: tuple[Entry, ...]
    mesh: Mapping[str, int]
    level: str
    name: str
    partial: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of all values."""
        return sum(e.stored.nbytes for e in self.entries)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an `.npz` file: values `v0`, `v1`, ..., and `recording`, their description in JSON.

        Values of dtypes that NumPy does not know are written as raw bits. The same recording gives the same bytes.

        Raises:
          ArgumentTypeError: `path` is not a path.
          RecordingError: the file cannot be written.
        """
        _write(self, as_path("Recording.save", path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Reads a file that `save` wrote. It contains no pickle, so an untrusted file can do no harm.

        Every value is compared with its checksum, and read again where it is used: the file stays open.

        Raises:
          ArgumentTypeError: `path` is not a path.
          MissingFileError: the file does not exist.
          RecordingError: the file is not a recording, of another version, or damaged.
        """
        return _read(as_path("Recording.load", path))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        part = "some values" if self.partial else "values"
        about = f"{printable(self.name)}, {self.level}, mesh={dict(self.mesh)}"
        return f"Recording({about}, {len(self)} {part}, {self.nbytes} bytes)"


# --- files -----------------------------------------------------------------------------------------------------------


def _write(recording: Recording, path: FilePath) -> None:
    header = json.dumps(_header(recording), sort_keys=True).encode()
    try:
        with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
            _write_array(archive, _TEXT, np.frombuffer(header, np.uint8))
            for number, entry in enumerate(recording.entries):
                data = entry.data
                # Raw bits of a dtype that NumPy cannot store.
                plain = data if data.dtype.isbuiltin == 1 else data.view(np.dtype(f"u{data.dtype.itemsize}"))
                _write_array(archive, f"v{number}", plain)
    except OSError as error:
        raise RecordingError(
            f"Recording.save cannot write {str(path)!r} ({error.strerror or error}); name a file in a folder."
        ) from None


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _read(path: FilePath) -> Recording:
    if not path.exists():
        raise MissingFileError(f"the recording {str(path)!r} does not exist; record(...).save(path) writes one.")
    try:
        if not zipfile.is_zipfile(regular_file(path)):
            _refuse(path, "it is not an .npz file")
        file = Arrays(zipfile.ZipFile(path), path.stat().st_size)
        if _TEXT not in file.names:
            _refuse(path, f"it has no array {_TEXT!r}")
        header = json.loads(file[_TEXT].tobytes())
        if not isinstance(header, dict) or cast("dict[str, object]", header).get("format") != FORMAT:
            _refuse(path, f"its text does not say {FORMAT!r}")
        version = cast("dict[str, object]", header).get("version")
        if version != VERSION:
            raise RecordingError(
                f"{str(path)!r} is a recording of version {version!r}, but this jaxmesh reads version {VERSION}; "
                "record it again."
            )
        return _decode(cast("dict[str, object]", header), file)
    except RecordingError:
        raise
    except Exception as error:
        # Archives and malformed headers raise errors of more than a dozen types.
        _refuse(path, f"{type(error).__name__}: {error}")


def _refuse(path: FilePath, why: str) -> NoReturn:
    raise RecordingError(
        f"{str(path)!r} is not a recording, or damaged ({' '.join(why.split())}); record(...).save(path) writes one."
    )


_DEEPEST = 1000
"""The most loops, branches and calls that an equation may be inside of."""


# --- the header ------------------------------------------------------------------------------------------------------


def _header(recording: Recording) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": recording.name,
        "level": recording.level,
        "partial": recording.partial,
        "mesh": [[a, n] for a, n in recording.mesh.items()],
        "entries": [
            {
                "place": _encode_place(e.place),
                "path": [[_encode_place(s.place), s.part, s.index] for s in e.path],
                "result": e.result,
                "coordinates": None if e.coordinates is None else [list(c) for c in e.coordinates],
                "dtype": e.dtype.name,
                "shape": list(e.stored.shape),
                "key": e.key,
            }
            for e in recording.entries
        ],
    }


def _encode_place(place: Place) -> list[object]:
    at = place.source
    return [at.file, at.line, at.column, at.function, place.op, place.occurrence]


def _decode(header: Mapping[str, Any], file: Arrays) -> Recording:
    mesh = {_text(a): _number(n, 1) for a, n in header["mesh"]}
    if header["level"] not in LEVELS or not isinstance(header["partial"], bool):
        raise ValueError(f"level {header['level']!r}")
    entries = [_entry(fields, file.check(f"v{i}"), tuple(mesh.values())) for i, fields in enumerate(header["entries"])]
    return Recording(tuple(entries), mesh, header["level"], _text(header["name"]), header["partial"])


def _entry(fields: Mapping[str, Any], data: StoredArray, mesh: tuple[int, ...]) -> Entry:
    dtype = np.dtype(jnp.dtype(_text(fields["dtype"])))
    if not jnp.issubdtype(dtype, np.number) and dtype != np.bool_:
        raise ValueError(f"an array is {dtype}, which is not a dtype of numbers")
    if len(fields["path"]) > _DEEPEST:
        raise ValueError(f"a path has {len(fields['path'])} steps, of at most {_DEEPEST}")
    if dtype.isbuiltin != 1:
        data = data.view(dtype)
    if data.dtype != dtype or list(data.shape) != fields["shape"]:
        raise ValueError(f"an array is {data.dtype}{list(data.shape)}, not {dtype}{fields['shape']} as its text says")
    coordinates = (
        None if fields["coordinates"] is None else tuple(tuple(map(_number, c)) for c in fields["coordinates"])
    )
    if coordinates is not None:
        inside = all(len(c) == len(mesh) and all(i < n for i, n in zip(c, mesh, strict=True)) for c in coordinates)
        if not inside or data.shape[:1] != (len(coordinates),) or len(set(coordinates)) != len(coordinates):
            raise ValueError(f"coordinates {fields['coordinates']} on a mesh {list(mesh)}")
    steps = tuple(PathStep(_read_place(p), _text(part), _number(index)) for p, part, index in fields["path"])
    return Entry(
        _read_place(fields["place"]), steps, _number(fields["result"]), coordinates, data, _text(fields["key"])
    )


def _read_place(fields: Any) -> Place:
    file, line, column, function, op, occurrence = fields
    at = SourceLocation(_text(file), _number(line), _number(column), _text(function))
    return Place(at, _text(op), _number(occurrence))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"{value!r} is not an integer of at least {least}")
    return value
