"""Models of published sizes are traced, lowered, printed, explained and estimated from their types alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.models.published import PUBLISHED
from tests.models.sizes import COLUMNS, TEXTS, measure_apart, table

SECONDS = 60
"""Of a processor, for a step; the largest takes a tenth of it."""
MIB_OF_A_TEXT, MIB_OF_MEMORY = 4, 4096


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_as_many_as_published(name: str) -> None:
    model = PUBLISHED[name]()
    paths = jax.tree_util.tree_leaves_with_path(model.arguments[0])
    # Moments that a normalisation has seen are no parameters.
    assert sum(int(np.prod(w.shape)) for path, w in paths if "seen" not in str(path)) == model.parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_step_is_quick_and_small(name: str) -> None:
    found = measure_apart(name, judged=False)
    slow = {step: found[step] for step in COLUMNS if isinstance(found.get(step), float) and found[step] > SECONDS}
    assert not {s for s in slow if "MiB" not in s}, slow
    assert found["largest text, MiB"] < MIB_OF_A_TEXT
    assert found["memory, MiB"] < MIB_OF_MEMORY
    assert found["lines"] > 1000
    assert found["estimate, ms"] > 0
    assert set(TEXTS) < set(found)
    assert found["model"] in table([found])
