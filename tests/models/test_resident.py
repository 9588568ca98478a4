"""What models of published sizes hold on the devices: `estimate`, `judge` and a plain count of shares agree."""

from __future__ import annotations

import math

import jax
import pytest

from jaxmesh.analysis.judge.verdict import TOO_LARGE
from jaxmesh.analysis.machines import MACHINES
from jaxmesh.drawing.text_layout import binary_bytes
from tests.generators.real_ttnn.process import needs_ttnn
from tests.models.resident import MODELS, TILE, Held

FITTING = [model for model in MODELS if model.fits]
every_model = pytest.mark.parametrize("model", MODELS, ids=str)


def test_the_models_are_many_and_some_do_not_fit() -> None:
    assert len({model.name for model in MODELS}) >= 15
    assert len({model.machine for model in MODELS}) >= 5
    assert 5 < len(FITTING) < len(MODELS) - 5


@every_model
def test_weights_are_as_many_as_published(model: Held) -> None:
    assert sum(math.prod(w.shape) for w in jax.tree.leaves(model.types()[0])) == model.parameters


@every_model
def test_an_estimate_holds_the_plain_count_of_bytes(model: Held) -> None:
    shares = model.plain_bytes(1)
    estimate = model.lower().estimate(model.machine)
    memory = estimate.memory
    assert memory.arguments == pytest.approx(sum(shares.values()), rel=0.05)
    # Tiles add what is between the two.
    assert sum(shares.values()) <= memory.arguments <= sum(model.plain_bytes(TILE).values())
    held = {t.name: t.bytes for t in memory.tensors if t.role == "argument"}
    assert held.keys() == shares.keys()
    assert all(held[path] >= size for path, size in shares.items())
    assert estimate.missing == max(memory.peak - MACHINES[model.machine].dram_bytes, 0)
    assert bool(estimate.missing) != model.fits
    if not model.fits:
        largest = max(memory.tensors, key=lambda t: t.bytes)
        assert largest.bytes == max(model.plain_bytes(TILE).values())
        assert f"{binary_bytes(estimate.missing)} are missing" in str(estimate)
        assert f"largest: {largest.name}: {binary_bytes(largest.bytes)}, argument" in str(estimate)


@pytest.mark.parametrize("model", [model for model in MODELS if not model.fits], ids=str)
def test_what_does_not_fit_is_judged_without_ttnn(model: Held) -> None:
    verdict = model.lower().judge(model.machine, python="/no/python/is/asked")
    assert verdict.outcome == TOO_LARGE
    assert verdict.held is not None
    assert verdict.held.arguments == pytest.approx(sum(model.plain_bytes(1).values()), rel=0.05)
    (largest,) = verdict.largest(1)
    paths = model.plain_bytes(TILE)
    assert paths[largest.name] == max(paths.values())
    assert f"{binary_bytes(verdict.missing)} of DRAM are missing on each device" in str(verdict)
    assert f"{largest.name}: {binary_bytes(largest.bytes)}, argument bfloat16" in str(verdict)


@needs_ttnn
@pytest.mark.parametrize("model", FITTING, ids=str)
def test_the_real_library_takes_what_is_counted(model: Held) -> None:
    verdict = model.lower().judge(model.machine)
    assert verdict, str(verdict)
    memory, held = verdict.memory("DRAM"), verdict.held
    assert memory is not None
    assert held is not None
    shares = sum(model.plain_bytes(1).values())
    assert held.arguments == pytest.approx(shares, rel=0.05)
    assert memory.device_peak == pytest.approx(held.peak, rel=0.05)
    # At the end there are also the results, which are small, and the tables of reshapes.
    at_end = memory.end * memory.banks
    assert at_end >= shares
    if model.fun.__name__ == "unet":
        assert any("the tables that ttnn keeps of" in remark for remark in verdict.remarks)
    else:
        assert at_end == pytest.approx(shares, rel=0.05)
