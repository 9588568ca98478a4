"""GSPMD's shardings, as XLA writes them: `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import jaxlib
from jax._src import sharding_impls
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.errors import UnsupportedError

_jaxlib: Any = jaxlib
_implementations: Any = sharding_impls
_NUMBERS = r"\[[0-9]{1,9}(?:,[0-9]{1,9})*\]"
_LAST = r"(?: last_tile_dim_replicate| last_tile_dims=\{(?P<last>[a-z, ]*)\})?"
_TILED = re.compile(
    rf"\{{devices=(?P<tiles>{_NUMBERS})"
    rf"(?:<=(?P<sizes>{_NUMBERS})(?:T\((?P<order>[0-9]{{1,2}}(?:,[0-9]{{1,2}})*)\))?|(?P<list>[0-9]{{1,9}}(?:,[0-9]{{1,9}})*))"
    rf"{_LAST}\}}"
)


def elements(text: str) -> list[str]:
    """Returns the shardings of a tuple's elements, or the one sharding that a text is.

    >>> elements("{{devices=[2,1]<=[2]}, {replicated}}")
    ['{devices=[2,1]<=[2]}', '{replicated}']
    """
    text = text.strip()
    if not re.match(r"\{\s*\{", text):
        return [text]
    return re.findall(r"\{(?:[^{}]|\{[^{}]*\})*\}", text[1:-1])


def is_manual(text: str) -> bool:
    """Returns True for the sharding of a value that each device has its own of."""
    return text.strip() == "{manual}"


def spec_of(text: str, mesh: AbstractMesh) -> PartitionSpec:
    """Reads a sharding as a spec over a mesh.

    Raises:
      UnsupportedError: it is none, or not one over axes of the mesh.
    """
    text = text.strip()
    if text in ("{replicated}", "{maximal device=0}"):
        return PartitionSpec()
    found = _TILED.fullmatch(text)
    if found is None or found["last"] not in (None, "replicated"):
        raise UnsupportedError(
            f"mhlo.sharding = {text[:100]!r} is not a sharding over mesh axes; {{replicated}}, {{manual}} and "
            "{devices=[2,1,4]<=[8] last_tile_dim_replicate} are read."
        )
    sizes = _ints(found["tiles"])
    count = math.prod(sizes)
    rows = _ints(found["sizes"] or f"[{count}]")
    wrong = count != mesh.size or math.prod(rows) != count
    # XLA ends the process for an order that is not a permutation.
    wrong = wrong or sorted(_ints(f"[{found['order']}]") if found["order"] else range(len(rows))) != [*range(len(rows))]
    listed = (found["list"] or "").split(",") if found["list"] else []
    if wrong or (listed and sorted(map(int, listed)) != list(range(count))):
        raise _no_axes(text, mesh)
    try:
        (spec,) = _implementations.parse_flatten_op_sharding(_jaxlib._hlo.HloSharding.from_string(text), mesh)
    except (ValueError, RuntimeError, AssertionError, StopIteration, NotImplementedError):
        raise _no_axes(text, mesh) from None
    return spec


def _no_axes(text: str, mesh: AbstractMesh) -> UnsupportedError:
    return UnsupportedError(
        f"mhlo.sharding = {text[:100]!r} does not split over whole axes of the mesh {dict(mesh.shape)}; give mesh= the "
        "mesh that it was written for."
    )


def candidate_meshes(texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Returns the mesh sizes that shardings suggest, each of at least two axes; meshes of more axes come first."""
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        match = _TILED.fullmatch(text.strip())
        if match is None:
            continue
        tiles, sizes = _ints(match["tiles"]), _ints(match["sizes"] or "[1]")
        for row in (sizes, tiles):
            split = tuple(n for n in row if n > 1)
            found[(1,) * (2 - len(split)) + split] = None
    return sorted(found, key=lambda sizes: (-math.prod(sizes), -len(sizes)))


def _ints(text: str) -> list[int]:
    return [int(n) for n in text[1:-1].split(",")]
