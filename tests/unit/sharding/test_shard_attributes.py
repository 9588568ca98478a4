"""Partition specs to shard attributes, and the plan of an aggregate."""

from __future__ import annotations

import re

import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
)
from jaxmesh.sharding.shard_attributes import attributes_from_spec, plan_aggregate
from tests.generators.transfers import SIZES


def test_an_axis_of_size_1_has_no_factor() -> None:
    """Neither in an order of axes that a reshape says, nor in one that TTIR can say."""
    sizes = {"y": 2, "w": 1, "x": 4}
    said = attributes_from_spec(P(("x", "w", "y")), 1, sizes)
    assert (said.shard_shape, said.shard_dims) == ((4, 2, 1), (1, -1, 0))
    assert (said.factors, said.dims) == (((4, 2, -1),), (0, -1, 0))
    assert said.factor_shape((16,)) == (4, 2, 2)
    assert said.factor_local_shape((2,)) == (1, 1, 2)
    said = attributes_from_spec(P(("y", "w", "x")), 1, sizes)
    assert (said.shard_shape, said.shard_dims, said.factors) == ((8,), (0, -1, 0), (None,))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P("z"), "names mesh axis 'z', but the mesh has the axes ('y', 'x')"),
        (P("y", ("x", "y")), "names mesh axis 'y' 2 times; an axis may split one dim once"),
        (P("y", unreduced={"x"}), "has unreduced or reduced axes, but mesh_shard only splits dims"),
        (P("y", P.UNCONSTRAINED), "has an UNCONSTRAINED entry; mesh_shard needs an axis, a tuple or None"),
        (P("y", None, None), "has 3 entries, but the tensor has rank 2"),
    ],
)
def test_a_spec_that_says_no_split_is_refused(spec: P, words: str) -> None:
    with pytest.raises(jm.SpecError, match=re.escape(words)):
        attributes_from_spec(spec, 2, SIZES)


def test_two_dropped_axes_need_no_reshape() -> None:
    plan = plan_aggregate((2, 3, 4), (-1, 0, -1), (2, 2, 2))
    assert (plan.before, plan.after) == (None, None)
    assert plan.config == MeshComposerConfig([2, 0, 1], (1, 2, 1))
