"""A text is traced once and lowered once for all that is printed and run of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.dialects.imported_op import decompose
from jaxmesh.frontends.mlir.decode import decode
from jaxmesh.frontends.mlir.trace import trace_program
from jaxmesh.passes.lowering import LOWERING, lower
from jaxmesh.passes.mesh_shard.insert_transfers import insert_transfers
from jaxmesh.passes.pipeline import compute_on_devices
from jaxmesh.passes.ttir_to_ttnn.driver import to_ttnn
from jaxmesh.passes.verify_program import verify_program
from jaxmesh.runtime.regions import plan_regions
from tests.generators.mlir_texts import FILES

MATMUL = (FILES / "matmul_2x4.mlir").read_text()
IMPORT: list[Callable[..., Any]] = [decode, trace_program, lower]
PASSES: list[Callable[..., Any]] = [each.run for each in LOWERING if each.run is not insert_transfers]
INSERTS = "insert_transfers of the program that runs"


@contextmanager
def counted(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Counts the calls of functions, from wherever they are called."""
    names = {f.__code__: f.__qualname__ for f in functions}
    counts: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code in names:
            counts[names[frame.f_code]] += 1
        if frame.f_code is insert_transfers.__code__ and frame.f_locals["printed"] is None:
            counts[INSERTS] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
def test_each_pass_runs_once_for_the_text(dialect: str) -> None:
    text = MATMUL if dialect == "ttir" else jm.from_mlir(MATMUL).lower().as_text()
    with counted(*IMPORT, *PASSES, to_ttnn, compute_on_devices, verify_program, plan_regions) as counts:
        lowered = jm.from_mlir(text).lower()
        again = lowered.as_text()
    once = [*IMPORT, *PASSES, verify_program, *([to_ttnn, compute_on_devices] if dialect == "ttir" else [])]
    assert counts == {INSERTS: 1} | {f.__qualname__: 1 for f in once}
    assert dialect == "ttir" or again == text


def test_what_runs_and_what_is_printed_share_one_lowering() -> None:
    with counted(*IMPORT, *PASSES, plan_regions, decompose) as counts:
        traced = jm.from_mlir(MATMUL)
        lowered = traced.lower()
        shapes = [np.zeros(a.shape, a.dtype) for a in traced.in_avals]
        lowered.compile()(*shapes)
        traced.as_text()
        lowered.as_text()
        lowered.as_text("python")
    assert [counts[f.__qualname__] for f in (*IMPORT, *PASSES, plan_regions)] == [1] * (len(IMPORT + PASSES) + 1)
    assert counts[INSERTS] == 1


def test_a_constant_result_on_the_devices_is_traced_once() -> None:
    text = """module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
      func.func @main() -> (tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
        %0 = "ttir.ones"() <{shape = array<i32: 4>}> : () -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }"""
    with counted(trace_program) as counts:
        compiled = jm.from_mlir(text).lower().compile()
    assert counts["trace_program"] == 1
    result = compiled()
    assert isinstance(result, jm.MeshTensor)
    assert [np.asarray(x).tolist() for _, x in result.shards()] == [[1.0] * 4] * 2
