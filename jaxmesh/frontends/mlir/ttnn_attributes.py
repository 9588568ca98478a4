"""Attributes of ops of TTNN: functions applied to operands or results, read as ops beside, and configs of transfers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.elementwise import TUNED
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, Placement, PlacementReplicate, PlacementShard

FUSED = ("input_tensor_a_activations", "input_tensor_b_activations")
"""The attributes of an op of two tensors that name functions of its operands."""
AFTER = "activations"
"""The attribute that names functions of its result."""
_PRODUCTS = ("ttnn.matmul", "ttnn.linear")
_PROGRAM_CONFIGS = ("matmul_program_config", "conv2d_config")
"""The attributes that say how an op computes, and may name a function of its result."""
_FUNCTION = re.compile(r'\b(?:fused_)?activation = (<op_type = [^>]*>|"\w+")')
_OTHER_NAMES = {
    "recip": "reciprocal", "is_inf": "isinf", "is_nan": "isnan", "is_finite": "isfinite", "soft_plus": "softplus",
    "logical_not_unary": "logical_not",
}  # fmt: skip
"""The ops whose name is another one in `#ttnn.unary_with_param`."""
_UNARY = re.compile(r"#ttnn\.unary_with_param<op_type = (\w+)(?:, params = \[([^\]]*)\])?>")


def activation_of(name: str, attributes: Mapping[str, object]) -> str:
    """Returns the op that a product or a convolution of TTNN applies to its result; empty for none.

    A product names the function itself, or in its program config; a convolution in its config.
    """
    named = attributes.get("activation") if name in _PRODUCTS else None
    found = {_unary(str(named))} if named else set[str]()
    for config in _PROGRAM_CONFIGS:
        found |= {
            _unary(f"#ttnn.unary_with_param{f}" if f[0] == "<" else f[1:-1])
            for f in _FUNCTION.findall(str(attributes.get(config, "")))
        }
    if len(found) > 1:
        raise UnsupportedError(f"applies {' and '.join(sorted(found))}, but one function of the result is known.")
    return found.pop() if found else ""


def _unary_op(name: str) -> str:
    name = _OTHER_NAMES.get(name, name)
    definition = definition_of(f"ttnn.{name}")
    is_unary = definition is not None and definition.operands == (1, 1) and Trait.MEMORY not in definition.traits
    if definition is None or not is_unary or any(a.required for a in definition.attributes):
        raise UnsupportedError(
            f"activation = {name!r:.60} is not a function of one tensor; write the activation as a separate op."
        )
    return f"ttnn.{name}"


def fused_functions(attributes: Attributes) -> Mapping[str, Sequence[str]]:
    """Returns the ops that an op of two tensors applies to its operands and its result, by attribute; mostly none."""
    named = [name for name in (*FUSED, AFTER) if attributes.get(name)]
    return {name: [_unary(str(f)) for f in attributes[name]] for name in named}


def _unary(function: str) -> str:
    """Returns the op of a function.

    >>> _unary("#ttnn.unary_with_param<op_type = exp>")
    'ttnn.exp'
    """
    found = _UNARY.fullmatch(function)
    name, parameters = found.groups() if found else (function, None)
    plain = name in TUNED and all(float(p.partition(":")[0]) == 0 for p in (parameters or "0").split(","))
    if parameters and not plain:
        raise UnsupportedError(f"applies {function:.80}, whose parameters are not known; write it as a separate op.")
    return _unary_op(name)


# --- configs of transfers ---------------------------------------------------------------------------------------------


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


CONFIGS: Mapping[str, Callable[[str], MeshMapperConfig | MeshComposerConfig]] = {
    "mapper_config": mapper_config,
    "composer_config": composer_config,
}


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
