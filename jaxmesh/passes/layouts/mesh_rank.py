"""Gives the mesh of a flat TTNN program the two dims that the real library wants.

Its collectives refuse a mesh of one dim; on a mesh of one row they pass. `ttnn.open_mesh_device` refuses three dims.
"""

from __future__ import annotations

from dataclasses import replace

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.errors import UnsupportedError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementReplicate

_RANK = 2
OFFER = "; or ask for the text with strict=False, which the emulation runs"


def offer_of(program: Program) -> str:
    """Returns the offer of a text that the real library does not take; nothing if the emulation cannot run it."""
    names = {op.name for each in program.programs() for op in each.ops}
    if any(has_trait(name, Trait.OPAQUE) for name in names):
        return ""
    is_textual = any(has_trait(name, Trait.TEXTUAL) for name in names)
    return OFFER.replace("the text", "the text in MLIR") if is_textual else OFFER


def set_mesh_rank(program: Program, strict: bool = True, offer: str = OFFER) -> Program:
    """Returns the program on a mesh of two dims; the new ones come first and have size 1.

    Args:
      program: of TTNN ops.
      strict: whether a mesh of more dims is an error; else it stays as it is.
      offer: of `offer_of`; it ends the message.

    Raises:
      UnsupportedError: a mesh of three or more dims.
    """
    sizes = tuple(program.mesh.values())
    if strict and len(sizes) > _RANK:
        shown = "x".join(map(str, sizes))
        raise UnsupportedError(
            f"ttnn.open_mesh_device of the real ttnn opens meshes of two dims, got {shown}. Make a mesh of two axes "
            f"(join some){offer}."
        )
    more = _RANK - len(sizes)
    if more <= 0:
        return program
    names = (f"_{i}" for i in range(len(program.mesh) + _RANK) if f"_{i}" not in program.mesh)
    mesh = {next(names): 1 for _ in range(more)} | program.mesh
    shape = tuple(mesh.values())
    ops = [replace_attributes(op, _raise_rank(op.attributes, shape, more)) for op in program.ops]
    arguments = [
        port if port.varying is None else replace(port, varying=tuple(a + more for a in port.varying))
        for port in program.arguments
    ]
    return replace(program, mesh=mesh, arguments=arguments, ops=ops)


def replace_attributes(op: Op, attributes: Attributes) -> Op:
    """Returns an op with other attributes; the same one if they are the same."""
    return op if attributes is op.attributes else Op(op.name, op.operands, op.results, attributes, op.line)


def _raise_rank(attributes: Attributes, shape: tuple[int, ...], more: int) -> Attributes:
    """Returns the attributes that count mesh axes."""
    changed: dict[str, object] = {}
    for name, value in attributes.items():
        match name, value:
            case "mesh_shape", _:
                changed[name] = shape
            case "cluster_axis", int():
                changed[name] = value + more
            case "sender_coord" | "receiver_coord", _:
                changed[name] = (*(0,) * more, *value)
            case "mapper_config", MeshMapperConfig():
                changed[name] = _mapper(value, shape, more)
            case "composer_config", MeshComposerConfig(mesh_shape_override=None):
                # A composer of one dim joins the shards in their order, whatever the rank of the mesh.
                changed[name] = MeshComposerConfig(value.dims, MeshShape(shape[more:]))
            case _:
                pass
    return {**attributes, **changed} if changed else attributes


def _mapper(config: MeshMapperConfig, shape: tuple[int, ...], more: int) -> MeshMapperConfig:
    override = config.mesh_shape_override
    if override is not None and tuple(override) != shape[more:]:
        return config
    placements = [*[PlacementReplicate()] * more, *config.placements]
    return MeshMapperConfig(placements, None if override is None else MeshShape(shape))
