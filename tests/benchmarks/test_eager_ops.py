"""What ttnn costs op by op, beside the same ops on full arrays: `pytest tests/benchmarks/test_eager_ops.py -n0`.

A Llama block is written twice, one op after the other: as emitted Python calls `ttnn`, on tensors over eight emulated
devices (the batch over one mesh axis, heads and hidden dim over the other, all_reduces where partial sums meet), and as
`jax.numpy` calls on full arrays on one device. What one has as one call, the other has as one call or as the few that
mean it. Neither is compiled as a whole.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmesh import ttnn
from jaxmesh.cli.demo.model import (
    NEVER,
    NORM_EPSILON,
    ROTARY_BASE,
    Dims,
    input_spec,
    make_inputs,
    unsharded_model,
    weight_specs,
)
from tests.benchmarks.ratios import compare

SIZES = {
    "small": Dims(batch=2, sequence=8, width=32, kv_heads=4, queries_per_kv=2, head=8, hidden=64),
    "medium": Dims(batch=2, sequence=128, width=512, kv_heads=4, queries_per_kv=2, head=64, hidden=1024),
    "large": Dims(batch=2, sequence=256, width=1024, kv_heads=8, queries_per_kv=2, head=64, hidden=2048),
}
FLOAT, INTEGER, TRUTH = ttnn.DataType.FLOAT32, ttnn.DataType.INT32, ttnn.DataType.BFLOAT16
Weights = dict[str, Any]


def memory() -> ttnn.MemoryConfig:
    """As emitted Python writes it, anew in every call."""
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None)


def kernel() -> ttnn.WormholeComputeKernelConfig:
    return ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True)


# --- by ttnn; sizes are one device's ---------------------------------------------------------------------------------


def product(a: Any, b: Any, transposed: bool = False) -> Any:
    return ttnn.matmul(
        a,
        b,
        transpose_a=False,
        transpose_b=transposed,
        memory_config=memory(),
        dtype=FLOAT,
        program_config=None,
        activation=None,
        compute_kernel_config=kernel(),
    )


def number(value: float, device: Any) -> Any:
    return ttnn.full(
        shape=ttnn.Shape([]),
        fill_value=value,
        dtype=FLOAT,
        layout=ttnn.Layout.TILE,
        device=device,
        memory_config=memory(),
    )


def counted(end: int, dtype: Any, device: Any) -> Any:
    return ttnn.arange(0, end, 1, dtype=dtype, device=device, layout=ttnn.Layout.TILE, memory_config=memory())


def turned(x: Any, heads: int, cos: Any, sin: Any, d: Dims) -> Any:
    b, s, h = d.batch, d.sequence, d.head
    x = ttnn.reshape(x, [b, s, heads, h], memory_config=memory())
    low = ttnn.slice(x, [0, 0, 0, 0], [b, s, heads, h // 2], [1, 1, 1, 1], memory_config=memory())
    high = ttnn.slice(x, [0, 0, 0, h // 2], [b, s, heads, h], [1, 1, 1, 1], memory_config=memory())
    ttnn.deallocate(x, False)
    cosines = ttnn.reshape(cos, [1, s, 1, h // 2], memory_config=memory())
    sines = ttnn.reshape(sin, [1, s, 1, h // 2], memory_config=memory())
    first = ttnn.subtract(
        ttnn.multiply(low, cosines, dtype=FLOAT, memory_config=memory()),
        ttnn.multiply(high, sines, dtype=FLOAT, memory_config=memory()),
        dtype=FLOAT,
        memory_config=memory(),
    )
    second = ttnn.add(
        ttnn.multiply(low, sines, dtype=FLOAT, memory_config=memory()),
        ttnn.multiply(high, cosines, dtype=FLOAT, memory_config=memory()),
        dtype=FLOAT,
        memory_config=memory(),
    )
    ttnn.deallocate(low, False)
    ttnn.deallocate(high, False)
    return ttnn.concat([first, second], 3, memory_config=memory())


def angles(d: Dims, device: Any) -> tuple[Any, Any]:
    half, s = d.head // 2, d.sequence
    steps = ttnn.divide(ttnn.neg(counted(half, FLOAT, device), memory_config=memory()), number(half, device))
    speed = ttnn.pow(number(ROTARY_BASE, device), steps, dtype=None, memory_config=memory())
    places = ttnn.reshape(counted(s, FLOAT, device), [s, 1], memory_config=memory())
    speed = ttnn.reshape(speed, [1, half], memory_config=memory())
    angle = ttnn.multiply(places, speed, dtype=FLOAT, memory_config=memory())
    return ttnn.cos(angle, memory_config=memory()), ttnn.sin(angle, memory_config=memory())


def past(d: Dims, device: Any) -> Any:
    s = d.sequence
    rows = ttnn.reshape(counted(s, INTEGER, device), [s, 1], memory_config=memory())
    rows = ttnn.repeat(rows, ttnn.Shape([1, s]), memory_config=memory())
    columns = ttnn.reshape(counted(s, INTEGER, device), [1, s], memory_config=memory())
    columns = ttnn.repeat(columns, ttnn.Shape([s, 1]), memory_config=memory())
    seen = ttnn.ge(rows, columns, dtype=TRUTH, memory_config=memory())
    return ttnn.reshape(seen, [1, 1, 1, s, s], memory_config=memory())


def attended(q: Any, k: Any, v: Any, d: Dims, device: Any) -> Any:
    b, s, kv, per, h = d.batch, d.sequence, d.kv_heads, d.queries_per_kv, d.head
    keys = ttnn.permute(k, [0, 2, 3, 1], memory_config=memory(), pad_value=0.0)
    q = ttnn.reshape(q, [b, s, kv, per, h], memory_config=memory())
    q = ttnn.permute(q, [0, 2, 3, 1, 4], memory_config=memory(), pad_value=0.0)
    scores = product(ttnn.reshape(q, [b, kv, per * s, h], memory_config=memory()), keys)
    scores = ttnn.reshape(scores, [b, kv, per, s, s], memory_config=memory())
    scores = ttnn.divide(scores, number(h**0.5, device), dtype=FLOAT, memory_config=memory())
    seen = ttnn.repeat(past(d, device), ttnn.Shape([b, kv, per, 1, 1]), memory_config=memory())
    never = ttnn.full(
        shape=ttnn.Shape([b, kv, per, s, s]),
        fill_value=NEVER,
        dtype=FLOAT,
        layout=ttnn.Layout.TILE,
        device=device,
        memory_config=memory(),
    )
    scores = ttnn.where(seen, scores, never, memory_config=memory())
    shares = ttnn.softmax(scores, 4, memory_config=memory(), compute_kernel_config=kernel(), numeric_stable=True)
    shares = ttnn.reshape(shares, [b, kv, per * s, s], memory_config=memory())
    v = ttnn.reshape(v, [b, s, kv, h], memory_config=memory())
    v = ttnn.permute(v, [0, 2, 1, 3], memory_config=memory(), pad_value=0.0)
    mixed = ttnn.reshape(product(shares, v), [b, kv, per, s, h], memory_config=memory())
    mixed = ttnn.permute(mixed, [0, 3, 1, 2, 4], memory_config=memory(), pad_value=0.0)
    return ttnn.reshape(mixed, [b, s, kv * per * h], memory_config=memory())


def summed(x: Any, d: Dims) -> Any:
    b, s, w = d.input_shape
    x = ttnn.reshape(x, [1, b, s, w], memory_config=memory())
    x = ttnn.all_reduce(
        input_tensor=x, cluster_axis=1, subdevice_id=None, memory_config=memory(), num_links=None, topology=None
    )
    return ttnn.reshape(x, [b, s, w], memory_config=memory())


def normed(x: Any, scale: Any) -> Any:
    return ttnn.rms_norm(
        x,
        epsilon=NORM_EPSILON,
        weight=scale,
        bias=None,
        residual_input_tensor=None,
        memory_config=memory(),
        compute_kernel_config=kernel(),
    )


def by_ttnn(w: Weights, x: Any, d: Dims, device: Any) -> Any:
    cos, sin = angles(d, device)
    inner = normed(x, w["attention_norm"])
    k = turned(product(inner, w["wk"]), d.kv_heads, cos, sin, d)
    v = product(inner, w["wv"])
    q = turned(product(inner, w["wq"]), d.kv_heads * d.queries_per_kv, cos, sin, d)
    ttnn.deallocate(inner, False)
    joined = summed(product(attended(q, k, v, d, device), w["wo"]), d)
    x = ttnn.add(x, joined, dtype=FLOAT, memory_config=memory())
    inner = normed(x, w["mlp_norm"])
    gate = ttnn.silu(product(inner, w["w_gate"]), memory_config=memory())
    hidden = ttnn.multiply(gate, product(inner, w["w_up"]), dtype=FLOAT, memory_config=memory())
    ttnn.deallocate(gate, False)
    return ttnn.add(x, summed(product(hidden, w["w_down"]), d), dtype=FLOAT, memory_config=memory())


# --- the same by jax.numpy; sizes are those of the full arrays -------------------------------------------------------


def turned_full(x: Any, heads: int, cos: Any, sin: Any, d: Dims) -> Any:
    b, s, h = d.batch, d.sequence, d.head
    x = jnp.reshape(x, (b, s, heads, h))
    low = lax.slice(x, (0, 0, 0, 0), (b, s, heads, h // 2))
    high = lax.slice(x, (0, 0, 0, h // 2), (b, s, heads, h))
    cosines, sines = jnp.reshape(cos, (1, s, 1, h // 2)), jnp.reshape(sin, (1, s, 1, h // 2))
    first = jnp.subtract(jnp.multiply(low, cosines), jnp.multiply(high, sines))
    second = jnp.add(jnp.multiply(low, sines), jnp.multiply(high, cosines))
    return jnp.concatenate([first, second], 3)


def angles_full(d: Dims) -> tuple[Any, Any]:
    half, s = d.head // 2, d.sequence
    steps = jnp.divide(jnp.negative(jnp.arange(0, half, 1, dtype=jnp.float32)), jnp.full((), half, jnp.float32))
    speed = jnp.power(jnp.full((), ROTARY_BASE, jnp.float32), steps)
    places = jnp.reshape(jnp.arange(0, s, 1, dtype=jnp.float32), (s, 1))
    angle = jnp.multiply(places, jnp.reshape(speed, (1, half)))
    return jnp.cos(angle), jnp.sin(angle)


def past_full(d: Dims) -> Any:
    s = d.sequence
    rows = jnp.tile(jnp.reshape(jnp.arange(0, s, 1, dtype=jnp.int32), (s, 1)), (1, s))
    columns = jnp.tile(jnp.reshape(jnp.arange(0, s, 1, dtype=jnp.int32), (1, s)), (s, 1))
    return jnp.reshape(jnp.greater_equal(rows, columns), (1, 1, 1, s, s))


def attended_full(q: Any, k: Any, v: Any, d: Dims) -> Any:
    b, s, kv, per, h = d.batch, d.sequence, d.kv_heads, d.queries_per_kv, d.head
    keys = jnp.transpose(k, (0, 2, 3, 1))
    q = jnp.transpose(jnp.reshape(q, (b, s, kv, per, h)), (0, 2, 3, 1, 4))
    scores = jnp.reshape(jnp.matmul(jnp.reshape(q, (b, kv, per * s, h)), keys), (b, kv, per, s, s))
    scores = jnp.divide(scores, jnp.full((), h**0.5, jnp.float32))
    seen = jnp.tile(past_full(d), (b, kv, per, 1, 1))
    scores = jnp.where(seen, scores, jnp.full((b, kv, per, s, s), NEVER, jnp.float32))
    shares = jnp.reshape(jax.nn.softmax(scores, 4), (b, kv, per * s, s))
    v = jnp.transpose(jnp.reshape(v, (b, s, kv, h)), (0, 2, 1, 3))
    mixed = jnp.reshape(jnp.matmul(shares, v), (b, kv, per, s, h))
    return jnp.reshape(jnp.transpose(mixed, (0, 3, 1, 2, 4)), (b, s, kv * per * h))


def normed_full(x: Any, scale: Any) -> Any:
    mean = jnp.mean(jnp.square(x), -1, keepdims=True)
    return jnp.multiply(jnp.multiply(x, lax.rsqrt(jnp.add(mean, NORM_EPSILON))), scale)


def by_jax(w: Weights, x: Any, d: Dims) -> Any:
    cos, sin = angles_full(d)
    inner = normed_full(x, w["attention_norm"])
    k = turned_full(jnp.matmul(inner, w["wk"]), d.kv_heads, cos, sin, d)
    v = jnp.matmul(inner, w["wv"])
    q = turned_full(jnp.matmul(inner, w["wq"]), d.kv_heads * d.queries_per_kv, cos, sin, d)
    x = jnp.add(x, jnp.matmul(attended_full(q, k, v, d), w["wo"]))
    inner = normed_full(x, w["mlp_norm"])
    gate = jax.nn.silu(jnp.matmul(inner, w["w_gate"]))
    hidden = jnp.multiply(gate, jnp.matmul(inner, w["w_up"]))
    return jnp.add(x, jnp.matmul(hidden, w["w_down"]))


# --- the two, in turns ------------------------------------------------------------------------------------------------


def on_devices(array: Any, spec: Any, device: Any) -> Any:
    """An array split as a spec says, on the devices."""
    dims = {
        name: dim for dim, names in enumerate(spec) for name in ([names] if isinstance(names, str) else names or ())
    }
    placements = [
        ttnn.PlacementShard(dims[a]) if a in dims else ttnn.PlacementReplicate() for a in device.mesh.axis_names
    ]
    mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig(placements, ttnn.MeshShape(2, 4)))
    moved = ttnn.to_device(ttnn.distribute_tensor(array, mapper), device)
    return ttnn.to_layout(moved, ttnn.Layout.TILE)


@pytest.mark.parametrize("size", list(SIZES))
def test_llama_block(size: str, benchmark: Any) -> None:
    d = SIZES[size]
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    specs = weight_specs(device.mesh)
    weights, x, _ = make_inputs(d)
    held = {name: on_devices(w, specs[name], device) for name, w in weights.items()}
    mine = on_devices(x, input_spec(device.mesh), device)
    local = Dims(d.batch // 2, d.sequence, d.width, d.kv_heads // 4, d.queries_per_kv, d.head, d.hidden // 4)
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(2, 1)))

    want = by_jax(weights, x, d)
    np.testing.assert_allclose(ttnn.aggregate_tensor(by_ttnn(held, mine, local, device), composer), want, atol=1e-4)
    if size == "small":
        np.testing.assert_allclose(want, unsharded_model(d).forward(weights, x), atol=1e-5)
    benchmark.group = "emulated ttnn, op by op"
    compare(
        benchmark,
        f"emulated ttnn, op by op, Llama block, {size}: width {d.width}, sequence {d.sequence}",
        lambda: by_ttnn(held, mine, local, device).block_until_ready(),
        lambda: jax.block_until_ready(by_jax(weights, x, d)),
        target=2.0 if size != "small" else None,
        peer_name="the same ops as jax.numpy calls on full arrays",
        rounds=31,
    )
