"""Recordings: every value of one run of a program, in the order of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from jaxmesh.analysis.record import npz
from jaxmesh.analysis.record.entry import Entry
from jaxmesh.validate import as_path


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
        fields = self.entries, self.mesh, self.level, self.name, self.partial
        npz.write(fields, as_path("Recording.save", path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Reads a file that `save` wrote. It contains no pickle, so an untrusted file can do no harm.

        Every value is compared with its checksum, and read again where it is used: the file stays open.

        Raises:
          ArgumentTypeError: `path` is not a path.
          MissingFileError: the file does not exist.
          RecordingError: the file is not a recording, of another version, or damaged.
        """
        return Recording(*npz.read(as_path("Recording.load", path)))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        part = "some values" if self.partial else "values"
        return f"Recording({self.name}, {self.level}, mesh={dict(self.mesh)}, {len(self)} {part}, {self.nbytes} bytes)"
