"""A result that is declared presharded is distributed where no operation does so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.program import Program
from jaxmesh.passes.mesh_shard.place_results import place_results
from tests.generators.mlir_programs import add, program, shard, tensor

X = np.arange(4, dtype=np.float32)


def returned(made: Program, *values: int) -> Program:
    """The program with these values as presharded results."""
    made.results = [replace(made.results[0], value=v, presharded=True) for v in values]
    return made


def added(made: Program) -> list[str]:
    """The ops that the pass adds."""
    done = place_results(made)
    assert done.ops[: len(made.ops)] == made.ops
    return [op.name for op in done.ops[len(made.ops) :]]


def test_a_host_value_is_copied_once_for_all_results() -> None:
    made = program(tensor(4), tensor(4))
    x = add(made, "ttir.abs", [0], tensor(4))
    done = place_results(returned(made, x, 1, x))
    first, second = done.ops[1:]
    assert [op.operands for op in (first, second)] == [(x,), (1,)]
    assert first.attributes["shard_type"] == "replicate"
    assert [port.value for port in done.results] == [*first.results, *second.results, *first.results]


def test_what_is_on_the_devices_stays() -> None:
    made = program(tensor(4), tensor(4))
    made.arguments[0] = replace(made.arguments[0], presharded=True)
    y = shard(made, 1, tensor(1), "full_to_shard", "devices", (4,), (-1, 0))
    z = add(made, "ttir.add", [y, y], tensor(1))
    whole = returned(made, 0, y, z)
    assert place_results(whole) is whole


def test_an_identity_is_its_operand_and_a_joined_value_is_on_the_host() -> None:
    made = program(tensor(4))
    made.arguments[0] = replace(made.arguments[0], presharded=True)
    same = shard(made, 0, tensor(4), "shard_to_full", "identity", (1,), (-1,))
    assert added(returned(made, same)) == []
    joined = shard(made, 0, tensor(16), "shard_to_full", "devices", (4,), (-1, 0))
    assert added(returned(made, joined)) == ["ttir.mesh_shard"]


def no_iterations(x: Any, w: Any) -> Any:
    y = jm.full_to_shard(x, P())
    return lax.fori_loop(0, 0, lambda _, v: v + y, w)


def first_branch(x: Any, w: Any) -> Any:
    return lax.cond(True, lambda: w, lambda: jm.full_to_shard(x, P()))


@pytest.mark.parametrize("f", [no_iterations, first_branch])
def test_a_text_read_back_has_the_result_on_the_devices(f: Any) -> None:
    traced = jm.jit(f, mesh=AbstractMesh((2, 4), ("y", "x"))).trace(jnp.ones(4), X)
    assert traced.as_text().count("ttir.mesh_shard") == 1
    again = jm.from_mlir(traced.as_text())
    for x in again.reference(X[::-1], X).values(), traced.reference(X[::-1], X).values():
        assert [s.tolist() for s in x] == [X.tolist()] * 8
