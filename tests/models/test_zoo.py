"""Models of other people's libraries, data-parallel in three ways: their values, texts and exported programs."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.models.zoo import TOLERANCE, ZOO, largest_difference, run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ZOO)
def test_model(name: str) -> None:
    library = ZOO[name].library.partition(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    found = run(name)
    assert max(found[way] for way in ("by hand", "shard_map", "plain jit")) < TOLERANCE
    assert found["emitted"] == "ok"
    assert found["lines"] > 20
    assert found.get("ttnn", "accepted") == "accepted"


def test_another_result_is_noticed() -> None:
    assert largest_difference([2.0], [2.5]) == pytest.approx(0.2)
    with pytest.raises(AssertionError):
        largest_difference(np.ones(2), np.ones(1))
