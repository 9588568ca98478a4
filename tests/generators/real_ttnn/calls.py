"""What a call of a function of `ttnn` gives: a refusal, or the types of the results.

`outcome_of` runs with the real `ttnn` and with the emulated one; this module therefore imports neither.

A call is JSON: an argument is a number, a text or a list, `{"tensor": [shape, dtype, layout, place]}`,
`{"name": "ttnn.bfloat16"}` or `{"call": ["ttnn.MeshCoordinate", [0, 1]]}`.
"""

from __future__ import annotations

from typing import Any

MESH = (2, 4)
Job = dict[str, Any]


class Meshes:
    """The open mesh device."""

    def __init__(self, ttnn: Any) -> None:
        self._ttnn = ttnn
        self.device = ttnn.open_mesh_device(ttnn.MeshShape(list(MESH)), l1_small_size=65536)

    def close(self) -> None:
        """Closes the mesh device."""
        self._ttnn.close_mesh_device(self.device)


def outcome_of(ttnn: Any, meshes: Meshes, job: Job) -> dict[str, Any]:
    """Returns the refusal of a call, or the shape, element type, layout and place of each result."""
    out: dict[str, Any] = {"stage": "arguments"}
    try:
        args = [decode(ttnn, meshes, a) for a in job["args"]]
        kwargs = {k: decode(ttnn, meshes, a) for k, a in job["kwargs"].items()}
        out["stage"] = "call"
        function: Any = ttnn
        for name in job["callee"].split(".")[1:]:
            function = getattr(function, name)
        result = function(*args, **kwargs)
        out["stage"] = "result"
        rows = list(result) if isinstance(result, (list, tuple)) else [result]
        out["results"] = [describe(r) for r in rows]
        out["stage"] = None
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {error}"[:1500]
    return out


def decode(ttnn: Any, meshes: Meshes, value: Any) -> Any:
    """Returns an argument of a call."""
    if isinstance(value, list):
        return [decode(ttnn, meshes, v) for v in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(ttnn, meshes, v) for v in value["tuple"])
    if "call" in value:
        name, given = value["call"]
        made = getattr(ttnn, name.partition(".")[2])
        return made(**given) if isinstance(given, dict) else made(given)
    if "shape" in value:
        return ttnn.Shape(value["shape"])
    if "name" in value:
        found: Any = meshes.device if value["name"] == "device" else ttnn
        for name in value["name"].split(".")[1:]:
            found = getattr(found, name)
        return found
    shape, dtype, layout, place = value["tensor"]
    options = getattr(ttnn, dtype), getattr(ttnn, f"{layout}_LAYOUT")
    if place == "host":
        return ttnn.zeros(shape, *options)
    if place == "sharded":
        return _sharded(ttnn, meshes, shape, options)
    return ttnn.empty(shape, *options, meshes.device, ttnn.DRAM_MEMORY_CONFIG)


def _sharded(ttnn: Any, meshes: Meshes, shape: Any, options: Any) -> Any:
    """Returns a tensor on the devices whose shards `distribute_tensor` made; of rank 0 it is a copy on each."""
    full = [n * k for n, k in zip(shape, (*MESH, *[1] * len(shape)))]  # noqa: B905
    placements = [ttnn.PlacementShard(d) if d < len(shape) else ttnn.PlacementReplicate() for d in range(len(MESH))]
    mapper = ttnn.create_mesh_mapper(meshes.device, ttnn.MeshMapperConfig(placements))
    return ttnn.distribute_tensor(ttnn.zeros(full, *options), mapper, meshes.device)


def describe(result: Any) -> Any:
    """Returns the type of a result as JSON."""
    if getattr(result, "storage_type", None) is None:
        return type(result).__name__
    place = str(result.storage_type()).rpartition(".")[2]
    names = [str(x).rpartition(".")[2].upper() for x in (result.dtype, result.layout)]
    return [list(result.shape), *names, place]
