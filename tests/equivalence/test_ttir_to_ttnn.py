"""The pass to flat TTNN: every row of TTIR, every sequence of transfers, whole programs; the form of what it makes."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmesh as jm
from jaxmesh.dialects import ttir
from jaxmesh.dialects.op import Call, Trait
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.program import Op, Port, Program, Type
from tests.generators.drafts import Draft, freed, lowered, replicated
from tests.generators.flat_programs import flat_of, run_flat
from tests.generators.suite.all_programs import PROGRAMS, Entry
from tests.generators.ttir_cases import CASES
from tests.generators.ttir_cases.case import assert_close, expected

pytestmark = pytest.mark.slow(but_one_in=16)

PRINTED = [c for c in CASES if c.is_printed_in_ttnn and Trait.DECOMPOSED not in ttir.OPS[c.row].traits]
LOCAL = sorted({c.row for c in PRINTED})


@pytest.mark.parametrize("rows", [LOCAL[i : i + 8] for i in range(0, len(LOCAL), 8)], ids=lambda r: r[0])
def test_every_local_row(rows: list[str]) -> None:
    draft = Draft((2,))
    wanted: list[tuple[str, np.ndarray]] = []
    for case in (c for c in PRINTED if c.row in rows):
        rng = np.random.default_rng(zlib.crc32(case.name.encode()))
        devices = [[s.make(rng) for s in case.operands] for _ in range(2)]
        results = [expected(case, xs) for xs in devices]
        operands = [draft.operand(np.stack(pair)) for pair in zip(*devices, strict=True)]
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in case.attributes.items()}
        types = [(w.shape, w.dtype) for w in results[0]]
        for value in draft.many(f"ttir.{case.row}", operands, types, attributes):
            draft.result(value)
        wanted += [(case.name, np.stack(pair)) for pair in zip(*results, strict=True)]
    got = draft.run(lowered(draft.program))
    for (name, want), a in zip(wanted, got, strict=True):
        assert_close(name, a, want)


# --- between devices -------------------------------------------------------------------------------------------------

MESHES = [(2,), (4,), (1, 2), (2, 3), (2, 2, 2), (3, 1, 2)]
Exchange = tuple[str, dict[str, Any], np.ndarray, np.ndarray]
"""The op, its attributes, what the devices have, what they get."""


def of_devices(rng: np.random.Generator, mesh: Sequence[int], shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A tensor of its own for each device; floats hold what a clamp or a sum would spoil."""
    stacked = rng.integers(1, 100, (math.prod(mesh), *shape)).astype(dtype)
    if np.issubdtype(stacked.dtype, np.floating):
        places = rng.choice(stacked.size, 4, replace=False)
        stacked.reshape(-1)[places] = [np.nan, np.inf, -0.0, 1e30]
    return stacked


def a_permute(rng: np.random.Generator, mesh: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Exchange:
    x = of_devices(rng, mesh, (2, 3), rng.choice([np.float32, np.int32, np.bool_]))
    want = np.zeros_like(x)
    for source, target in pairs:
        want[target] = x[source]
    return "collective_permute", {"source_target_pairs": np.array(pairs, np.int64).reshape(-1, 2)}, x, want


def a_broadcast(rng: np.random.Generator, mesh: Sequence[int], groups: Sequence[Sequence[int]]) -> Exchange:
    x = of_devices(rng, mesh, (3,), rng.choice([np.float32, np.int32]))
    want = np.zeros_like(x)
    for group in groups:
        want[list(group)] = x[group[0]]
    return "collective_broadcast", {"replica_groups": np.array(groups)}, x, want


def an_all_to_all(rng: np.random.Generator, mesh: Sequence[int], groups: Sequence[Sequence[int]]) -> Exchange:
    count = len(groups[0])
    split, join = (int(rng.integers(-2, 2)) for _ in range(2))
    x = of_devices(rng, mesh, (2 * count, 3 * count), rng.choice([np.float32, np.int32]))
    parts = np.split(x, count, axis=split % 2 + 1)
    want: list[Any] = [None] * len(x)
    for group in groups:
        for place, device in enumerate(group):
            want[device] = np.concatenate([parts[place][member] for member in group], join)
    attributes = {"split_dim": split, "concat_dim": join, "split_count": count, "replica_groups": np.array(groups)}
    return "all_to_all", attributes, x, np.stack(want)


def equal_groups(rng: np.random.Generator, count: int, size: int, number: int) -> list[list[int]]:
    order = rng.permutation(count)
    return [[int(d) for d in order[i * size : (i + 1) * size]] for i in range(number)]


def exchanges(mesh: Sequence[int]) -> list[Exchange]:
    """Every kind of exchange: along each axis, among all, among any, of some only, of none."""
    rng, count = np.random.default_rng(list(mesh)), math.prod(mesh)
    made = [a_permute(rng, mesh, []), a_permute(rng, mesh, [(i, i) for i in range(0, count, 2)])]
    for size in {1, count // 2, count - 1, count}:
        sources, targets = rng.permutation(count)[:size], rng.permutation(count)[:size]
        made.append(a_permute(rng, mesh, list(zip(sources.tolist(), targets.tolist(), strict=True))))
    ids = np.arange(count).reshape(mesh)
    for axis, size in enumerate(mesh):
        rows = np.moveaxis(ids, axis, -1).reshape(-1, size)
        made.append(a_permute(rng, mesh, [(int(r[i]), int(r[(i + 1) % size])) for r in rows for i in range(size)]))
        made.append(a_broadcast(rng, mesh, rows[:, ::-1].tolist()))
        made.append(an_all_to_all(rng, mesh, rows.tolist()))
    for size in [n for n in range(1, count + 1) if count % n == 0 and n * count <= 36]:
        made.append(an_all_to_all(rng, mesh, equal_groups(rng, count, size, count // size)))
        made.append(a_broadcast(rng, mesh, equal_groups(rng, count, size, max(count // size - 1, 1))))
    return made


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m)))
def test_exchanges(mesh: tuple[int, ...]) -> None:
    draft, cases = Draft(mesh), exchanges(mesh)
    for name, attributes, x, want in cases:
        draft.result(draft.add(f"ttir.{name}", [draft.operand(x)], want.shape[1:], want.dtype, **attributes))
    made = lowered(draft.program)
    for op in made.ops:
        if op.name == "ttnn.point_to_point":
            sender, receiver = op.attributes["sender_coord"], op.attributes["receiver_coord"]
            assert sum(a != b for a, b in zip(sender, receiver, strict=True)) == 1
    for (name, attributes, _, want), got in zip(cases, draft.run(made), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {attributes}")
        assert got.tobytes() == want.tobytes()


# --- along an axis ---------------------------------------------------------------------------------------------------


def along(mesh: Sequence[int], axis: int, x: np.ndarray) -> np.ndarray:
    """For each device what stands along an axis: (devices, places along the axis, ..)."""
    ids = np.arange(math.prod(mesh)).reshape(mesh)
    rows = [np.moveaxis(ids, axis, -1)[tuple(np.delete(np.unravel_index(d, mesh), axis))] for d in range(ids.size)]
    return np.stack([x[row] for row in rows])


def reductions(mesh: Sequence[int]) -> list[Exchange]:
    rng, made = np.random.default_rng(list(mesh)), []
    """Sums: a program has other reductions as gathers. Truth values are added as `or`, and scattered alone."""
    for axis, rank in itertools.product(range(len(mesh)), [0, 1, 2, 5] if len(mesh) < 3 else [2]):
        shape = (4 * mesh[axis],) * min(rank, 1) + (2,) * (rank - 1)
        for dtype in (np.float32, np.int32, np.bool_):
            x = rng.integers(-3, 4, (math.prod(mesh), *shape)).astype(dtype)
            whole = along(mesh, axis, x).sum(1).astype(dtype)
            said = {"reduce_type": "sum", "cluster_axis": axis}
            if dtype is not np.bool_:
                made.append(("all_reduce", said, x, whole))
            if rank:
                places = [np.unravel_index(d, mesh)[axis] for d in range(math.prod(mesh))]
                want = np.stack([np.split(w, mesh[axis], 0)[p] for w, p in zip(whole, places, strict=True)])
                made.append(("reduce_scatter", {**said, "scatter_dim": 0}, x, want))
    return made


def pieces(mesh: Sequence[int]) -> list[Exchange]:
    rng, made = np.random.default_rng(list(mesh)), []
    count = math.prod(mesh)
    for axis, shape in itertools.product(range(len(mesh)), [(6,), (6, 12), (1, 6, 2)]):
        x = of_devices(rng, mesh, shape, np.float32)
        places = [int(np.unravel_index(d, mesh)[axis]) for d in range(count)]
        for dim in {-1, 0}:
            rows = along(mesh, axis, x)
            want = np.stack([np.concatenate(list(row), dim) for row in rows])
            made.append(("all_gather", {"all_gather_dim": dim, "cluster_axis": axis}, x, want))
        dim = 0 if shape[0] == 6 else 1
        want = np.stack([np.split(v, mesh[axis], dim)[p] for v, p in zip(x, places, strict=True)])
        made.append(("mesh_partition", {"dim": dim, "cluster_axis": axis}, x, want))
    return made


@pytest.mark.parametrize("mesh", [(2,), (2, 3), (3, 1, 2)], ids=lambda m: "x".join(map(str, m)))
@pytest.mark.parametrize("make", [reductions, pieces])
def test_along_axes(mesh: tuple[int, ...], make: Any) -> None:
    draft, cases = Draft(mesh), make(mesh)
    for name, attributes, x, want in cases:
        draft.result(draft.add(f"ttir.{name}", [draft.operand(x)], want.shape[1:], want.dtype, **attributes))
    made = lowered(draft.program)
    for op in made.ops:
        if op.name in ("ttnn.all_reduce", "ttnn.reduce_scatter"):
            assert op.attributes["reduce_type"] == "sum"
            assert len(made.types[op.results[0]].shape) >= 4
            assert op.attributes.get("scatter_dim", 0) >= 0
    for (name, attributes, _, want), got in zip(cases, draft.run(made), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {attributes}")


# --- any form of what is rewritten -----------------------------------------------------------------------------------

Sample = tuple[str, list[np.ndarray], dict[str, Any]]


def type_of(name: str, operands: Sequence[np.ndarray], attributes: dict[str, Any]) -> Type:
    """The type of what the row of TTIR gives."""
    row, declared = ttir.OPS[name].in_form_of(attributes, 1), jax.ShapeDtypeStruct((), operands[0].dtype)
    said = {a.name: a.default for a in row.attributes} | {"operandSegmentSizes": None} | attributes
    made = jax.eval_shape(lambda *xs: row.meaning(Call(row, xs, said, (declared,), {"x": 1}, name)), *operands)
    return Type(made.shape, operands[0].dtype)


def a_gather(rng: np.random.Generator) -> Sample:
    shape = tuple(rng.integers(1, 5, rng.integers(1, 5)).tolist())
    dims = rng.permutation(len(shape)).tolist()
    along = int(rng.integers(0, min(len(dims), 2) + 1)) if rng.random() < 0.4 else 0
    batching, rest = sorted(dims[:along]), dims[along:]
    mapped = rest[: rng.integers(0, len(rest) + 1)]
    collapsed = [d for d in rest if rng.random() < 0.4]
    whole = [d for d in rest if d not in mapped and rng.random() < 0.6]
    sizes = tuple(
        1 if d in collapsed or d in batching else n if d in whole else int(rng.integers(1, n + 1))
        for d, n in enumerate(shape)
    )
    batch = [shape[d] for d in batching] + rng.integers(1, 4, rng.integers(0, 3)).tolist()
    order = rng.permutation(len(batch)).tolist()
    batch = [batch[i] for i in order]
    at = len(batch) if batching or rng.random() < 0.5 else int(rng.integers(0, len(batch) + 1))
    lone = len(mapped) == 1 and rng.random() < 0.4
    kind = rng.choice([np.int32, np.uint32, np.int8])
    vectors = batch if lone else [*batch[:at], len(mapped), *batch[at:]]
    starts = rng.integers(0 if kind is np.uint32 else -3, 7, vectors).astype(kind)
    starts.reshape(-1)[:1] = np.iinfo(kind).max
    kept = len(shape) - len(collapsed) - len(batching)
    offsets = sorted(rng.permutation(kept + len(batch))[:kept].tolist())
    attributes = {
        "offset_dims": tuple(offsets), "collapsed_slice_dims": tuple(sorted(collapsed)),
        "operand_batching_dims": tuple(batching), "start_index_map": tuple(mapped), "slice_sizes": sizes,
        "start_indices_batching_dims": tuple(order.index(i) for i in range(len(batching))),
        "index_vector_dim": len(batch) if lone else at,
    }  # fmt: skip
    return "gather", [rng.normal(size=shape).astype(np.float32), starts], attributes


def laid_out(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Whole numbers whose dims of these sizes stand in any order, and where each of them stands."""
    places = rng.permutation(len(sizes)).tolist()
    return np.transpose(rng.integers(-4, 5, sizes), np.argsort(places)).astype(np.float32), places


def a_convolution(rng: np.random.Generator) -> Sample:
    space = int(rng.integers(0, 4))
    groups, batches = [(1, 1), (2, 1), (1, 2)][rng.integers(0, 3)]
    size, kernel = rng.integers(2, 6, space), rng.integers(1, 4, space)
    stride, gaps, dilation = rng.integers(1, 3, (3, space))
    edges = rng.integers(-1, 4, (space, 2))
    if ((size - 1) * gaps + 1 + edges.sum(1) < dilation * (kernel - 1) + 1).any():
        return a_convolution(rng)
    inputs, outs = int(rng.integers(1, 3)), 2 * int(rng.integers(1, 3))
    x, at_x = laid_out(rng, [2 * int(rng.integers(1, 3)), groups * inputs, *size])
    w, at_w = laid_out(rng, [outs, inputs, *kernel])
    at_out = rng.permutation(space + 2).tolist()
    sides = (("input", "batch", "feature", at_x), ("kernel", "output_feature", "input_feature", at_w))
    layout: dict[str, Any] = {}
    for side, first, second, at in (*sides, ("output", "batch", "feature", at_out)):
        layout |= {f"{side}_{first}": at[0], f"{side}_{second}": at[1], f"{side}_spatial_dimensions": tuple(at[2:])}
    attributes = {
        "window_strides": tuple(stride.tolist()), "padding": tuple(edges.reshape(-1).tolist()),
        "input_dilation": tuple(gaps.tolist()), "weight_dilation": tuple(dilation.tolist()),
        "window_reversal": tuple(rng.integers(0, 2, space).astype(bool).tolist()), "convolution_layout": layout,
        "feature_group_count": groups, "batch_group_count": batches,
    }  # fmt: skip
    return "convolution", [x, w], attributes


def a_pool(rng: np.random.Generator) -> Sample:
    pairs = {name: tuple(rng.integers(1, 3, 2).tolist()) for name in ("kernel", "stride", "dilation")}
    name = str(rng.choice(["avg_pool2d", "max_pool2d"]))
    own = {"count_include_pad": bool(rng.integers(0, 2))} if name == "avg_pool2d" else {}
    edges = {"padding": tuple(rng.integers(0, 2, 4).tolist()), "ceil_mode": bool(rng.integers(0, 2))}
    return name, [rng.integers(-9, 9, (2, *rng.integers(4, 8, 2), 3)).astype(np.float32)], {**pairs, **edges, **own}


def a_pad(rng: np.random.Generator) -> Sample:
    shape = rng.integers(1, 5, rng.integers(1, 4))
    edges = rng.integers(-3, 4, (len(shape), 2))
    if (shape + edges.sum(1) < 0).any():
        return a_pad(rng)
    x = rng.integers(0, 5, shape).astype(rng.choice([np.float32, np.uint8, np.int32]))
    return "pad", [x], {"padding": tuple(edges.reshape(-1).tolist()), "value": int(rng.integers(0, 9))}


@pytest.mark.parametrize("make", [a_gather, a_convolution], ids=lambda m: m.__name__)
def test_any_former_form(make: Any) -> None:
    """Ops of earlier versions are lowered from the equations of their meaning."""
    mesh = jm.make_mesh((1,), ("x",))
    for seed in range(20):
        name, operands, attributes = make(np.random.default_rng(seed))
        row = ttir.OPS[name].in_form_of(attributes, 1)
        kind = type_of(name, operands, attributes)
        result = jax.ShapeDtypeStruct(kind.shape, kind.dtype)

        def meaning(*xs: Any, row: Any = row, attributes: Any = attributes, result: Any = result) -> Any:
            return evaluate(row, xs, attributes, [result], {"x": 1})[0]

        made = lowered(flat_of(jm.jit(meaning, mesh=mesh).trace(*operands).lower(), "ttnn"))
        (got,) = run_flat(made, mesh, *operands)
        np.testing.assert_allclose(got, meaning(*operands), rtol=1e-5, atol=1e-5, err_msg=f"{seed}: {attributes}")


@pytest.mark.parametrize("make", [a_pool, a_pad], ids=lambda m: m.__name__)
def test_any_form(make: Any) -> None:
    program, given = Program("f", {"x": 1}), []
    for seed in range(20):
        name, operands, attributes = make(np.random.default_rng(seed))
        values = tuple(program.new(Type(x.shape, x.dtype)) for x in operands)
        program.arguments += [Port(v, False) for v in values]
        given += operands
        result = program.new(type_of(name, operands, attributes))
        program.ops.append(Op(f"ttir.{name}", values, (result,), attributes, f"{seed}"))
        program.results.append(Port(result, False))
    mesh = jm.make_mesh((1,), ("x",))
    wanted, got = run_flat(program, mesh, *given), run_flat(lowered(replicated(program)), mesh, *given)
    for op, a, b in zip(program.ops, got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"{op.line}: {op.name} {op.attributes}")


# --- whole programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", PROGRAMS[::7], ids=lambda e: e.name)
def test_programs_of_the_suite(entry: Entry) -> None:
    args = entry.args()
    program = flat_of(entry.lowered, "ttnn")
    leaves = jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    made = lowered(program)
    entry.check(run_flat(made, entry.mesh, *leaves))
    freed(made)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "uint32"])
def test_the_remainder_of_jax_has_the_sign_of_the_dividend(dtype: str) -> None:
    kind = np.dtype(getattr(jnp, dtype))
    a, b = np.array([-7, 7, -7, 7, 6, -6, 0, 5], np.int32), np.array([3, -3, -3, 3, -3, 3, -2, -9], np.int32)
    a, b = (x.astype(kind) for x in ((a, b) if kind.kind != "u" else (abs(a), abs(b))))
    if dtype == "int32":
        a[4:], b[4:] = -(2**31), [-1, 2**31 - 1, 3, -(2**31)]
    lowered = jm.jit(lambda a, b: (lax.rem(a, b), jnp.remainder(a, b)), mesh=jm.make_mesh((2,), ("x",))).lower(a, b)
    rest, modulo = (np.asarray(x) for x in jm.from_mlir(lowered.as_text()).lower().compile()(a, b))
    want = np.fmod(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(rest.astype(np.float64), want)
    assert kind.kind in "iu" or (np.signbit(rest) == np.signbit(want)).all()
    np.testing.assert_array_equal(modulo.astype(np.float64), np.remainder(a.astype(np.float64), b.astype(np.float64)))
