"""Attention to caches of pages against NumPy, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.ttnn import helpers
from tests.generators.oracles import same_bits

RNG = np.random.default_rng(5)
TABLE = np.array([[5, 2, 7], [0, 3, 1]], np.int32)
Q = RNG.standard_normal((2, 4, 32, 64)).astype(np.float32)
K, V = RNG.standard_normal((2, 8, 2, 32, 64)).astype(np.float32)


@pytest.fixture
def device() -> ttnn.MeshDevice:
    return ttnn.open_mesh_device(ttnn.MeshShape(1, 2))


def on(device: ttnn.MeshDevice, x: Any, layout: Any = ttnn.TILE_LAYOUT) -> Any:
    kind = ttnn.int32 if x.dtype == np.int32 else ttnn.bfloat16
    made = helpers.from_numpy(x.astype(np.float32) if kind is ttnn.bfloat16 else x, device=device, layout=layout)
    return ttnn.typecast(made, kind) if kind is ttnn.bfloat16 else made


def first(tensor: Any) -> np.ndarray:
    return np.asarray(ttnn.get_device_tensors(tensor)[0]).astype(np.float32)


def table(device: ttnn.MeshDevice) -> Any:
    return on(device, TABLE, ttnn.ROW_MAJOR_LAYOUT)


def pages(cache: Any) -> Any:
    """Returns the cache of each user: its pages, one after the other, by head."""
    return np.stack([np.concatenate([cache[p] for p in row], 1) for row in TABLE])


def attended(q: Any, k: Any, v: Any, last: Any) -> Any:
    """Attends from each query to the keys up to `last`, one query at a time."""
    out = np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
    for b, h, i in np.ndindex(*q.shape[:3]):
        head = h // (q.shape[1] // k.shape[1])
        keys = k[b, head, : last(b, i) + 1]
        weights = np.exp(keys @ q[b, h, i] / np.sqrt(q.shape[-1]))
        out[b, h, i] = (weights / weights.sum()) @ v[b, head, : last(b, i) + 1]
    return out


def test_a_cache_is_filled_by_the_table(device: ttnn.MeshDevice) -> None:
    cache, x = on(device, K), on(device, Q[:1, :2].repeat(2, 2)[:, :, :50])
    before, rows = first(cache), first(x)
    assert ttnn.experimental.paged_fill_cache(cache, x, table(device), batch_idx=1) is cache
    want = before.copy()
    want[0], want[3, :, :18] = rows[0, :, :32], rows[0, :, 32:]
    assert same_bits(first(cache), want)


def test_a_position_attends_to_the_pages_of_its_user(device: ttnn.MeshDevice) -> None:
    places = np.array([70, 3], np.int32)
    q, k, v = on(device, Q[None, :, :, 0]), on(device, K), on(device, V)
    got = ttnn.transformer.paged_scaled_dot_product_attention_decode(
        q, k, v, table(device), cur_pos_tensor=on(device, places, ttnn.ROW_MAJOR_LAYOUT)
    )
    want = attended(first(q)[0][:, :, None], pages(first(k)), pages(first(v)), lambda b, i: places[b])
    np.testing.assert_allclose(first(got)[0], want[:, :, 0], atol=2e-2)


def test_positions_are_numbers_or_a_tensor(device: ttnn.MeshDevice) -> None:
    places = np.array([20, 3], np.int32)
    q, k, v = on(device, Q[None, :, :, 0]), on(device, K[:2]), on(device, V[:2])
    decode = ttnn.transformer.scaled_dot_product_attention_decode
    want = attended(first(q)[0][:, :, None], first(k), first(v), lambda b, i: places[b])
    for given in ({"cur_pos": [20, 3]}, {"cur_pos_tensor": on(device, places, ttnn.ROW_MAJOR_LAYOUT)}):
        np.testing.assert_allclose(first(decode(q, k, v, **given))[0], want[:, :, 0], atol=2e-2)
    with pytest.raises(jm.VerifyError, match="takes cur_pos for 2 users among 32 keys"):
        decode(q, k, v, cur_pos=[1, 32])


def test_a_chunk_attends_to_the_pages_before_it(device: ttnn.MeshDevice) -> None:
    q, k, v = on(device, Q), on(device, K), on(device, V)
    got = ttnn.transformer.chunked_scaled_dot_product_attention(q, k, v, table(device), 64)
    want = attended(first(q), pages(first(k)), pages(first(v)), lambda b, i: 64 + i)
    np.testing.assert_allclose(first(got), want, atol=2e-2)
    with pytest.raises(jm.VerifyError, match="has pages for 96 positions"):
        ttnn.transformer.chunked_scaled_dot_product_attention(q, k, v, table(device), 65)


def test_keys_hold_the_values(device: ttnn.MeshDevice) -> None:
    q, k = on(device, Q), on(device, K[:2, :1])
    want = attended(first(q), first(k), first(k)[..., :40], lambda b, i: i)
    np.testing.assert_allclose(first(ttnn.transformer.flash_mla_prefill(q, k, 40)), want, atol=2e-2)
    own = on(device, V[:2, :1, :, :32])
    got = ttnn.transformer.flash_mla_prefill(q, k, own, is_causal=False)
    np.testing.assert_allclose(first(got), attended(first(q), first(k), first(own), lambda b, i: 31), atol=2e-2)
    with pytest.raises(jm.VerifyError, match="values at most 64 wide"):
        ttnn.transformer.flash_mla_prefill(q, k, 65)
