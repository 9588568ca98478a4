"""What helps where JAX's explicit mode gathers an argument at the first op stands in the warning, and works."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors

ONES = np.ones((8, 8), np.float32)
EXPLICIT = jax.make_mesh((2, 4), ("y", "x"))
ROWS = NamedSharding(EXPLICIT, P("x"))
ADVISED: dict[str, tuple[Any, Callable[[], Any]]] = {
    "jax.device_put(x, NamedSharding(mesh, spec))": (EXPLICIT, lambda: jax.device_put(ONES, ROWS)),
    "jax.ShapeDtypeStruct(..., sharding=...)": (
        EXPLICIT,
        lambda: jax.ShapeDtypeStruct(ONES.shape, ONES.dtype, sharding=ROWS),
    ),
    "make a mesh of Auto axes with jaxmesh.make_mesh": (jm.make_mesh((2, 4), ("y", "x")), lambda: ONES),
}


def shifted(x: Any) -> Any:
    return jnp.tanh(x + 1) * 2


@pytest.mark.parametrize("words", ADVISED)
@pytest.mark.parametrize("typed", [False, True], ids=["in_shardings", "set_mesh"])
def test_what_helps_on_explicit_axes_is_in_the_warning(words: str, typed: bool) -> None:
    with pytest.warns(errors.ReplicatedProgramWarning, match=re.escape(words)):
        plain = jm.jit(shifted, mesh=EXPLICIT, in_shardings=P("x")).trace(ONES)
    assert "all_gather" in {d.kind for d in plain.decisions}
    mesh, make = ADVISED[words]
    x = make()
    with warnings.catch_warnings(), jax.set_mesh(mesh) if typed else contextlib.nullcontext():
        warnings.simplefilter("error")
        traced = jm.jit(shifted, mesh=mesh, in_shardings=P("x")).trace(x)
    assert {d.kind for d in traced.decisions} == {"asked", "propagated"}
    given = ONES if isinstance(x, jax.ShapeDtypeStruct) else x
    found = traced.lower().compile()(given if mesh is not EXPLICIT else jax.device_put(given, ROWS))
    np.testing.assert_allclose(found, shifted(ONES), rtol=1e-6)


def test_other_gathers_on_explicit_axes_are_not_explained_by_the_argument() -> None:
    gathers = jm.jit(lambda x: jax.sharding.reshard(x, P()) + 1, mesh=EXPLICIT)
    with pytest.warns(errors.ReplicatedProgramWarning, match="for the op that gathers"):
        gathers.trace(jax.device_put(ONES, ROWS))
