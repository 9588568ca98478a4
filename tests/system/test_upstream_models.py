"""Models of other people's libraries through Tenstorrent's own compiler: each text is read, runs and is diagnosed.

It skips models whose library is not installed, and all without `JAXMESH_UPSTREAM_PYTHON` or `jaxmesh upstream-env`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from tests.generators.quick_compilation import quick_compilation
from tests.models.zoo import ZOO, largest_difference

pytestmark = pytest.mark.filterwarnings("ignore")
REFUSED = {
    "FNet": "failed to legalize unresolved materialization",
    "mixture of experts": "Could not apply propagated tensor shardings",
}
"""The models that jax-tt-plugin 0.1.3 refuses, and its reasons."""
LIMITS = {"ttir": 1e-3, "ttnn": 2e-2}
"""How far a text may be from the unsharded model, as a part of the largest number."""


@pytest.fixture(scope="module", autouse=True)
def _plugin() -> Iterator[None]:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    with quick_compilation():
        yield
    close_workers()


def whole(x: Any) -> np.ndarray:
    return np.asarray(next(iter(x.shards()))[1] if isinstance(x, jm.MeshTensor) else x)


@pytest.mark.parametrize("name", ZOO)
def test_a_model_is_read_runs_and_is_diagnosed(name: str) -> None:
    library = ZOO[name].library.partition(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    function, weights, batch = ZOO[name]()
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    result = jm.jit(function, mesh=mesh, in_shardings=(P(), P("y"))).lower(weights, batch).upstream()
    if name in REFUSED:
        assert REFUSED[name] in str(result.refusal)
        return
    assert result.refusal is None
    found = result.diagnose(weights, batch)
    want = jax.tree.leaves(jax.jit(function)(weights, batch))
    for dialect, limit in LIMITS.items():
        program = result.program(dialect).lower().compile()
        got = program(*jax.tree.leaves((weights, batch)))
        made = [whole(x) for x in jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, jm.MeshTensor))]
        assert largest_difference(made, want) < limit
    assert found.verdict in ("right", "less precise"), str(found)
