"""One recorded value: the result of one equation in one execution, with a name that is stable between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxmesh.analysis.record.source_path import Path, Place, describe_path
from jaxmesh.errors import ArgumentValueError, RecordingSizeError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Aval
from jaxmesh.jaxprs.untyped import Array, DType
from jaxmesh.runtime.npz import StoredArray

Coordinate = tuple[int, ...]

LEVELS = ("ttir", "ttnn", "devices")
"""The source of the values: the reference executor before or after the pass, or the compiled program."""

MAX_BYTES = 2**30
"""The default limit of a recording, in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One value: one result of one equation in one execution.

    Attributes:
      place: the equation.
      path: the loops and branches around it, outermost first, with the iteration.
      result: the index among the equation's results.
      coordinates: the mesh coordinates of the devices with a copy, row-major; None for a full value on the host.
      stored: the value, in memory or in a file, which `data` reads; on the devices the copies are stacked along a
        leading dim, in the order of `coordinates`. The words of random keys are the last dim.
      key: the implementation of random keys, e.g. `"fry"`; empty for numbers.
    """

    place: Place
    path: Path
    result: int
    coordinates: tuple[Coordinate, ...] | None
    stored: Array | StoredArray
    key: str = ""

    @property
    def data(self) -> Array:
        """The value, read from the file of a recording that was loaded."""
        return self.stored.read() if isinstance(self.stored, StoredArray) else self.stored

    def read(self) -> Entry:
        """Returns the entry with its value in memory."""
        return replace(self, stored=self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value; on a device, the local shape."""
        return self.stored.shape if self.coordinates is None else self.stored.shape[1:]

    @property
    def dtype(self) -> DType:
        """The dtype; for random keys, the dtype of their words."""
        return self.stored.dtype

    @property
    def name(self) -> str:
        """The place and the path to it, e.g. `model.py:12 (mlp): dot_general in scan[2]`; unique in a recording."""
        result = f", result {self.result}" if self.result else ""
        way = f" in {describe_path(self.path)}" if self.path else ""
        return f"{self.place}{result}{way}"

    def at(self, coordinate: Sequence[int]) -> Array:
        """Returns the value on one device; a full value is the same on all devices.

        Raises:
          ArgumentValueError: the device did not compute the value.
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


def is_recorded(aval: Aval) -> bool:
    """Returns True for types with recorded values: arrays, but not references, tokens or `float0`."""
    return compat.is_array_type(aval) and aval.dtype != jax.dtypes.float0


def key_kind(dtype: Any) -> str:
    """Returns the implementation of random keys; empty for numbers."""
    return str(dtype)[len("key<") : -1] if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else ""


def check_bytes(used: int, limit: int, what: object) -> None:
    """Checks that the bytes of a recording, up to and including `what`, are within the limit."""
    if used > limit:
        raise RecordingSizeError(
            f"the recording needs more than max_bytes={limit} bytes: {used} with {what}; record less "
            "with only=..., or allow more with max_bytes=..."
        )
