"""Every public method of every stage gives under `jax.set_mesh` and in a `with mesh:` block what it gives outside."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm

NAMES = ("data", "model")
WITH_OTHER_TOOLS = {"judge", "upstream", "run_on_chip"}
"""Methods that ask the real ttnn, Tenstorrent's compiler or the simulated chip; other tests call those."""
OF_THE_PACKAGE = {"of", "run", "plan", "marked_program", "global_program", "lower_with_jax", "mesh", "residency"}
"""Names that other rooms read, and values that compare by identity."""
IN_ANY_ORDER = {"cost_analysis", "memory_analysis", "runtime_executable"}
"""Answers of XLA, which are objects or have no order."""


def meshes() -> dict[str, Mesh]:
    devices = np.array(jm.emulate(16)[:8])
    return {
        "in order": Mesh(devices.reshape(2, 4), NAMES),
        "another order": Mesh(devices[::-1].reshape(2, 4), NAMES),
        "explicit": Mesh(devices.reshape(2, 4), NAMES, axis_types=(AxisType.Explicit,) * 2),
    }


def programs(mesh: Mesh) -> dict[str, tuple[Any, Any]]:
    x = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
    placed = jax.device_put(x, NamedSharding(mesh, P("data")))
    mapped = jax.shard_map(lambda v: lax.psum(v, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    return {
        "plain": (jm.jit(lambda v: jnp.tanh(v * 2).sum(0)), placed),
        "mapped": (jm.jit(mapped), placed),
        "by hand": (
            jm.jit(lambda v: jm.shard_to_full(jnp.cumsum(jm.full_to_shard(v, P("data"))), P("data")), mesh=mesh),
            x,
        ),
    }


def ask(stage: Any, name: str, x: Any, folder: Path) -> str:
    """What a public method or property of a stage answers, without addresses."""
    try:
        found = getattr(stage, name)
    except jm.JaxmeshError as error:
        return str(error)
    if name == "export":
        found(folder)
        return str(sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p.suffix in (".py", ".mlir")))
    if callable(found):
        try:
            found = found(x) if name in ("record", "reference") else found()
        except jm.JaxmeshError as error:
            found = error
    if name == "record" and hasattr(found, "entries"):
        found = [(e.place, e.path, e.coordinates, e.data.tolist()) for e in found.entries]
    if type(stage).__name__ == "Compiled" and name == "as_text":
        # XLA's text names the lines of this file from which it was called.
        found = re.findall(r" = (\S+ [\w-]+\()", str(found))
    return re.sub(r"0x[0-9a-f]+|id=\d+", "", str(found))


def answers(stages: list[Any], x: Any, folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for stage in stages:
        kind = type(stage).__name__
        for name in dir(type(stage)):
            if not name.startswith("_") and name not in WITH_OTHER_TOOLS | OF_THE_PACKAGE | IN_ANY_ORDER:
                found[f"{kind}.{name}"] = ask(stage, name, x, folder / f"{kind}-{len(found)}")
    return found


CONTEXTS: dict[str, Callable[[Mesh], contextlib.AbstractContextManager[Any]]] = {
    "set_mesh": jax.set_mesh,
    "with mesh": lambda mesh: mesh,
}


@pytest.mark.slow(but_one_in=4)
@pytest.mark.filterwarnings("ignore:.*with mesh:DeprecationWarning", "ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["plain", "mapped", "by hand"])
@pytest.mark.parametrize("kind", ["in order", "another order", "explicit"])
def test_every_method_of_every_stage(kind: str, name: str, context: str, tmp_path: Path) -> None:
    mesh = meshes()[kind]
    function, x = programs(mesh)[name]
    traced = function.trace(x)
    outside = [traced, traced.lower(), traced.lower().compile()]
    expected = answers(outside, x, tmp_path / "outside")
    assert len(expected) > 40
    with CONTEXTS[context](mesh):
        inside = function.trace(x)
        fresh = answers([inside, inside.lower(), inside.lower().compile()], x, tmp_path / "fresh")
        kept = answers(outside, x, tmp_path / "kept")
        value = np.asarray(inside.lower().compile()(x))
    assert {k: (v, expected[k]) for k, v in fresh.items() if v != expected[k]} == {}
    assert {k: (v, expected[k]) for k, v in kept.items() if v != expected[k]} == {}
    np.testing.assert_array_equal(value, np.asarray(outside[-1](x)))


def test_a_text_with_other_axes_is_read_under_set_mesh() -> None:
    own = jm.make_mesh((2, 4))
    x = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
    lowered = jm.jit(lambda v: jnp.tanh(v).sum(0), mesh=own, in_shardings=P("y")).lower(x)
    texts = [lowered.as_text("stablehlo"), lowered.as_text("ttnn")]
    expected = np.asarray(lowered.compile()(x))
    for mesh in meshes().values():
        with jax.set_mesh(mesh):
            for text in texts:
                read = jm.from_mlir(text).lower()
                np.testing.assert_array_equal(np.asarray(read.compile()(x)), expected)
                assert len(read.record(x).entries) > 1


@pytest.mark.parametrize(("own", "context"), [("in order", "explicit"), ("explicit", "in order")])
def test_a_program_has_the_axis_types_of_the_context(own: str, context: str) -> None:
    made, x = meshes(), np.arange(64, dtype=np.float32).reshape(8, 8)
    doubled = jm.jit(lambda v: jm.shard_to_full(jm.full_to_shard(v, P("data")) * 2, P("data")), mesh=made[own])
    with jax.set_mesh(made[context]):
        got = doubled(x)
    assert got.sharding.mesh.axis_types == made[context].axis_types
    np.testing.assert_array_equal(got, x * 2)
