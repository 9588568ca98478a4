"""Recordings: every value of one run of a program, with the names by which another run has them too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxmesh.analysis.record.source_path import Path, Place, Step as Step, described
from jaxmesh.errors import ArgumentValueError, RecordingSizeError
from jaxmesh.jaxprs import compat
from jaxmesh.validate import as_path as checked_path

Array = np.ndarray[Any, Any]
Coordinate = tuple[int, ...]

LEVELS = ("ttir", "ttnn", "devices")
"""What was run: the reference executor on the program before or after the pass, or the compiled program."""

MAX_BYTES = 2**30
"""How much a recording holds unless another limit is given."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One value: what one equation gave, once.

    Attributes:
      place: the equation.
      path: the loops and branches around it, outermost first, with the iteration.
      result: which of the equation's results.
      coordinates: the devices that have a copy, row-major; None for a full value, which has no device.
      data: the value; of one on the devices a leading dim counts `coordinates`. Of random keys the words, last.
      key: the implementation of random keys, e.g. `"fry"`; empty for numbers.
    """

    place: Place
    path: Path
    result: int
    coordinates: tuple[Coordinate, ...] | None
    data: Array
    key: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value, on a device the local one."""
        return self.data.shape if self.coordinates is None else self.data.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, of random keys that of their words."""
        return self.data.dtype

    @property
    def name(self) -> str:
        """The place and the way there, e.g. `model.py:12 (mlp): dot_general in scan[2]`; unique in a recording."""
        result = f", result {self.result}" if self.result else ""
        way = f" in {described(self.path)}" if self.path else ""
        return f"{self.place}{result}{way}"

    def at(self, coordinate: Sequence[int]) -> Array:
        """The value on one device; a full value is the same for all.

        Raises:
          ArgumentValueError: that device has not made it.
        """
        if self.coordinates is None:
            return self.data
        wanted = tuple(coordinate)
        if wanted not in self.coordinates:
            raise ArgumentValueError(
                f"{self.name} has no value at mesh coordinate {list(wanted)}; it was made at "
                f"{[list(c) for c in self.coordinates]}."
            )
        return self.data[self.coordinates.index(wanted)]

    def __repr__(self) -> str:
        where = "full" if self.coordinates is None else f"on {len(self.coordinates)} devices"
        return f"Entry({self.name}, {self.dtype}{list(self.shape)} {where})"


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Every value that one run of a program made, in the order in which it made them.

    Made by `record` of `Traced` (the reference executor before the pass), `Lowered` (after it) and `Compiled` (the
    devices). `jaxmesh.compare` finds where two of them first differ.

    Attributes:
      entries: the values; those of arguments first.
      mesh: the size of each mesh axis.
      level: `"ttir"`, `"ttnn"` or `"devices"`.
      name: of the program.
      partial: whether only some values were asked for.

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
        return sum(e.data.nbytes for e in self.entries)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an `.npz` file: values `v0`, `v1`, ..., and `recording`, which says in JSON what they are.

        Values of dtypes that NumPy does not know are written as raw bits. The same recording gives the same bytes.

        Raises:
          ArgumentTypeError: `path` is no path.
          RecordingError: the file cannot be written.
        """
        from jaxmesh.analysis.record import npz

        npz.write(self, checked_path("Recording.save", path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Reads what `save` has written; no pickle, so a file can do no harm.

        Raises:
          ArgumentTypeError: `path` is no path.
          MissingFileError: there is no such file.
          RecordingError: it is no recording, of another version, or damaged.
        """
        from jaxmesh.analysis.record import npz

        return npz.read(checked_path("Recording.load", path))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        part = "some values" if self.partial else "values"
        return f"Recording({self.name}, {self.level}, mesh={dict(self.mesh)}, {len(self)} {part}, {self.nbytes} bytes)"


# --- taking values ---------------------------------------------------------------------------------------------------


def is_recorded(aval: Any) -> bool:
    """Whether values of a type are recorded: arrays are, references, tokens and the zeros of integers are not."""
    return compat.is_array_type(aval) and aval.dtype != jax.dtypes.float0


def key_kind(dtype: Any) -> str:
    """The implementation of random keys; empty for numbers."""
    return str(dtype)[len("key<") : -1] if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else ""


def words(x: Any) -> Any:
    """A value as an array of numbers: of random keys their words; also inside a trace."""
    return jax.random.key_data(x) if key_kind(getattr(x, "dtype", None)) else x


@dataclass(slots=True)
class Budget:
    """How many bytes may still be recorded."""

    limit: int
    used: int = field(default=0)

    def take(self, count: int, what: str) -> None:
        """Counts bytes.

        Raises:
          RecordingSizeError: there are too many.
        """
        self.used += count
        if self.used > self.limit:
            raise RecordingSizeError(
                f"the recording needs more than max_bytes={self.limit} bytes: {self.used} with {what}; record less "
                "with only=..., or allow more with max_bytes=..."
            )
