"""Ops of TTNN in a file: the two that move tensors, their configs in every spelling found, and changes of layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, Placement, PlacementReplicate, PlacementShard

LONGEST = 2000
"""Characters of a config; a longer one has more axes than any mesh, and is of no known spelling when cut."""

_OVERRIDE = r"(?:,\s*mesh_shape_override\s*=\s*(\[[^\[\]]*\]|(?:\#ttnn\.mesh_shape)?<[^<>]*>))?"
_MAPPER = re.compile(rf"\#ttnn\.mesh_mapper_config<\s*placements\s*=\s*\[([^\[\]]*)\]\s*{_OVERRIDE}\s*>", re.VERBOSE)
_COMPOSER = re.compile(rf"\#ttnn\.mesh_composer_config<\s*dims\s*=\s*\[([^\[\]]*)\]\s*{_OVERRIDE}\s*>", re.VERBOSE)
_PLACEMENT = re.compile(
    r"\s*(?:\#ttnn\.placement)?<\s*(?:(shard)\s*,\s*(-?[0-9]{1,9})|(replicate)(?:\s*,\s*-?[0-9]{1,9})?)\s*(?::\s*\w+)?\s*>\s*",
    re.VERBOSE,
)
_INTEGER = re.compile(r"\s*(-?[0-9]{1,18})\s*(?::\s*\w+)?\s*$")


def mapper_config(text: str) -> MeshMapperConfig:
    """Parses a mapper config as the lowering, the tests or the documentation of tt-mlir write it.

    >>> mapper_config("#ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>], mesh_shape_override = [8 : ui32]>")
    MeshMapperConfig([PlacementShard(0)], MeshShape([8]))
    """
    fields = "placements = [<shard, 0 : i32>], mesh_shape_override = [2 : ui32]"
    placements, override = _parts("mapper_config", _MAPPER, text, fields)
    return MeshMapperConfig([_placement(p, text) for p in placements], override)


def composer_config(text: str) -> MeshComposerConfig:
    """Parses a composer config, in the same spellings.

    >>> composer_config("#ttnn.mesh_composer_config<dims = [0, 1], mesh_shape_override = #ttnn.mesh_shape<2x2>>")
    MeshComposerConfig([0, 1], MeshShape([2, 2]))
    """
    fields = "dims = [0 : i32], mesh_shape_override = [2 : ui32]"
    dims, override = _parts("composer_config", _COMPOSER, text, fields)
    return MeshComposerConfig([_integer(d, text) for d in dims], override)


CONFIGS: Mapping[str, Callable[[str], Any]] = {"mapper_config": mapper_config, "composer_config": composer_config}


def _unknown(name: str, text: str, fields: str) -> VerifyError:
    return VerifyError(f"{name} {text[:200]} has no known spelling; write #ttnn.mesh_{name}<{fields}>.")


def _parts(name: str, pattern: re.Pattern[str], text: str, fields: str) -> tuple[list[str], tuple[int, ...] | None]:
    """Returns the items of a config's list, between commas outside of angles, and its override."""
    found = pattern.fullmatch(text)
    if found is None:
        raise _unknown(name, text, fields)
    return [p for p in re.split(r",(?![^<]*>)", found.group(1)) if p.strip()], _override(found.group(2), text)


def _placement(text: str, whole: str) -> Placement:
    found = _PLACEMENT.fullmatch(text)
    if found is None:
        raise _unknown("mapper_config", whole, "placements = [<shard, 0 : i32>, <replicate, -1 : i32>]")
    return PlacementReplicate() if found.group(3) else PlacementShard(int(found.group(2)))


def _integer(text: str, whole: str) -> int:
    found = _INTEGER.match(text)
    if found is None:
        raise VerifyError(f"{text.strip()[:40]!r} in {whole[:200]} is no integer.")
    return int(found.group(1))


def _override(text: str | None, whole: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    inside = text[text.index("<") + 1 : -1] if text.endswith(">") else text[1:-1]
    separator = "x" if text.endswith(">") else ","
    return tuple(_integer(n, whole) for n in inside.split(separator))
