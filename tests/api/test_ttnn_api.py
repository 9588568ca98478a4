"""The emulated `ttnn`: every op of the table, where tensors are stored, what is refused, and what stands around it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects import ttnn as ttnn_dialect
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.dialects.ttnn import OPS
from jaxmesh.tensor import execute
from jaxmesh.ttnn import helpers
from jaxmesh.ttnn.functions import COMPOSED
from jaxmesh.ttnn.signatures import signatures
from tests import ROOT
from tests.generators.flat_programs import run_flat
from tests.generators.oracles import cases, coordinates, same_bits
from tests.generators.ttnn_calls import (
    BF16,
    BOOL,
    F32,
    I32,
    MC,
    X,
    arguments,
    cases_of,
    function_of,
    on_devices,
    random_tensor,
)

pytestmark = pytest.mark.slow(but_one_in=2)

S, R = ttnn.PlacementShard, ttnn.PlacementReplicate()


def same_tensors(a: Any, b: Any) -> bool:
    return all(same_bits(x, y) for (_, x), (_, y) in zip(a.shards(), b.shards(), strict=True))


ALL = [(name, i) for name in ttnn_dialect.OPS if name != "constant" for i in range(len(cases_of(name)))]


def by_rows(name: str, tensors: Sequence[Any], attributes: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    """The results of a program of this one op, by the meaning of its row."""
    there = [t for t in tensors if t is not None]
    kinds = [Type(tuple(t.shape), np.dtype(t.dtype), tile=True) for t in there]
    kinds += [Type(tuple(r.shape), np.dtype(r.dtype), tile=True) for r in results]
    numbers = iter(range(len(there)))
    operands = tuple(None if t is None else next(numbers) for t in tensors)
    made = tuple(range(len(there), len(kinds)))
    program = Program("one", {"y": 2, "x": 4}, kinds, [Port(i, True) for i in range(len(there))])
    program.ops = [Op(f"ttnn.{name}", operands, made, attributes)]
    program.results = [Port(v, True) for v in made]
    return run_flat(program, jm.make_mesh((2, 4)), *there)


@pytest.mark.slow(but_one_in=6)
@pytest.mark.parametrize(("name", "case"), ALL, ids=[f"{n}{i or ''}" for n, i in ALL])
@pytest.mark.beyond
def test_every_op_means_its_row(name: str, case: int, device: ttnn.MeshDevice) -> None:
    operands, attributes = cases_of(name)[case]
    specs = [o if o is None or isinstance(o[-1], np.dtype) else (o, F32) for o in operands]
    tensors = [None if o is None else random_tensor(device, *o, seed=i) for i, o in enumerate(specs)]
    copies = [None if t is None else t.with_storage(t.storage) for t in tensors]
    dtype = attributes.get("dtype") or next((t.dtype for t in tensors[::-1] if t is not None), F32)
    said = {k: v for k, v in attributes.items() if k != "dtype"}
    args, named = arguments(OPS[name], tensors, said, dtype, device)
    out = function_of(OPS[name])(*args, **named)
    outs = out if isinstance(out, list) else [out]
    if OPS[name].on_device and not operands:
        assert outs[0].varying == ()
        want = [jnp.asarray(x) for x in by_rows_of_nothing(name, said, outs)]
        assert all(same_bits(s, want[0]) for s in shards_of(outs[0]))
        return
    for got, want in zip(outs, by_rows(name, copies, said, outs), strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert got.varying == want.varying
        assert same_tensors(got, want)
        assert got.storage_type() is ttnn.StorageType.DEVICE
        assert got.memory_config() == MC


def shards_of(tensor: Any) -> list[np.ndarray]:
    return [np.asarray(s) for _, s in tensor.shards()]


def by_rows_of_nothing(name: str, attributes: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    kinds = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
    return evaluate(OPS[name], [], attributes, kinds, {})


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_function_has_the_signature_of_its_row(name: str) -> None:
    entry = OPS[name]
    function = function_of(entry)
    if name == "constant":
        assert function is ttnn.Tensor
        return
    found = inspect.signature(function).parameters
    real = signatures(entry.python.callee)
    assert [(p.name, p.kind is p.KEYWORD_ONLY) for p in found.values()] == [(p.name, p.keyword) for p in real[0]]
    known = {p.name for overload in real for p in overload}
    assert {p.name for p in entry.python.params} <= known
    assert function.__name__ == entry.python.callee.rsplit(".", 1)[-1]
    assert all(f"{p.name}: " in function.__doc__ for p in entry.python.params) or entry.python.callee in COMPOSED
    assert function.__name__ in dir(ttnn) or entry.python.callee.count(".") == 2


# --- against NumPy ---------------------------------------------------------------------------------------------------


@st.composite
def pairs(draw: Any) -> tuple[np.ndarray, Any, str]:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    ints = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = rng.integers(1, 9, (8, *shape)).astype(np.int32 if ints else np.float32)
    other = draw(st.sampled_from(["tensor", "row", "number"]))
    beside: Any = int(rng.integers(1, 9)) if ints else float(rng.integers(1, 9))
    if other != "number":
        beside = rng.integers(1, 9, (8, *(shape if other == "tensor" else shape[-1:]))).astype(values.dtype)
    return values, beside, draw(st.sampled_from(["+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">="]))


OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def test_operators_against_numpy(device: ttnn.MeshDevice) -> None:
    @cases(40)
    @hypothesis.given(pairs(), st.booleans())
    def run(pair: Any, turned: bool) -> None:
        values, beside, sign = pair
        hypothesis.assume(not (sign == "/" and values.dtype == np.int32))
        t = on_devices(device, list(values))
        u = beside if isinstance(beside, (int, float)) else on_devices(device, list(beside))
        function = OPERATORS[sign]
        got = function(u, t) if turned else function(t, u)
        assert isinstance(got, jm.MeshTensor)
        for i, shard in enumerate(shards_of(got)):
            b = beside if isinstance(beside, (int, float)) else beside[i]
            want = function(b, values[i]) if turned else function(values[i], b)
            assert shard.shape == want.shape
            assert shard.dtype == (bool if sign in "==!=<=>=" else values.dtype)
            np.testing.assert_allclose(shard, want, rtol=1e-6)

    run()


def test_matmul_and_neg_operators(device: ttnn.MeshDevice) -> None:
    a, b = (np.random.default_rng(i).integers(-4, 5, (8, 3, 3)).astype(np.float32) for i in range(2))
    got = shards_of(-(on_devices(device, list(a)) @ on_devices(device, list(b))))
    assert all((g == -(x @ y)).all() for g, x, y in zip(got, a, b, strict=True))


@pytest.mark.parametrize("number", [True, 3, 2.5, np.float32(2.5), np.int64(3), -0.0, float("inf"), float("nan"), 1e30])
def test_a_number_takes_the_type_of_the_tensor(number: Any, device: ttnn.MeshDevice) -> None:
    for dtype in (F32, BF16):
        t = on_devices(device, [np.ones(3, dtype)] * 8)
        got = t * number
        assert got.dtype == dtype
        assert all(same_bits(s, np.asarray(number, dtype) * np.ones(3, dtype)) for s in shards_of(got))


def test_a_negative_zero_is_no_zero(device: ttnn.MeshDevice) -> None:
    """Equal as keys of a cache, but not the same numbers."""
    t = on_devices(device, [np.full(2, -0.0, np.float32)] * 8)
    signs = [np.signbit(shards_of(t + z)[0]).all() for z in (-0.0, 0.0, -0.0)]
    assert signs == [True, False, True]
    full = [ttnn.full(ttnn.Shape([2]), z, dtype=ttnn.float32, device=device) for z in (0.0, -0.0)]
    assert [np.signbit(shards_of(f)[0]).all() for f in full] == [False, True]


@pytest.mark.parametrize("number", [2.5, 1 << 40, 1 << 80, float("nan"), float("inf"), 1j])
def test_a_number_the_type_cannot_hold_is_refused(number: Any, device: ttnn.MeshDevice) -> None:
    with pytest.raises(jm.VerifyError, match="int32, which cannot hold it"):
        random_tensor(device, (2,), I32) + number


# --- the result varies over the axes its type says -------------------------------------------------------------------


def test_results_vary_as_their_types_say(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, (4, 8))
    assert t.varying == ("y", "x")
    rows = ttnn.all_reduce(input_tensor=t, cluster_axis=1, memory_config=MC)
    assert rows.varying == ("y",)
    assert ttnn.all_reduce(input_tensor=rows, cluster_axis=0).varying == ()
    assert ttnn.all_gather(t, 0, cluster_axis=0).varying == ("x",)
    assert ttnn.add(rows, t).varying == ("y", "x")
    assert ttnn.mesh_partition(ttnn.all_gather(rows, 0, cluster_axis=0), 0, cluster_axis=1).varying == ("x",)
    assert ttnn.zeros(ttnn.Shape([2]), device=device).varying == ()


def test_results_enter_programs(device: ttnn.MeshDevice) -> None:
    """What was computed eagerly is of the type that a program makes; the stored form is the same."""
    t = random_tensor(device, (4, 8))
    rows = ttnn.all_reduce(t, cluster_axis=1)
    full = jm.jit(lambda v: jm.shard_to_full(v, jax.sharding.PartitionSpec("y")), mesh=device.mesh)(rows)
    want = np.concatenate([sum(shards_of(t)[i : i + 4], np.zeros((4, 8), np.float32)) for i in (0, 4)])
    np.testing.assert_allclose(full, want, rtol=1e-6)


@pytest.mark.beyond
def test_equal_tensors_hold_equal_values_on_an_explicit_mesh() -> None:
    mesh = jm.make_mesh((2, 2), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    device = ttnn.MeshDevice(mesh)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig([S(0), S(1)])), device)
    out = ttnn.matmul(2 * t, t)
    for got, part in zip(shards_of(out), (x[:2, :2], x[:2, 2:], x[2:, :2], x[2:, 2:]), strict=True):
        assert (got == 2 * part @ part).all()


@pytest.mark.parametrize("shape", [(1,), (8,), (1, 2), (2, 1), (2, 2, 2), (2, 2, 2, 2)])
@pytest.mark.beyond
def test_any_mesh(shape: tuple[int, ...]) -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(shape))
    count = device.get_num_devices()
    values = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    t = on_devices(device, list(values))
    assert (np.stack(shards_of(t + t)) == 2 * values).all()
    cube = values.reshape(*shape, 4)
    for axis in range(len(shape)):
        got = np.stack(shards_of(ttnn.all_reduce(t, cluster_axis=axis))).reshape(*shape, 4)
        assert (got == np.broadcast_to(cube.sum(axis, keepdims=True), cube.shape)).all()


PLAIN = {
    "**": lambda a, b: a**b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip


BITWISE = [(sign, dtype) for sign in "&|^" for dtype in ("int32", "uint8", "bool")]


@pytest.mark.parametrize(("sign", "dtype"), [*(("**", dtype) for dtype in ("float32", "int32", "uint8")), *BITWISE])
@pytest.mark.beyond
def test_powers_and_bits_against_numpy(sign: str, dtype: str, device: ttnn.MeshDevice) -> None:
    rng = np.random.default_rng(3)
    low, high = (0, 2) if dtype == "bool" else (1, 4) if dtype == "uint8" or sign == "**" else (-9, 9)
    a, b = (rng.integers(low, high, (8, 2, 3)).astype(dtype) for _ in range(2))
    number = True if dtype == "bool" else 2
    t, u, function = on_devices(device, list(a)), on_devices(device, list(b)), PLAIN[sign]
    wanted = [
        (function(t, u), function(a, b)),
        (function(t, number), function(a, np.asarray(number, dtype))),
        (function(number, t), function(np.asarray(number, dtype), a)),
    ]
    for got, want in wanted:
        assert got.dtype == want.dtype
        np.testing.assert_allclose(np.stack(shards_of(got)), want, rtol=1e-6)


@pytest.mark.beyond
def test_unary_operators_against_numpy(device: ttnn.MeshDevice) -> None:
    for dtype in (np.float32, np.int32, np.int8):
        a = np.random.default_rng(4).integers(-9, 9, (8, 5)).astype(dtype)
        assert same_bits(np.stack(shards_of(abs(on_devices(device, list(a))))), abs(a))
        if dtype != np.float32:
            assert same_bits(np.stack(shards_of(~on_devices(device, list(a)))), ~a)
    assert [s.tolist() for s in shards_of(~on_devices(device, [np.array([True, False])] * 8))] == [[False, True]] * 8


def test_a_remainder_has_the_sign_of_the_divisor(device: ttnn.MeshDevice) -> None:
    for dtype in (np.float32, np.int32):
        a = np.random.default_rng(4).integers(-9, 9, (8, 5)).astype(dtype)
        b = np.resize(np.array([3, -4, 2, -1], dtype), (8, 5))
        got = ttnn.remainder(on_devices(device, list(a)), on_devices(device, list(b)))
        np.testing.assert_array_equal(np.stack(shards_of(got)), np.remainder(a, b))


def test_there_is_no_remainder_of_python(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, (2,))
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = t % 2
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = t & "x"


@pytest.mark.beyond
def test_shorthands(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, (1, 4, 1, 3))
    u = random_tensor(device, (1, 4, 1, 3), seed=1)
    for short, long in (("mul", "multiply"), ("sub", "subtract")):
        assert getattr(ttnn, short) is getattr(ttnn, long)
        assert same_tensors(getattr(ttnn, short)(t, u), getattr(ttnn, long)(t, u))
        assert short in dir(ttnn)
    x = np.stack(shards_of(t))
    for low, high in ((0.4, None), (None, 0.6), (0.4, 0.6)):
        assert same_bits(np.stack(shards_of(ttnn.clamp(t, low, high))), np.clip(x, low, high).astype(np.float32))
    whole = random_tensor(device, X, I32)
    assert same_bits(np.stack(shards_of(ttnn.clamp(whole, max=2))), np.minimum(np.stack(shards_of(whole)), 2))


@pytest.mark.beyond
def test_defaults_of_the_real_api(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, X)
    x = np.stack(shards_of(t))
    values, indices = ttnn.topk(t, 2)
    indices = ttnn.typecast(indices, ttnn.int32)
    assert same_bits(np.stack(shards_of(values)), -np.sort(-x, axis=-1)[..., :2])
    assert same_bits(np.take_along_axis(x, np.stack(shards_of(indices)), -1), np.stack(shards_of(values)))
    assert same_bits(np.stack(shards_of(ttnn.slice(t, [1, 2], [4, 6]))), x[:, 1:4, 2:6])
    assert same_bits(np.stack(shards_of(ttnn.reshape(t, [-1, 8]))), x.reshape(8, 3, 8))
    assert same_bits(np.stack(shards_of(ttnn.reshape(t, (2, -1, 3)))), x.reshape(8, 2, 4, 3))
    assert ttnn.reshape(ttnn.Tensor(np.zeros(6)), [-1, 3]).shape == (2, 3)
    for made, value in ((ttnn.ones, 1), (ttnn.zeros, 0)):
        got = made([2, 3], ttnn.int32, ttnn.TILE_LAYOUT, device)
        assert all(same_bits(s, np.full((2, 3), value, np.int32)) for s in shards_of(got))
    for got, want in (
        (ttnn.arange(end=5, dtype=ttnn.int32), np.arange(5)),
        (ttnn.arange(2, 5, dtype=ttnn.int32), np.arange(2, 5)),
        (ttnn.arange(7, 1, -2, dtype=ttnn.int32), np.arange(7, 1, -2)),
    ):
        assert got.to_list() == want.tolist()
    for sizes, axis in (((1, 4), 1), ((4, 1), 0), ((1, 1), 0), ((4,), 0)):
        small = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*sizes))
        u = random_tensor(small, (2, 2))
        assert same_tensors(ttnn.all_gather(u, 1), ttnn.all_gather(u, dim=1, cluster_axis=axis))
        assert jm.jit(lambda a: ttnn.all_gather(a, 0), mesh=small.mesh)(u).shape == (2 * max(sizes), 2)


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.beyond
def test_arguments_by_place_and_by_name(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, X)
    want = ttnn.softmax(t, 1)
    assert same_tensors(ttnn.softmax(input_tensor=t, dim=1), want)
    assert same_tensors(ttnn.softmax(t, dim=-1, numeric_stable=True, compute_kernel_config=None), want)
    assert same_tensors(ttnn.sum(t, 1, True), ttnn.sum(t, [1], keepdim=True))
    assert same_tensors(ttnn.sum(t, dim=np.int64(1)), ttnn.sum(t, (1,)))
    assert ttnn.maximum(t, t, dtype=ttnn.bfloat16).dtype == ttnn.bfloat16


REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("missing", lambda t: ttnn.add(t), jm.ArgumentTypeError, "needs the argument 'input_tensor_b'"),
    ("unknown", lambda t: ttnn.add(t, t, memory=MC), jm.ArgumentTypeError, "has no argument 'memory'"),
    ("many", lambda t: ttnn.add(t, t, None), jm.ArgumentTypeError, "takes 2 arguments by place, got 3"),
    ("twice", lambda t: ttnn.add(t, t, input_tensor_a=t), jm.ArgumentTypeError, "by place and by name"),
    ("dtype", lambda t: ttnn.add(t, t, dtype="bf16"), jm.ArgumentTypeError, r"takes DataType \| None as dtype"),
    ("memory", lambda t: ttnn.add(t, t, memory_config="L1"), jm.ArgumentTypeError, r"takes MemoryConfig \| None"),
    ("operand", lambda t: ttnn.add(t, "x"), jm.ArgumentTypeError, "as input_tensor_b, got 'x'"),
    ("list", lambda t: ttnn.concat(t, 0), jm.ArgumentTypeError, r"takes Sequence\[Tensor\] as tensors"),
    ("integer", lambda t: ttnn.softmax(t, 1.0), jm.ArgumentTypeError, "takes int as dim, got 1.0"),
    ("truth", lambda t: ttnn.softmax(t, 1, numeric_stable=1), jm.ArgumentTypeError, "takes bool as numeric_stable"),
    ("row", lambda t: ttnn.reshape(t, [2.0, 12]), jm.ArgumentTypeError, "takes Shape as shape"),
    ("pairs", lambda t: ttnn.pad(t, [1, 0, 2, 3], 0.0), jm.ArgumentTypeError, "takes .* as padding"),
    ("rule", lambda t: ttnn.softmax(t, 7), jm.VerifyError, "ttnn.softmax: dimension = 7 is out of range"),
    ("shapes", lambda t: ttnn.matmul(t, t), jm.VerifyError, "ttnn.matmul: the contracted dims differ"),
    ("activation", lambda t: ttnn.matmul(t, t, activation="erf"), jm.UnsupportedError, "activation is not emul"),
    ("gradient", lambda t: ttnn.gather(t, 0, t, sparse_grad=True), jm.UnsupportedError, "is not emulated"),
    ("number", lambda t: ttnn.add(1, 2), jm.ArgumentTypeError, "takes Tensor as"),
    ("holes", lambda t: ttnn.reshape(t, [-1, -1]), jm.VerifyError, r"one dim.*got \[-1, -1\].*\[4, 6\], 24"),
    ("rest", lambda t: ttnn.reshape(t, [-1, 7]), jm.VerifyError, r"got \[-1, 7\] for a tensor of shape \[4, 6\]"),
    ("range", lambda t: ttnn.arange(), jm.ArgumentTypeError, "needs the argument 'start'"),
    ("bits", lambda t: ~t, jm.VerifyError, "bitwise_not"),
    ("axis", lambda t: ttnn.all_reduce(t, cluster_axis=2), jm.VerifyError, "cluster_axis"),
]


@pytest.mark.parametrize(("call", "error", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
@pytest.mark.beyond
def test_wrong_arguments(call: Any, error: type[Exception], words: str, device: ttnn.MeshDevice) -> None:
    with pytest.raises(error, match=words):
        call(random_tensor(device, X))


def test_unknown_names() -> None:
    for name in ("addd", "__wrapped__", "experimental2"):
        with pytest.raises(AttributeError, match=name):
            getattr(ttnn, name)
    with pytest.raises(AttributeError, match=r"dialects/ttnn/\*\.py"):
        ttnn.experimental.nothing_like_it  # noqa: B018
    assert {"add", "matmul", "experimental", "transformer", "Tensor"} <= set(dir(ttnn))
    assert "all_reduce_async" in dir(ttnn.experimental)


def test_operands_on_two_meshes(device: ttnn.MeshDevice) -> None:
    other = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(4, 2))
    with pytest.raises(jm.MeshMismatchError, match="on two meshes"):
        ttnn.add(random_tensor(device, X), random_tensor(other, X))


def test_a_tensor_some_devices_hold_nothing_of(device: ttnn.MeshDevice) -> None:
    five = ttnn.distribute_tensor(np.arange(5.0), ttnn.shard_tensor_to_mesh_mapper(device, 0), device)
    with pytest.raises(jm.UnsupportedError, match="hold nothing of operand 0"):
        ttnn.neg(five)


# --- host and devices ------------------------------------------------------------------------------------------------


def mapper(device: ttnn.MeshDevice, *placements: Any) -> Any:
    return ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig(list(placements)))


def test_the_way_to_the_devices_and_back(device: ttnn.MeshDevice) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    host = ttnn.distribute_tensor(x, mapper=mapper(device, S(0), S(1)))
    assert (host.storage_type(), host.layout, host.memory_config()) == (
        ttnn.StorageType.HOST, ttnn.ROW_MAJOR_LAYOUT, None,
    )  # fmt: skip
    there = ttnn.to_device(host, device=device, memory_config=ttnn.L1_MEMORY_CONFIG)
    assert there.storage_type() is ttnn.StorageType.DEVICE
    assert there.memory_config() == ttnn.L1_MEMORY_CONFIG
    tiled = ttnn.to_layout(there, ttnn.Layout.TILE, None, memory_config=MC)
    assert (tiled.layout, tiled.memory_config()) == (ttnn.TILE_LAYOUT, MC)
    half = ttnn.to_layout(ttnn.to_layout(tiled, ttnn.Layout.ROW_MAJOR), ttnn.Layout.TILE, ttnn.bfloat16)
    assert half.dtype == ttnn.bfloat16
    back = ttnn.from_device(ttnn.to_layout(ttnn.multiply(tiled, 2.0), ttnn.Layout.ROW_MAJOR, None))
    assert back.storage_type() is ttnn.StorageType.HOST
    assert "host" in repr(back)
    assert "host" not in repr(tiled)
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))
    out = ttnn.aggregate_tensor(back, composer=composer)
    assert type(out) is ttnn.Tensor
    assert same_bits(out.to_numpy(), 2 * x)
    assert same_bits(ttnn.aggregate_tensor(tiled, composer).to_numpy(), x)
    assert ttnn.to_memory_config(tiled, ttnn.L1_MEMORY_CONFIG).memory_config() == ttnn.L1_MEMORY_CONFIG


@pytest.mark.beyond
def test_compute_wants_the_devices(device: ttnn.MeshDevice) -> None:
    x = np.ones((8, 4), np.float32)
    host, there = ttnn.distribute_tensor(x, mapper(device, S(0), R)), ttnn.to_device(x, device)
    for operand in (host, x, jnp.asarray(x), helpers.from_numpy(x)):
        with pytest.raises(jm.ResidencyError, match=r"operand 0 is in host memory.*to_device"):
            ttnn.exp(operand)
        with pytest.raises(jm.ResidencyError, match="operand 1 is in host memory"):
            ttnn.add(there, operand)
        # An array of JAX sees to the operator itself, and asks for an array.
        with pytest.raises(jm.ResidencyError, match=r"in host memory|used as an array"):
            operand + there
    with pytest.raises(jm.ResidencyError, match=r"bring it\s+there"):
        ttnn.to_memory_config(host, MC)
    with pytest.raises(jm.ResidencyError, match=r"use ttnn\.typecast"):
        ttnn.to_dtype(there, ttnn.bfloat16)


def test_what_is_done_in_host_memory(device: ttnn.MeshDevice) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    host = ttnn.distribute_tensor(x, mapper(device, S(0), R))
    flat = ttnn.reshape(host, [16], memory_config=None)
    assert (flat.shape, flat.storage_type(), flat.memory_config()) == ((16,), ttnn.StorageType.HOST, None)
    assert same_bits(shards_of(flat)[7], x[4:].reshape(16))
    assert ttnn.typecast(host, ttnn.DataType.INT32).storage_type() is ttnn.StorageType.HOST
    assert ttnn.to_dtype(host, ttnn.bfloat16).dtype == ttnn.bfloat16
    assert ttnn.to_layout(host, ttnn.TILE_LAYOUT).layout is ttnn.TILE_LAYOUT
    full = ttnn.reshape(x, [4, 8])
    assert type(full) is np.ndarray
    assert same_bits(full, x.reshape(4, 8))
    tensor = ttnn.reshape(helpers.from_numpy(x, layout=ttnn.TILE_LAYOUT), [32])
    assert type(tensor) is ttnn.Tensor
    assert same_bits(tensor.to_numpy(), x.reshape(32))


def test_what_is_refused_at_the_transfers(device: ttnn.MeshDevice) -> None:
    x = np.ones((8, 4), np.float32)
    host = ttnn.distribute_tensor(x, mapper(device, S(0), R))
    for tensor, where in ((host, "distributed already"), (ttnn.to_device(host, device), "on the devices already")):
        with pytest.raises(jm.ResidencyError, match=where):
            ttnn.distribute_tensor(tensor, mapper(device, S(0), R))
        for read in (helpers.to_numpy, np.asarray):
            with pytest.raises(jm.ResidencyError, match="no single value"):
                read(tensor)
    with pytest.raises(jm.ArgumentTypeError, match="leave it out"):
        helpers.to_numpy(x, mesh_composer=ttnn.concat_mesh_to_tensor_composer(device, 0))
    other = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(4, 2))
    with pytest.raises(jm.MeshMismatchError, match=r"mesh of shape \[2, 4\], the device is \[4, 2\]"):
        ttnn.to_device(host, other)
    for bad in (None, 3, "x"):
        for function in (ttnn.from_device, ttnn.deallocate):
            with pytest.raises(jm.ArgumentTypeError, match=r"takes a tensor|takes Tensor"):
                function(bad)
    with pytest.raises(jm.ArgumentTypeError, match="as layout"):
        ttnn.to_layout(host, "tile")


def test_to_another_mesh_of_the_same_shape(device: ttnn.MeshDevice) -> None:
    named = ttnn.MeshDevice(jm.make_mesh((2, 4), ("a", "b")))
    x = np.arange(16, dtype=np.float32)
    for placements in ([S(0), R], [R, S(0)], [R, R]):
        t = ttnn.distribute_tensor(x, mapper(device, *placements))
        moved = ttnn.to_device(t, named)
        assert moved.mesh == named.mesh
        assert len(moved.varying) == sum(p is not R for p in placements)
        assert same_tensors(moved, t)
        assert ttnn.add(moved, moved).mesh == named.mesh


def test_a_host_tensor_goes_to_every_device(device: ttnn.MeshDevice) -> None:
    x = np.arange(6, dtype=np.float32)
    for given in (x, jnp.asarray(x), helpers.from_numpy(x)):
        t = ttnn.to_device(given, device)
        assert t.varying == ()
        assert len(shards_of(t)) == 8
        assert all(same_bits(s, x) for s in shards_of(t))


def test_where_it_is_stored_is_no_part_of_its_type(device: ttnn.MeshDevice) -> None:
    """Trees are equal, and a function is compiled once for tensors in host memory and on the devices."""
    x = np.ones((8, 4), np.float32)
    host = ttnn.distribute_tensor(x, mapper(device, S(0), R))
    there = ttnn.to_device(host, device)
    assert jax.tree.structure(host) == jax.tree.structure(there)
    count = []

    @jm.jit(mesh=device.mesh)
    def double(v: Any) -> Any:
        count.append(1)
        return 2 * v

    for t in (host, there, host):
        out = double(t)
        assert (out.storage_type(), out.layout) == (ttnn.StorageType.DEVICE, ttnn.Layout.TILE)
    assert len(count) == 1
    same = jax.jit(lambda v: v)
    assert [same(t).storage_type() for t in (host, there)] == [ttnn.StorageType.DEVICE] * 2
    assert jax.tree.map(lambda a: a + 1, host).storage_type() is ttnn.StorageType.HOST


# --- deallocate ------------------------------------------------------------------------------------------------------


def test_use_after_deallocate_is_refused(device: ttnn.MeshDevice) -> None:
    x = np.ones((8, 4), np.float32)
    t = ttnn.distribute_tensor(x, mapper(device, S(0), R))
    u = ttnn.to_device(t, device)
    ttnn.deallocate(t, False)
    assert not t.is_allocated()
    assert u.is_allocated()
    total = ttnn.add(u, u)
    ttnn.deallocate(u, force=False)
    ttnn.deallocate(u)
    assert "deallocated" in repr(u)
    uses = (
        lambda: ttnn.add(total, u), lambda: u + 1, lambda: ttnn.to_device(t, device), lambda: ttnn.from_device(u),
        lambda: u.shape, lambda: jm.jit(lambda v: v, mesh=device.mesh)(u), lambda: ttnn.get_device_tensors(u),
        lambda: ttnn.aggregate_tensor(u, ttnn.concat_mesh_to_tensor_composer(device, 0)),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(jm.ResidencyError, match="deallocated"):
            use()
    assert all((s == 2).all() for s in shards_of(total))


@pytest.mark.beyond
def test_deallocate_leaves_arrays_to_their_owner(device: ttnn.MeshDevice) -> None:
    x, y = np.ones(3), jnp.ones(3)
    ttnn.deallocate(x, False)
    ttnn.deallocate(y, True)
    assert x.sum() + y.sum() == 6
    tensor = helpers.from_numpy(x)
    kept = tensor.to_numpy()
    ttnn.deallocate(tensor, False)
    assert kept.sum() == 3
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        tensor.to_numpy()
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        ttnn.distribute_tensor(tensor, mapper(device, R, R))
    assert repr(tensor) == "Tensor(deallocated)"


@pytest.mark.beyond
def test_ops_that_write_into_an_operand(device: ttnn.MeshDevice) -> None:
    """The cache itself changes, as on the hardware; a wide index is exact beside narrow floats."""
    cache = on_devices(device, [np.zeros((1, 1, 300, 2), BF16)] * 8)
    kept = ttnn.assign(cache, memory_config=MC)
    new = random_tensor(device, (1, 1, 1, 2), BF16)
    out = ttnn.update_cache(cache, new, 257, batch_offset=0)
    assert same_tensors(out, cache)
    assert all((s == 0).all() for s in shards_of(kept))
    for shard, want in zip(shards_of(cache), shards_of(new), strict=True):
        assert same_bits(shard[:, :, 257:258], want)
        assert (shard[:, :, :257] == 0).all()
        assert (shard[:, :, 258:] == 0).all()


# --- host tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.beyond
def test_a_tensor_of_numbers(device: ttnn.MeshDevice) -> None:
    t = ttnn.Tensor([1.0, 2.5, -3.0, 0.1], [2, 2], ttnn.DataType.BFLOAT16, ttnn.Layout.TILE)
    assert isinstance(t, ttnn.Tensor)
    assert (t.shape, t.dtype, t.layout) == ((2, 2), ttnn.bfloat16, ttnn.TILE_LAYOUT)
    assert same_bits(np.asarray(t), np.asarray([[1.0, 2.5], [-3.0, 0.1]], BF16))
    there = ttnn.Tensor([1, 2], [2], ttnn.DataType.INT32, ttnn.Layout.TILE, device, memory_config=MC)
    assert isinstance(there, jm.MeshTensor)
    assert isinstance(there, ttnn.Tensor)
    assert all(same_bits(s, np.asarray([1, 2], np.int32)) for s in shards_of(there))
    assert same_bits(ttnn.Tensor([float("inf"), float("nan")]).to_numpy(), np.asarray([np.inf, np.nan], np.float32))
    assert ttnn.Tensor([True, False], [2], ttnn.DataType.BOOL).to_list() == [True, False]
    assert ttnn.Tensor(np.ones(3), ttnn.bfloat16).dtype == ttnn.bfloat16
    with pytest.raises(jm.ArgumentTypeError, match="one DataType"):
        ttnn.Tensor(np.ones(3), ttnn.bfloat16, ttnn.float32)
    assert ttnn.Tensor([2**64 - 1], [1], ttnn.DataType.UINT64).to_list() == [2**64 - 1]
    assert ttnn.Tensor([], [0, 3], ttnn.float32).shape == (0, 3)
    assert ttnn.Tensor([1.5], [], ttnn.float32).shape == ()
    x = np.arange(3)
    own = ttnn.Tensor(x)
    x[:] = 9
    assert own.to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ttnn.Tensor([1.0, 2.0], [3], ttnn.float32), jm.VerifyError, "was given 2 numbers"),
        (lambda: ttnn.Tensor([1.5], [1], ttnn.int32), jm.VerifyError, "that int32 can hold"),
        (lambda: ttnn.Tensor([300], [1], ttnn.uint8), jm.VerifyError, "that uint8 can hold"),
        (lambda: ttnn.Tensor(["a"], [1], ttnn.float32), jm.VerifyError, "that float32 can hold"),
        (lambda: ttnn.Tensor(np.array(["a"])), jm.ArgumentTypeError, "no ttnn.DataType"),
        (lambda: ttnn.Tensor([1.0], [1], "float"), jm.ArgumentTypeError, r"takes a ttnn.DataType as dtype"),
        (lambda: ttnn.Tensor([1.0], [1], ttnn.float32, "tile"), jm.ArgumentTypeError, "takes a Layout"),
        (lambda: ttnn.Tensor([1.0], [1.0], ttnn.float32), jm.ArgumentTypeError, "takes integers"),
    ],
)
def test_numbers_that_make_no_tensor(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("name", ["zeros", "ones", "full"])
def test_creation_in_host_memory(name: str, device: ttnn.MeshDevice) -> None:
    fill = {"fill_value": 2.5} if name == "full" else {}
    made = getattr(ttnn, name)(
        shape=ttnn.Shape([2, 3]), **fill, dtype=ttnn.float32, layout=ttnn.Layout.ROW_MAJOR, device=None,
        memory_config=None,
    )  # fmt: skip
    assert type(made) is ttnn.Tensor
    value = {"ones": 1.0, "full": 2.5}.get(name, 0.0)
    assert same_bits(made.to_numpy(), np.full((2, 3), value, np.float32))
    t = ttnn.distribute_tensor(made, mapper(device, S(0), R))
    assert t.shape == (1, 3)
    ttnn.deallocate(made, False)
    assert t.is_allocated()


def test_creation_on_the_devices(device: ttnn.MeshDevice) -> None:
    made = ttnn.arange(0, 32, 1, dtype=ttnn.DataType.FLOAT32, device=device, layout=ttnn.Layout.TILE, memory_config=MC)
    assert all(same_bits(s, np.arange(32, dtype=np.float32)) for s in shards_of(made))
    assert ttnn.empty(ttnn.Shape([4]), ttnn.bfloat16, ttnn.Layout.TILE, device, MC).dtype == ttnn.bfloat16
    assert ttnn.zeros([4], device=device.mesh).dtype == ttnn.bfloat16
    # Layouts that nobody says.
    assert ttnn.zeros([4], device=device).layout == ttnn.full([4], 1.0).layout == ttnn.arange(end=4).layout
    assert ttnn.zeros([4]).layout == ttnn.empty([4], ttnn.int32, device=device).layout == ttnn.ROW_MAJOR_LAYOUT
    assert ttnn.rand([4], device).layout == ttnn.TILE_LAYOUT
    with pytest.raises(jm.VerifyError, match="does not fit int32"):
        ttnn.full([2], 1e30, dtype=ttnn.int32, device=device)
    closed = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 2))
    ttnn.close_mesh_device(closed)
    with pytest.raises(jm.MeshError, match="closed"):
        ttnn.zeros([4], device=closed)


def test_data_types_are_dtypes() -> None:
    for kind in ttnn.DataType:
        if kind.name in ("BFLOAT8_B", "BFLOAT4_B"):
            with pytest.raises(jm.UnsupportedError, match=kind.name):
                kind.dtype  # noqa: B018
            continue
        dtype = kind.dtype
        assert kind == dtype
        assert dtype == kind
        assert np.dtype(kind) == dtype
        assert hash(kind) == hash(dtype)
        assert dtype.name.upper() == kind.name
        assert helpers.get_dtype(np.zeros(2, dtype)) is kind
    assert ttnn.DataType.FLOAT32 != ttnn.DataType.BFLOAT16
    assert ttnn.bfloat8_b != np.dtype("float32")
    assert jnp.zeros(2, ttnn.bfloat16).dtype == ttnn.bfloat16
    values = ("BFLOAT16", "FLOAT32", "UINT32", "BFLOAT8_B", "BFLOAT4_B", "UINT8", "UINT16", "INT32")
    assert [ttnn.DataType[n].value for n in values] == list(range(8))


@pytest.mark.beyond
def test_numpy_and_back(device: ttnn.MeshDevice) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))
    for kind in (ttnn.float32, ttnn.bfloat16, ttnn.int32, ttnn.uint8, ttnn.DataType.FLOAT16, ttnn.DataType.BOOL):
        host = helpers.from_numpy(x, dtype=kind)
        assert same_bits(helpers.to_numpy(host), x.astype(kind.dtype))
        spread = helpers.from_numpy(x, dtype=kind, device=device, mesh_mapper=mapper(device, S(0), S(1)))
        assert spread.storage_type() is ttnn.StorageType.DEVICE
        assert same_bits(helpers.to_numpy(spread, mesh_composer=composer), x.astype(kind.dtype))
        pieces = [helpers.to_numpy(p) for p in ttnn.get_device_tensors(ttnn.from_device(spread))]
        assert same_bits(pieces[0], x[:4, :1].astype(kind.dtype))
    single = ttnn.open_device(device_id=0)
    assert same_bits(helpers.to_numpy(helpers.from_numpy(x, device=single)), x)
    copies = helpers.from_numpy(x, device=device)
    with pytest.raises(jm.ResidencyError, match="no single value"):
        helpers.to_numpy(copies)


def test_torch_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (lambda: ttnn.from_torch(object()), lambda: ttnn.to_torch(np.zeros(2))):
        with pytest.raises(jm.UnsupportedError, match="torch, which is not installed"):
            call()


def test_torch_and_back(device: ttnn.MeshDevice) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    composer = ttnn.concat_mesh_to_tensor_composer(device, 0)
    for kind in (torch.float32, torch.bfloat16, torch.int32, torch.uint8):
        x = (torch.arange(32) % 7).reshape(8, 4).to(kind)
        host = ttnn.from_torch(x)
        assert host.dtype.name == str(kind).removeprefix("torch.")
        assert torch.equal(ttnn.to_torch(host), x)
        t = ttnn.from_torch(x, device=device, mesh_mapper=ttnn.shard_tensor_to_mesh_mapper(device, 0))
        assert torch.equal(ttnn.to_torch(t, mesh_composer=composer), x)
        with pytest.raises(jm.ResidencyError, match="no single value"):
            ttnn.to_torch(t)
    assert ttnn.from_torch(torch.ones(2), dtype=ttnn.bfloat16).dtype == ttnn.bfloat16
    assert ttnn.to_torch(np.ones((1, 1, 3), np.float32), torch_rank=1, dtype=torch.int32).shape == (3,)
    with pytest.raises(jm.ArgumentTypeError, match="takes a torch tensor"):
        ttnn.from_torch(np.ones(2))


# --- files and pictures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool", "complex64", "float8_e5m2"])
@pytest.mark.beyond
def test_files(dtype: str, device: ttnn.MeshDevice, tmp_path: Path) -> None:
    kind, path = np.dtype(getattr(jnp, dtype)) if dtype != "bool" else BOOL, tmp_path / "a.tensorbin"
    x = (np.arange(32) % 5).reshape(8, 4).astype(kind)
    ttnn.dump_tensor(path, helpers.from_numpy(x, layout=ttnn.TILE_LAYOUT))
    back = ttnn.load_tensor(path)
    assert same_bits(back.to_numpy(), x)
    assert back.layout is ttnn.TILE_LAYOUT
    assert ttnn.load_tensor(path, device=device).varying == ()
    for placements in ([S(0), R], [R, R], [R, S(1)]):
        t = ttnn.distribute_tensor(x, mapper(device, *placements), device)
        ttnn.dump_tensor(path, t)
        for u in (ttnn.load_tensor(path), ttnn.load_tensor(path, device=device)):
            assert same_tensors(t, u)
            assert u.varying == t.varying
            assert u.tensor_topology() == t.tensor_topology()


def test_a_partial_tensor_in_a_file(device: ttnn.MeshDevice, tmp_path: Path) -> None:
    t = ttnn.distribute_tensor(np.arange(5), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    ttnn.dump_tensor(tmp_path / "a", t)
    u = ttnn.load_tensor(tmp_path / "a", device=device)
    assert u.is_partial
    assert same_tensors(t, u)


def test_files_that_hold_no_tensor(device: ttnn.MeshDevice, tmp_path: Path) -> None:
    with pytest.raises(jm.MissingFileError, match="no file"):
        ttnn.load_tensor(tmp_path / "none")
    bad = tmp_path / "bad"
    for content in (b"", b"hello", b"PK\x03\x04 and no archive"):
        bad.write_bytes(content)
        with pytest.raises(jm.ParseError, match="holds no tensor"):
            ttnn.load_tensor(bad)
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    with pytest.raises(jm.ParseError, match="holds no tensor"):
        ttnn.load_tensor(tmp_path / "other.npz")
    np.savez(tmp_path / "evil.npz", about=np.array([object()], object), data=np.zeros(3))
    with pytest.raises(jm.ParseError, match="holds no tensor"):
        ttnn.load_tensor(tmp_path / "evil.npz")
    ttnn.dump_tensor(bad, random_tensor(device, X))
    with pytest.raises(jm.MeshMismatchError, match=r"\[2, 4\], the device is \[4, 2\]"):
        ttnn.load_tensor(bad, device=ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(4, 2)))
    with pytest.raises(jm.ArgumentTypeError, match="takes a tensor"):
        ttnn.dump_tensor(bad, "x")


# --- under the name of the real one ----------------------------------------------------------------------------------

EMITTED = """
import ttnn

def forward(arg, device):
  arg_0, arg_1 = arg[0], arg[1]
  MC = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None)
  CFG = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True)
  FULL = ttnn.MeshShape([2, 4])
  c = ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(1)], FULL)
  m = ttnn.create_mesh_mapper(device, c)
  x = ttnn.distribute_tensor(arg_0, mapper=m)
  ttnn.deallocate(arg_0, False)
  x = ttnn.to_layout(ttnn.to_device(x, device=device, memory_config=MC), ttnn.Layout.TILE, None, memory_config=MC)
  c = ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(0)], FULL)
  m = ttnn.create_mesh_mapper(device, c)
  w = ttnn.distribute_tensor(arg_1, mapper=m)
  w = ttnn.to_layout(ttnn.to_device(w, device=device, memory_config=MC), ttnn.Layout.TILE, None, memory_config=MC)
  p = ttnn.matmul(x, w, transpose_a=False, transpose_b=False, memory_config=MC, dtype=ttnn.DataType.FLOAT32,
                  program_config=None, activation=None, compute_kernel_config=CFG)
  ttnn.deallocate(x, False)
  ttnn.deallocate(w, False)
  one = ttnn.Tensor([1.0], [1, 1], ttnn.DataType.FLOAT32, ttnn.Layout.TILE, device, memory_config=MC)
  p = ttnn.reshape(p, [1, 1, 4, 2], memory_config=MC)
  p = ttnn.all_reduce(input_tensor=p, cluster_axis=1, subdevice_id=None, memory_config=MC, num_links=None,
                      topology=None)
  p = ttnn.add(ttnn.reshape(p, [4, 2], memory_config=MC), one, dtype=ttnn.DataType.FLOAT32, memory_config=MC)
  p = ttnn.from_device(ttnn.to_layout(p, ttnn.Layout.ROW_MAJOR, None, memory_config=MC))
  c = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0], ttnn.MeshShape([1])))
  out = ttnn.aggregate_tensor(p, composer=c)
  ttnn.deallocate(p, False)
  return [out]
"""


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    module = types.ModuleType("emitted")
    exec(compile(EMITTED, "main.py", "exec"), module.__dict__)
    return module.forward


def test_an_emitted_file_runs(emitted: Any, device: ttnn.MeshDevice) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((4, 8), (8, 2)))
    (out,) = emitted([x, w], device)
    assert same_bits(out, x @ w + 1)
    assert x.shape == (4, 8)
    given = [helpers.from_numpy(x), helpers.from_numpy(w)]
    assert same_bits(emitted(given, device)[0], x @ w + 1)
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        emitted(given, device)


def test_an_emitted_file_is_traced(emitted: Any, device: ttnn.MeshDevice) -> None:
    """The same statements inside a program: every op is one of the program, and means the same."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((4, 8), (8, 2)))
    function = jm.jit(lambda a, b: emitted([a, b], device)[0], mesh=device.mesh)
    assert same_bits(function(x, w), x @ w + 1)
    names = [e.primitive.name for e in function.lower(x, w).jaxpr.eqns]
    assert names.count("distribute_tensor") == 2
    assert names.count("aggregate_tensor") == 1


def test_ops_are_differentiated_and_compiled(device: ttnn.MeshDevice) -> None:
    t = random_tensor(device, X)

    def loss(v: Any) -> Any:
        return ttnn.sum(ttnn.multiply(v, v)).data.sum()

    for function in (jax.grad(loss), jax.jit(jax.grad(loss))):
        gradient = function(t)
        assert isinstance(gradient, jm.MeshTensor)
        assert all(np.allclose(g, 2 * x) for g, x in zip(shards_of(gradient), shards_of(t), strict=True))


# --- what happened upstream ------------------------------------------------------------------------------------------


def test_nothing_reads_a_mesh_tensor_without_a_composer(device: ttnn.MeshDevice) -> None:
    """tt-mlir 9092: a tensor on several devices was read without a composer."""
    t = ttnn.to_device(np.ones(4, np.float32), device)
    for read in (helpers.to_numpy, np.asarray, jnp.asarray, ttnn.Tensor):
        with pytest.raises((jm.ResidencyError, jm.VerifyError)):
            read(t)


def test_partial_concat(device: ttnn.MeshDevice) -> None:
    """tt-metal 17343: composer dims [-1, 0] over the first column alone."""
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3)
    t = ttnn.distribute_tensor(x, mapper(device, S(1), R))
    config = ttnn.MeshComposerConfig([1, 0], ttnn.MeshShape(2, 1))
    assert same_bits(ttnn.aggregate_tensor(t, ttnn.create_mesh_composer(device, config)), x)
    wide = ttnn.MeshComposerConfig([-1, 0], ttnn.MeshShape(2, 1))
    joined = ttnn.aggregate_tensor(t, ttnn.create_mesh_composer(device, wide))
    assert same_bits(joined, np.concatenate([x[:, :1], x[:, 1:]], -1))


def test_a_dim_cut_by_mistake() -> None:
    """tt-metal PR 49865: Shard(0) of a tensor whose dim 0 is 1; the message says sizes and the rule."""
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 4))
    x = np.zeros((1, 32, 32, 16), np.float32)
    with pytest.raises(jm.VerifyError, match="4") as error:
        ttnn.distribute_tensor(x, mapper(device, R, S(0)))
    assert "dim 0" in str(error.value)
    assert ttnn.distribute_tensor(x, mapper(device, R, S(1))).shape == (1, 8, 32, 16)


def test_copies_over_another_shape_than_the_mesh(device: ttnn.MeshDevice) -> None:
    """tt-metal PR 39791: replicas are told apart by the distribution's coordinates, not the mesh's."""
    x = np.arange(16, dtype=np.float32)
    config = ttnn.MeshMapperConfig([S(0), R], ttnn.MeshShape(4, 2))
    t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, config))
    for k, shard in enumerate(shards_of(t)):
        assert same_bits(shard, x[4 * (k // 2) : 4 * (k // 2) + 4])
    assert list(t.tensor_topology().distribution_shape()) == [4, 2]


def test_one_placement_per_mesh_axis() -> None:
    """tt-metal 28755: on a 1x8 mesh the topology keeps both axes."""
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 8))
    t = ttnn.distribute_tensor(np.arange(8), mapper(device, R, S(0)))
    assert t.tensor_topology().placements() == [R, S(0)]
    assert list(t.tensor_topology().distribution_shape()) == [1, 8]
    assert t.tensor_topology().mesh_coords() == [ttnn.MeshCoordinate(c) for c in coordinates((1, 8))]
    with pytest.raises(jm.VerifyError, match="got 1 for 2 axes"):
        mapper(device, S(0))


# --- devices ---------------------------------------------------------------------------------------------------------


def test_devices(device: ttnn.MeshDevice) -> None:
    assert ttnn.get_num_devices() == len(jax.devices())
    assert list(ttnn.open_device(device_id=3).shape) == [1, 1]
    assert ttnn.open_device(device_id=3).get_device_ids() == [jax.devices()[3].id]
    inside = ttnn.open_mesh_device(ttnn.MeshShape(2, 2))
    ttnn.close_mesh_device(inside)
    with pytest.raises(jm.MeshError, match="closed"):
        ttnn.to_device(np.ones(3), inside)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    ttnn.set_fabric_config(None)
    with pytest.raises(jm.ArgumentTypeError, match="takes a FabricConfig"):
        ttnn.set_fabric_config("ring")


@pytest.mark.beyond
def test_a_closed_device_neither_computes_nor_takes_tensors(device: ttnn.MeshDevice) -> None:
    """Another device on the same mesh goes on, and what was on the closed one can be read."""
    own = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    there = mapper(own, S(0), R)
    x = np.ones((4, 4), np.float32)
    host = ttnn.distribute_tensor(x, there)
    t = ttnn.to_device(host, own)
    other = ttnn.to_device(ttnn.distribute_tensor(x, mapper(device, S(0), R)), device)
    made: list[Any] = [
        t, ttnn.distribute_tensor(x, there, own), ttnn.to_device(x, own), ttnn.ones([4], device=own), t + 1, -t,
        ttnn.exp(t), ttnn.to_layout(t, ttnn.TILE_LAYOUT), ttnn.to_memory_config(t, ttnn.L1_MEMORY_CONFIG),
        ttnn.typecast(t, ttnn.bfloat16), *ttnn.topk(t, 2), ttnn.Tensor([1.0], [1], ttnn.float32, device=own),
    ]  # fmt: skip
    ttnn.close_mesh_device(own)
    closed = r"the mesh device \[2, 4\] was closed with close_mesh_device"
    for tensor in made:
        for call in (lambda u: u + 1, lambda u: 1 - u, ttnn.exp, lambda u: ttnn.concat([u, u], 0)):
            with pytest.raises(jm.MeshError, match=closed):
                call(tensor)
    distributions: list[Any] = [
        lambda: ttnn.distribute_tensor(x, there), lambda: helpers.from_numpy(x, mesh_mapper=there),
        lambda: ttnn.to_device(host, own), lambda: mapper(own, S(0), R), lambda: other + t,
    ]  # fmt: skip
    for call in distributions:
        with pytest.raises(jm.MeshError, match=closed):
            call()
    assert shards_of(other + 1)[0].tolist() == [[2.0] * 4] * 2
    assert same_bits(shards_of(t)[0], x[:2])


@pytest.mark.parametrize(
    ("numbers", "dtype", "value"),
    [
        ([1, -2, 3], "UINT32", "-2"), ([300, 1], "UINT8", "300"), ([1 << 31], "INT32", "2147483648"),
        ([-1.5], "UINT8", "-1.5"), ([float("nan")], "INT32", "nan"), ([2.0**31], "INT32", "2147483648.0"),
        ([float("inf")], "UINT16", "inf"),
    ],
)  # fmt: skip
@pytest.mark.beyond
def test_numbers_do_not_go_round_the_end_of_a_type(numbers: list[Any], dtype: str, value: str) -> None:
    array, kind = np.asarray(numbers), ttnn.DataType[dtype]
    for made in (helpers.from_numpy, lambda a, dtype: ttnn.Tensor(a, dtype=dtype)):
        with pytest.raises(jm.VerifyError, match=rf"a tensor of {dtype.lower()} holds numbers from .*, got {value} in"):
            made(array, dtype=kind)
    assert helpers.from_numpy(np.array([1.75, -0.5]), dtype=ttnn.uint8).to_list() == [1, 0]
    assert helpers.from_numpy(np.array([255, 0]), dtype=ttnn.uint8).to_list() == [255, 0]
    assert helpers.from_numpy(np.array([2**64 - 1], np.uint64), dtype=ttnn.DataType.UINT64).to_list() == [2**64 - 1]
    assert helpers.from_numpy(np.array([True]), dtype=ttnn.int32).to_list() == [1]


def test_no_function_is_made_before_it_is_asked_for() -> None:
    code = (
        "import jaxmesh, sys; from jaxmesh.ttnn import functions; "
        "assert functions.op_function.cache_info().currsize == 0; "
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_types_that_were_seen_are_not_compiled_again(device: ttnn.MeshDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    t = random_tensor(device, (2, 3))
    want = ttnn.add(t, t, dtype=ttnn.float32, memory_config=MC)
    monkeypatch.setattr(execute, "_compile", None)
    again = ttnn.add(t, t, dtype=ttnn.float32, memory_config=ttnn.L1_MEMORY_CONFIG)
    assert again.memory_config() == ttnn.L1_MEMORY_CONFIG
    assert same_tensors(again, want)
    with pytest.raises(TypeError):
        ttnn.add(t, random_tensor(device, (7, 2, 3)))


def test_a_call_is_judged_also_after_another_function_made_it(device: ttnn.MeshDevice) -> None:
    x = ttnn.full([4, 8], 1.5, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=device)
    ttnn.clamp(x, x, x)
    assert ttnn.maximum(x, x).dtype == ttnn.bfloat8_b
