"""Copies by blocks give what one plain copy gives, whatever the memory on either side is."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxmesh.runtime import host_memory
from tests.generators.oracles import cases, same_bits

DTYPES = [np.bool_, np.uint8, np.float16, np.float32, np.complex64, np.float64, np.complex128]
DTYPES += [jnp.bfloat16, jnp.float8_e5m2, jnp.float8_e4m3fn, jnp.int4]


def small_is_large(patch: pytest.MonkeyPatch) -> None:
    """Threads, blocks and pages as of large arrays, for small ones."""
    patch.setattr(host_memory, "_LARGE", 0)
    patch.setattr(host_memory, "_BLOCK", 64)
    patch.setattr(host_memory, "_LINE", 8)
    patch.setattr(host_memory, "_SHORT", 32)
    patch.setattr(host_memory, "_ALIASED", 1)
    patch.setattr(host_memory, "_TILE", 2)
    patch.setattr(host_memory, "cores", lambda: 3)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    small_is_large(monkeypatch)


@st.composite
def cut_up(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
    """An array, possibly a view of another order, and the pieces of a grid over it."""
    pieces = draw(st.lists(st.integers(1, 3), min_size=0, max_size=4))
    local = [draw(st.sampled_from([0, 1, 2, 3, 4, 7])) for _ in pieces]
    shape = [n * p for n, p in zip(local, pieces, strict=True)]
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    full = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    way = draw(st.sampled_from(["C", "F", "reversed", "every second"]))
    if way == "F":
        full = np.asfortranarray(full)
    elif way == "reversed":
        full = full[tuple(slice(None, None, -1) for _ in shape)]
    elif way == "every second" and shape:
        full = np.repeat(full, 2, axis=-1)[..., ::2]
    grid = np.ndindex(*pieces)
    cuts = [(..., *[slice(i * n, (i + 1) * n) for i, n in zip(place, local, strict=True)]) for place in grid]
    return full, cuts


@given(case=cut_up())
@cases(150)
def test_pieces_and_their_join(case: tuple[np.ndarray, list[tuple[Any, ...]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_is_large(patch)
        full, cuts = case
        pieces = [host_memory.memory(full[index].shape, full.dtype) for index in cuts]
        host_memory.copy_all([(piece, full[index]) for piece, index in zip(pieces, cuts, strict=True)])
        for piece, index in zip(pieces, cuts, strict=True):
            assert same_bits(piece, full[index])
        joined = np.empty_like(full)
        host_memory.copy_all([(joined[index], piece) for piece, index in zip(pieces, cuts, strict=True)])
        assert same_bits(joined, full)


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_runs_of_every_type(dtype: Any) -> None:
    """Runs of four elements are copied as one element each, whose type NumPy must know by name."""
    full = np.arange(6 * 8).reshape(6, 8).astype(dtype)
    to = [host_memory.memory((6, 4), full.dtype) for _ in range(2)]
    host_memory.copy_all([(to[0], full[:, :4]), (to[1], full[:, 4:])])
    assert same_bits(np.concatenate(to, 1), full)


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("dtype", [np.int8, np.float64])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("step", [1, -1])
def test_any_order_of_the_dims(dtype: Any, order: tuple[int, ...], step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of four, sizes that they do not divide."""
    monkeypatch.setattr(host_memory, "_TILE", 4)
    full = np.arange(6 * 7 * 11).reshape(6, 7, 11).astype(dtype)
    lies = np.ascontiguousarray(full.transpose(order)).transpose(np.argsort(order))[::step, :, ::step]
    # As pieces are stored, with the dims of the mesh.
    to = [host_memory.memory((6, 7, n, 1, 1), full.dtype) for n in (5, 6)]
    host_memory.copy_all([(to[0], lies[..., :5, None, None]), (to[1], lies[..., 5:, None, None])])
    assert same_bits(np.concatenate(to, 2)[..., 0, 0], full[::step, :, ::step])


@pytest.mark.usefixtures("everything_is_large")
def test_the_other_order_is_turned_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[int] = []
    turn = host_memory._transpose
    monkeypatch.setattr(host_memory, "_transpose", lambda to, of: (turned.append(to.size), turn(to, of)))
    full = np.asfortranarray(np.arange(64.0).reshape(8, 8))
    to = host_memory.memory((8, 8, 1), full.dtype)
    host_memory.copy_all([(to, full[..., None])])
    assert sum(turned) == 64
    host_memory.copy_all([(to, np.ascontiguousarray(full)[..., None])])
    assert sum(turned) == 64


@pytest.mark.parametrize("count", [1, 63, 64, 24 << 20])
def test_memory_is_aligned_and_of_nobody(count: int) -> None:
    made = host_memory.memory((count,), np.dtype(np.uint8))
    again = host_memory.memory((count,), np.dtype(np.uint8))
    assert made.shape == (count,)
    assert made.flags.writeable
    assert host_memory.is_usable_by_xla(made)
    assert not np.shares_memory(made, again)


@pytest.mark.usefixtures("everything_is_large")
def test_a_fault_in_a_thread_is_an_error_here() -> None:
    frozen = np.zeros(9)
    frozen.flags.writeable = False
    to: Any = [np.zeros(9), np.zeros(9), frozen]
    with pytest.raises(ValueError, match="read-only"):
        host_memory.copy_all([(t, np.ones(9)) for t in to])


@pytest.mark.usefixtures("everything_is_large")
def test_without_threads_everything_is_copied_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(host_memory, "_pool", ended)
    to = [np.zeros(100) for _ in range(5)]
    host_memory.copy_all([(t, np.full(100, i)) for i, t in enumerate(to)])
    assert [t.tolist() for t in to] == [[i] * 100 for i in range(5)]


@pytest.mark.usefixtures("everything_is_large")
def test_every_part_is_of_one_thread() -> None:
    """Parts tile the arrays: nothing is copied twice, nothing is left out."""
    to = np.zeros((6, 8, 5), np.uint8)
    of = np.ones((6, 10, 5), np.uint8)[:, :8]
    parts = host_memory._in_order(
        [host_memory._merge_runs((to[:, :, i:j], of[:, :, i:j])) for i, j in ((0, 2), (2, 4), (4, 5))], 3
    )
    shares = host_memory._shares(parts, 3)
    assert sum(len(s) for s in shares) == len(parts) > 3
    assert all(shares)
    for part, _ in parts:
        counts = part.view(np.uint8) if part.dtype.kind != "V" else part[..., None].view(np.uint8)
        counts += 1
    assert to.min() == to.max() == 1
