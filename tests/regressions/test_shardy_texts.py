"""Texts over the grammar of Shardy's attributes: each is read, or ends in a named error, in every reader of texts."""

from __future__ import annotations

import numpy as np
import pytest

import jaxmesh as jm
from tests.generators.oracles import count_of
from tests.generators.shardy_texts import ShardyTexts

X = np.arange(64, dtype=np.float32).reshape(8, 8)
INLINE = """
func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<mesh<["q"=2]>, [{"q"}, {}]>}) -> tensor<8x4xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}"""
NAMED = 'sdy.mesh @mesh = <["q"=2]>' + INLINE.replace('mesh<["q"=2]>', "@mesh")


def test_a_mesh_within_a_sharding_is_read_as_a_named_one() -> None:
    inline, named = jm.from_mlir(INLINE), jm.from_mlir(NAMED)
    assert dict(inline.mesh.shape) == {"q": 2}
    assert inline.lower().as_text() == named.lower().as_text()
    np.testing.assert_array_equal(inline.lower().compile()(X[:, :4]), 2 * X[:, :4])


def read(text: str) -> str:
    """What a text becomes: its result, or the name of an error."""
    try:
        traced = jm.from_mlir(text)
        lowered = traced.lower()
        str(lowered.explain())
        lowered.reference(X)
        jm.diagnose({"shlo_frontend": text, "ttir": traced.as_text()})
        lowered.as_text()
    except jm.JaxmeshError as error:
        return type(error).__name__
    return "read"


@pytest.mark.filterwarnings("ignore")
def test_random_attributes_are_read_or_refused_by_name() -> None:
    found = [read(ShardyTexts(seed).text()) for seed in range(count_of(every=1000, otherwise=40))]
    # A generator whose texts MLIR itself refuses would test nothing.
    assert found.count("read") > len(found) / 4
    assert set(found) - {"read"}
