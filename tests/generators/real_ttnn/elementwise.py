"""What an elementwise function of `ttnn` gives for each combination of kinds of operands and options.

`outcome_of` runs with the real `ttnn`; this module therefore imports neither it nor jaxmesh. A kind is one letter: that
of an element type, of a class of numbers, of a value of an option, or `-` for none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {"f": "FLOAT32", "b": "BFLOAT16", "8": "BFLOAT8_B", "4": "BFLOAT4_B", "i": "INT32", "u": "UINT32",
         "h": "UINT16", "c": "UINT8", "s": "INT8"}  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dtype": {"-": None, **TYPES},
    "rounding_mode": {"-": None, "F": "floor", "T": "trunc", "O": "up"},
    "fast_and_approximate_mode": {"-": None, "Y": True, "N": False},
}
Key = tuple[str, ...]


class Meshes:
    """The open mesh device, and a tensor of each element type."""

    def __init__(self, ttnn: Any) -> None:
        self.device = ttnn.open_mesh_device(ttnn.MeshShape([2, 4]))
        self.tensors = {
            letter: ttnn.empty([32, 32], getattr(ttnn.DataType, name), ttnn.TILE_LAYOUT, self.device)
            for letter, name in TYPES.items()
        }

    def close(self) -> None:
        """Closes the mesh device."""


def keys(job: Mapping[str, Any]) -> Iterator[Key]:
    """Yields the letters of the operands and options of each call of a job that has a tensor."""
    options = [OPTIONS[name].keys() for name in job["options"]]
    for key in itertools.product(*job["operands"], *options):
        if any(k in TYPES for k in key[: len(job["operands"])]):
            yield key


def outcome_of(ttnn: Any, meshes: Meshes, job: Mapping[str, Any]) -> list[str]:
    """Returns by call the letter of the result's element type; an empty text for a refusal, `-` for no signature."""
    function, count = getattr(ttnn, job["callee"].removeprefix("ttnn.")), len(job["operands"])
    letters = {name: letter for letter, name in TYPES.items()}
    found = list[str]()
    for key in keys(job):
        operands = [job["numbers"][k] if k in job["numbers"] else meshes.tensors.get(k) for k in key[:count]]
        options = {name: OPTIONS[name][k] for name, k in zip(job["options"], key[count:], strict=True) if k != "-"}
        if "dtype" in options:
            options["dtype"] = getattr(ttnn.DataType, options["dtype"])
        try:
            found.append(letters[function(*operands, *job["more"], **options).dtype.name])
        except Exception as error:
            found.append("-" if "incompatible function arguments" in str(error) else "")
    return found
