"""Facts about operations stand on their definitions, and agree with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxmesh.dialects import textual, ttir, ttnn
from jaxmesh.dialects.definitions import DEFINITIONS, FUNCTION_OPS, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn import memory
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.jaxprs import primitives
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten import flatten
from jaxmesh.passes.ttir_to_ttnn import driver


def tables_of(module: Any, name: str, kind: type) -> list[Mapping[str, Any]]:
    """The tables of one name of a module's families."""
    families = [v for v in vars(module).values() if type(v) is type(module)]
    tables = [t for family in families for n, t in vars(family).items() if n == name]
    return [t for t in tables if isinstance(t, kind)]


def test_no_family_defines_an_operation_of_another_one() -> None:
    for module, joined, name, kind in (
        (ttir, ttir.OPS, "OPS", dict),
        (ttnn, {**ttnn.OPS, **memory.OPS}, "OPS", dict),
        (flatten, flatten.RULES.keys() - flatten.REFUSED.keys(), "RULES", Rules),
        (driver, driver.PATTERNS, "PATTERNS", Rules),
    ):
        tables = tables_of(module, name, kind)
        assert len(tables) > 4
        assert sum(map(len, tables)) == len(joined), module.__name__


def test_the_registry_has_every_definition_by_its_full_name() -> None:
    tables = ttir.OPS, ttnn.OPS, memory.OPS, textual.OPS, FUNCTION_OPS
    assert sum(map(len, tables)) == len(DEFINITIONS)
    assert all(name == definition.full_name for name, definition in DEFINITIONS.items())


BESIDE_CALLS = {
    "ttnn.aggregate_tensor.composer_config", "ttnn.all_reduce.reduce_type", "ttnn.all_to_all_combine.num_devices",
    "ttnn.all_to_all_combine.num_experts_per_tok", "ttnn.all_to_all_dispatch.num_devices",
    "ttnn.all_to_all_dispatch_metadata.num_devices", "ttnn.avg_pool2d.dilation", "ttnn.conv1d.compute_config",
    "ttnn.conv1d.conv2d_config", "ttnn.conv1d.conv2d_slice_config", "ttnn.conv3d.batch_size",
    "ttnn.conv3d.conv3d_config", "ttnn.conv3d.in_channels", "ttnn.conv3d.input_depth", "ttnn.conv3d.input_height",
    "ttnn.conv3d.input_width", "ttnn.distribute_tensor.cq_id", "ttnn.distribute_tensor.mapper_config",
    "ttnn.get_device.mesh_offset", "ttnn.get_device.mesh_shape", "ttnn.max_pool2d_with_indices.applied_shard_scheme",
    "ttnn.reduce_scatter.reduce_type", "ttnn.scaled_dot_product_attention.sliding_window_size",
    "ttnn.sparse_matmul.compute_config",
}  # fmt: skip
"""Attributes that no argument of the Python call holds: a program that hangs on their value is lowered without the op,
or statements before the call print them."""


def test_every_attribute_is_an_argument_of_the_call() -> None:
    """An attribute without an argument would be lost in the printed Python."""
    lost: set[str] = set()
    for name, op in DEFINITIONS.items():
        if not isinstance(op, TtnnOp) or not op.python.callee:
            continue
        printed = {word for p in op.python.params for word in (p.key, p.form, p.source)}
        known = {a.name for a in op.attributes if not a.must_be_empty and not a.later}
        lost |= {f"{name}.{attribute}" for attribute in known - printed - {"operandSegmentSizes"}}
    assert lost == BESIDE_CALLS


def test_every_pattern_lowers_an_operation_of_ttir() -> None:
    named = ttir.OPS.keys() | {name.removeprefix("ttir.") for name in textual.OPS}
    assert driver.PATTERNS.keys() <= named


def test_every_operation_of_ttir_without_a_pattern_has_a_definition_in_ttnn() -> None:
    like = {op.like for op in ttnn.OPS.values()}
    own = {name for name, op in ttir.OPS.items() if Trait.NOT_UPSTREAM not in op.traits}
    left = own - driver.PATTERNS.keys() - ttnn.OPS.keys() - like
    decomposed = {Trait.DECOMPOSED, Trait.DECOMPOSED_FOR_TTNN}
    equations = {name for name in left if ttir.OPS[name].traits & decomposed}
    assert left == equations


def test_every_primitive_that_moves_data_takes_keys() -> None:
    assert flatten.RULES.keys() >= primitives.MOVES


def test_what_traits_imply() -> None:
    for name, definition in DEFINITIONS.items():
        if has_trait(name, Trait.VIEW):
            assert has_trait(name, Trait.MOVES), name
        if has_trait(name, Trait.SENDS) or has_trait(name, Trait.TRANSFERS):
            assert has_trait(name, Trait.COLLECTIVE), name
        if has_trait(name, Trait.CREATES) and name != "ttir.get_dimension_size":
            assert definition.operands == (0, 0), name
