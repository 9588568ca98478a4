"""The pass to flat TTNN: every row of TTIR, every sequence of transfers, whole programs; the form of what it makes."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects import ttir
from jaxmesh.dialects.op import Call
from jaxmesh.dialects.program import Op, Port, Program, Type, Value
from jaxmesh.errors import MissingRuleError, ResidencyError, VerifyError
from jaxmesh.passes.flatten import collectives as collectives
from jaxmesh.passes.ttir_to_ttnn.driver import to_ttnn
from jaxmesh.passes.verify_program import verify_flat
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementShard
from tests.generators.flat_programs import flat_of, run_flat
from tests.generators.oracles import calls_made
from tests.generators.suite.all_programs import PROGRAMS, Entry
from tests.unit import test_ops, test_ops_neural
from tests.unit.test_ops import close, expected

pytestmark = pytest.mark.part(2)

CASES = [*test_ops.CASES, *test_ops_neural.CASES]
LOCAL = sorted({c.row for c in CASES})


def lowered(program: Program) -> Program:
    """The flat TTNN program, proved to keep its promises."""
    made = to_ttnn(program)
    verify_flat(made)
    return made


class Draft:
    """A program of ops on shards: every device has an own copy of each operand, stacked in a full array."""

    def __init__(self, mesh: Sequence[int]) -> None:
        self.mesh = tuple(mesh)
        self.count = math.prod(mesh)
        self.program = Program("f", dict(zip("wzyx"[-len(mesh) :], mesh, strict=True)))
        self.given: list[np.ndarray] = []

    def operand(self, stacked: np.ndarray) -> Value:
        """A local tensor of each device, from an array stacked over all devices."""
        program, local = self.program, stacked.shape[1:]
        whole = (*self.mesh, *local)
        self.given.append(stacked.reshape(whole))
        full = program.new(Type(whole, stacked.dtype))
        program.arguments.append(Port(full, False, f"[{len(self.given)}]"))
        config = MeshMapperConfig([PlacementShard(i) for i in range(len(self.mesh))], self.mesh)
        piece = self.add(
            "ttnn.distribute_tensor", [full], [1] * len(self.mesh) + list(local), stacked.dtype, mapper_config=config
        )
        return self.add("ttir.reshape", [piece], local, stacked.dtype, shape=local)

    def add(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: Any, /, **attrs: Any
    ) -> Value:
        return self.many(name, operands, [(tuple(shape), dtype)], attrs)[0]

    def many(
        self, name: str, operands: Sequence[Value | None], types: Sequence[tuple[Any, Any]], attrs: dict[str, Any]
    ) -> tuple[Value, ...]:
        made = tuple(self.program.new(Type(tuple(s), np.dtype(t))) for s, t in types)
        self.program.ops.append(Op(name, tuple(operands), made, attrs))
        return made

    def result(self, value: Value) -> None:
        """A local tensor of each device as a result, stacked over the mesh."""
        kind = self.program.types[value]
        wide = self.add(
            "ttir.reshape",
            [value],
            [1] * len(self.mesh) + list(kind.shape),
            kind.dtype,
            shape=(1,) * len(self.mesh) + kind.shape,
        )
        config = MeshComposerConfig(range(len(self.mesh)), self.mesh)
        whole = self.add("ttnn.aggregate_tensor", [wide], (*self.mesh, *kind.shape), kind.dtype, composer_config=config)
        self.program.results.append(Port(whole, False))

    def run(self, program: Program) -> list[np.ndarray]:
        mesh = jm.make_mesh(self.mesh, tuple(self.program.mesh))
        outs = [np.asarray(x) for x in run_flat(program, mesh, *self.given)]
        return [x.reshape(self.count, *x.shape[len(self.mesh) :]) for x in outs]


@pytest.mark.parametrize("rows", [LOCAL[i : i + 8] for i in range(0, len(LOCAL), 8)], ids=lambda r: r[0])
def test_every_local_row(rows: list[str]) -> None:
    draft = Draft((2,))
    wanted: list[tuple[str, np.ndarray]] = []
    for case in (c for c in CASES if c.row in rows):
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
        close(name, a, want)


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

REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}


def along(mesh: Sequence[int], axis: int, x: np.ndarray) -> np.ndarray:
    """For each device what stands along an axis: (devices, places along the axis, ..)."""
    ids = np.arange(math.prod(mesh)).reshape(mesh)
    rows = [np.moveaxis(ids, axis, -1)[tuple(np.delete(np.unravel_index(d, mesh), axis))] for d in range(ids.size)]
    return np.stack([x[row] for row in rows])


def reduced(kind: str, rows: np.ndarray) -> np.ndarray:
    """Truth values are added as `or`, multiplied as `and`, and the mean of whole numbers is cut towards zero."""
    if rows.dtype == np.bool_:
        return (np.any if kind in ("sum", "max") else np.all)(rows, axis=1)
    made = REDUCE[kind](rows, axis=1)
    return np.trunc(made).astype(rows.dtype)


def reductions(mesh: Sequence[int]) -> list[Exchange]:
    rng, made = np.random.default_rng(list(mesh)), []
    forms = itertools.product(range(len(mesh)), [0, 1, 2, 5] if len(mesh) < 3 else [2], REDUCE)
    for axis, rank, kind in forms:
        shape = (4 * mesh[axis],) * min(rank, 1) + (2,) * (rank - 1)
        dtype = [np.float32, np.int32, np.bool_][int(rng.integers(0, 3))]
        x = rng.integers(-3, 4, (math.prod(mesh), *shape)).astype(dtype)
        x = x * mesh[axis] if kind == "mean" and dtype is not np.bool_ else x
        whole = reduced(kind, along(mesh, axis, x.astype(dtype))).astype(dtype)
        name = "all_reduce_async" if rank == 2 else "all_reduce"
        said = {"reduce_type": kind, "cluster_axis": axis}
        made.append((name, said, x.astype(dtype), whole))
        for dim in {0, -rank} if rank else ():
            places = [np.unravel_index(d, mesh)[axis] for d in range(math.prod(mesh))]
            want = np.stack([np.split(w, mesh[axis], 0)[p] for w, p in zip(whole, places, strict=True)])
            made.append(("reduce_scatter", {**said, "scatter_dim": dim}, x.astype(dtype), want))
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
        dim = -len(shape) if shape[0] == 6 else 1
        want = np.stack([np.split(v, mesh[axis], dim)[p] for v, p in zip(x, places, strict=True)])
        made.append(("mesh_partition", {"dim": dim, "cluster_axis": axis}, x, want))
    x = of_devices(rng, mesh, (2, 3 * count), np.float32)
    want = np.stack([np.split(v, count, 1)[d] for d, v in enumerate(x)])
    return [*made, ("mesh_partition", {"dim": 1}, x, want)]


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


def test_norms_over_an_axis() -> None:
    draft = Draft((2, 3))
    rng = np.random.default_rng(0)
    x, residual = rng.normal(size=(2, 6, 4, 5)).astype(np.float32)
    weight, bias = rng.normal(size=(2, 6, 1, 5)).astype(np.float32)
    rows = along((2, 3), 1, x + residual)
    square = np.mean(rows**2, axis=(1, 3))[:, :, None]
    centred = x - np.mean(along((2, 3), 1, x), axis=(1, 3))[:, :, None]
    spread = np.mean(along((2, 3), 1, centred) ** 2, axis=(1, 3))[:, :, None]
    said = {"cluster_axis": 1, "epsilon": 0.5}
    values = [draft.operand(v) for v in (x, weight, bias, residual)]
    for name, operands in (
        ("distributed_rms_norm", [values[0], values[1], values[3]]),
        ("distributed_layer_norm", [values[0], None, values[2], None]),
    ):
        draft.result(draft.add(f"ttir.{name}", operands, (4, 5), np.float32, **said))
    got = draft.run(lowered(draft.program))
    np.testing.assert_allclose(got[0], (x + residual) / np.sqrt(square + 0.5) * weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], centred / np.sqrt(spread + 0.5) + bias, rtol=1e-5, atol=1e-5)


# --- any form of what is rewritten -----------------------------------------------------------------------------------

Sample = tuple[str, list[np.ndarray], dict[str, Any]]


def type_of(name: str, operands: Sequence[np.ndarray], attributes: dict[str, Any]) -> Type:
    """The type of what the row of TTIR gives."""
    row, declared = ttir.OPS[name], jax.ShapeDtypeStruct((), operands[0].dtype)
    said = {a.name: a.default for a in row.attributes} | {"operandSegmentSizes": None} | attributes
    made = jax.eval_shape(lambda *xs: row.meaning(Call(row, xs, said, (declared,), {"x": 1})), *operands)
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


def a_product(rng: np.random.Generator) -> Sample:
    batch, contracted, left, right = (int(n) for n in rng.integers(0, 3, 4))
    names = iter(range(batch + contracted + left + right))
    groups = [[next(names) for _ in range(n)] for n in (batch, contracted, left, right)]
    sizes = rng.integers(1, 4, sum(map(len, groups)))
    dtype = rng.choice([np.float32, np.int32])
    sides: dict[str, list[int]] = {}
    for side, free in (("lhs", groups[2]), ("rhs", groups[3])):
        sides[side] = rng.permutation([*groups[0], *groups[1], *free]).astype(int).tolist()
    attributes = {
        f"{kind}_dims_{side}": tuple(dims.index(n) for n in group)
        for side, dims in sides.items()
        for kind, group in (("batch", groups[0]), ("contract", groups[1]))
    }
    return "dot_general", [rng.integers(-4, 5, sizes[dims]).astype(dtype) for dims in sides.values()], attributes


def a_pad(rng: np.random.Generator) -> Sample:
    shape = rng.integers(1, 5, rng.integers(1, 4))
    edges = rng.integers(-3, 4, (len(shape), 2))
    if (shape + edges.sum(1) < 0).any():
        return a_pad(rng)
    x = rng.integers(0, 5, shape).astype(rng.choice([np.float32, np.uint8, np.int32]))
    return "pad", [x], {"padding": tuple(edges.reshape(-1).tolist()), "value": int(rng.integers(0, 9))}


@pytest.mark.parametrize("make", [a_gather, a_convolution, a_pool, a_product, a_pad], ids=lambda m: m.__name__)
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
    wanted, got = run_flat(program, mesh, *given), run_flat(lowered(program), mesh, *given)
    for op, a, b in zip(program.ops, got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"{op.line}: {op.name} {op.attributes}")


# --- whole programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", PROGRAMS[::7], ids=lambda e: e.name)
def test_programs_of_the_suite(entry: Entry) -> None:
    args = entry.args()
    program = flat_of(jm.jit(entry.function, mesh=entry.mesh).trace(*args).lower(), "ttnn")
    leaves = jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    made = lowered(program)
    entry.check(run_flat(made, entry.mesh, *leaves))
    freed(made)


def names_of(program: Program) -> list[str]:
    return [op.name.removeprefix("ttnn.") for op in program.ops if op.name != "ttnn.deallocate"]


def flat(function: Any, *args: Any, sizes: Sequence[int] = (2, 4)) -> Program:
    mesh = jm.make_mesh(tuple(sizes), ("y", "x"))
    return lowered(flat_of(jm.jit(function, mesh=mesh).trace(*args).lower(), "ttnn"))


def test_form_of_a_sharded_program() -> None:
    x = np.ones((4, 8), np.float32)
    made = flat(lambda x: jm.shard_to_full(jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))), P("y", "x")), x)
    assert names_of(made) == [
        "get_device", "distribute_tensor", "to_device", "to_layout", "exp", "to_layout", "from_device",
        "aggregate_tensor",
    ]  # fmt: skip
    assert made.ops[0].attributes == {"mesh_shape": (2, 4)}
    assert sum(op.name == "ttnn.deallocate" for op in made.ops) == 7


def freed(made: Program) -> list[tuple[str, bool]]:
    """The ops whose results are deallocated, and whether by force; walks the buffers one by one.

    A buffer is a list of the values in it. Each is given back once, behind its last reader, by force where it has more
    than one value; what is returned, and arguments that nothing reads, are not given back.
    """
    maker = {v: op.name.removeprefix("ttnn.") for op in made.ops for v in op.results}
    buffers = [[a.value] for a in made.arguments]
    gone: list[list[int]] = []
    seen: list[tuple[str, bool]] = []

    def buffer(value: int) -> list[int]:
        (found,) = [b for b in buffers if value in b]
        assert not any(found is g for g in gone), value
        return found

    for op in made.ops:
        held = [buffer(v) for v in op.operands if v is not None]
        if op.name == "ttnn.deallocate":
            gone.append(held[0])
            seen.append((maker.get(op.operands[0], "argument"), op.attributes["force"]))
            continue
        shared = None
        if op.name == "ttnn.reshape":
            before, after = ((1, 1, *made.types[v].shape) for v in (op.operands[0], op.results[0]))
            tiles = made.types[op.operands[0]].tile
            whole = before[-2] == after[-2] or before[-2] % 32 == after[-2] % 32 == 0
            shared = held[0] if before[-1] == after[-1] and (whole or not tiles) else None
        elif op.name in ("ttnn.fill_cache", "ttnn.update_cache"):
            shared = held[0]
        elif op.name == "ttnn.point_to_point" and len(held) > 1:
            shared = held[1]
        for value in op.results:
            shared.append(value) if shared is not None else buffers.append([value])
    returned = [buffer(r.value) for r in made.results]
    read = {v for op in made.ops for v in op.operands}
    for b in buffers:
        tensor = made.types[b[0]].kind == "tensor"
        kept = any(b is r for r in returned) or (maker.get(b[0]) is None and not read & {*b})
        assert any(b is g for g in gone) == (tensor and not kept), b
    sizes = {(maker.get(v, "argument"), len(b) > 1) for b in buffers for v in b}
    assert {*seen} <= sizes
    return seen


def test_views_of_one_buffer_are_deallocated_once_by_force() -> None:
    x = np.ones((64, 128), np.float32)

    def reduced(x: Any) -> Any:
        y = jax.lax.psum(jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))), "x")
        tiles = y.reshape(1, 32, 32)  # A view: the tiles stay whole.
        moved = y.reshape(16, 64)  # None: elements move.
        return jm.shard_to_full(tiles[0] * 2, P("y")), jm.shard_to_full(moved, P("y"))

    seen = freed(flat(reduced, x))
    assert ("reshape", True) in seen
    assert ("argument", False) in seen
    assert sum(force for _, force in seen) >= 2


def test_a_view_that_is_returned_keeps_its_buffer() -> None:
    x = np.ones((64, 128), np.float32)
    made = flat(lambda x: jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))).reshape(1, 32, 32), x)
    assert names_of(made)[-2:] == ["exp", "reshape"]
    assert ("exp", True) not in freed(made)
    assert ("exp", False) not in freed(made)


def test_a_shard_that_is_only_returned_stays_on_the_host() -> None:
    made = flat(lambda x: jm.full_to_shard(x, P("y")), np.ones((4, 8), np.float32))
    assert names_of(made) == ["get_device", "distribute_tensor"]
    assert made.types[made.results[0].value] == Type((2, 8), np.dtype(np.float32), host=True)


def test_full_tensors_are_computed_on_the_devices_and_reshaped_on_the_host() -> None:
    made = flat(lambda x: (x.reshape(8, 4), x * x), np.ones((4, 8), np.float32))
    names = names_of(made)
    assert names.count("reshape") == 1
    assert names.count("distribute_tensor") == 1
    assert names.count("aggregate_tensor") == 1
    (reshape,) = (op for op in made.ops if op.name == "ttnn.reshape")
    assert made.types[reshape.results[0]].host


def test_a_constant_is_made_where_it_is_needed() -> None:
    table = np.arange(8, dtype=np.float32)

    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(table, P("x")) + jm.full_to_shard(x, P("x")), P("x")), x + table

    made = flat(f, table)
    places = [made.types[op.results[0]].host for op in made.ops if op.name == "ttnn.constant"]
    assert sorted(places) == [False, True]
    for op in made.ops:
        if op.name == "ttnn.constant":
            assert len(op.operands) == (0 if made.types[op.results[0]].host else 1)


def test_what_works_in_place_gets_a_copy_of_what_is_not_its_own() -> None:
    kinds = [Type((1, 2, 4, 8), np.dtype(np.float32)), Type((1, 2, 1, 8), np.dtype(np.float32))]
    kinds.append(Type((1,), np.dtype(np.int32)))
    program = Program("f", {"y": 1, "x": 2})
    cache, new, at = (program.new(k) for k in kinds)
    program.arguments = [Port(v, True) for v in (cache, new, at)]
    first, second = program.new(kinds[0]), program.new(kinds[0])
    program.ops = [
        Op("ttir.update_cache", (cache, new, at), (first,), {"batch_offset": 0}),
        Op("ttir.fill_cache", (first, new), (second,), {"batch_offset": 0}),
    ]
    program.results = [Port(second, True)]
    assert names_of(lowered(program)) == ["assign", "update_cache", "fill_cache"]
    program.results = [Port(first, True), Port(second, True)]
    assert names_of(lowered(program)) == ["assign", "update_cache", "assign", "fill_cache"]


@pytest.mark.parametrize(
    ("again", "want"), [(False, ["reshape", "fill_cache"]), (True, ["reshape", "assign", "fill_cache"])]
)
def test_what_works_in_place_leaves_the_memory_of_a_view_alone(again: bool, want: list[str]) -> None:
    kinds = [Type((2, 4, 8), np.dtype(np.float32)), Type((1, 2, 1, 8), np.dtype(np.float32))]
    program = Program("f", {"y": 1, "x": 2})
    cache, new = (program.new(k) for k in kinds)
    program.arguments = [Port(v, True) for v in (cache, new)]
    own, view, made = (program.new(replace(kinds[0], shape=s)) for s in ((2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    program.ops = [
        Op("ttir.exp", (cache,), (own,), {}),
        Op("ttir.reshape", (own,), (view,), {"shape": (1, 2, 4, 8)}),
        Op("ttir.fill_cache", (view, new), (made,), {"batch_offset": 0}),
    ]
    program.results = [Port(made, True), *([Port(own, True)] if again else [])]
    assert names_of(lowered(program)) == ["exp", *want]
    # A view of an argument has the caller's memory.
    program.ops[0] = Op("ttir.reshape", (cache,), (own,), {"shape": (2, 4, 8)})
    assert names_of(lowered(program))[-3:] == ["reshape", "assign", "fill_cache"]


def test_arguments_and_results_may_be_the_same() -> None:
    x = np.ones((4, 8), np.float32)
    made = flat(lambda x, y: (x, x, y), x, x)
    assert not made.ops
    assert [r.value for r in made.results] == [0, 0, 1]


def test_many_ops_take_linear_time() -> None:
    def program(count: int) -> Program:
        made = Program("f", {"x": 2})
        value = made.new(Type((2,), np.dtype(np.float32)))
        made.arguments = [Port(value, False)]
        for _ in range(count):
            result = made.new(Type((2,), np.dtype(np.float32)))
            made.ops.append(Op("ttir.exp", (value,), (result,)))
            value = result
        made.results = [Port(value, False)]
        return made

    def calls(count: int) -> int:
        given = program(count)
        assert len(to_ttnn(given).ops) == 2 * count + 13
        return calls_made(lambda: to_ttnn(given))

    assert calls(4_000) < 8 * 1.1 * calls(500)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_op_without_a_row_is_named() -> None:
    program = Program("f", {"x": 2}, [Type((), np.dtype(np.float32))] * 2, [Port(0, False)])
    program.ops = [Op("ttir.unheard_of", (0,), (1,), {}, "model.py:7 (f)")]
    with pytest.raises(MissingRuleError, match=r"ttir.unheard_of \(model.py:7 \(f\)\)"):
        to_ttnn(program)


def test_shards_are_no_full_tensor() -> None:
    program = Program("f", {"x": 2}, [Type((4,), np.dtype(np.float32))], [Port(0, True)])
    program.results = [Port(0, False)]
    with pytest.raises(ResidencyError, match="shard_to_full"):
        to_ttnn(program)


def broken(change: Any) -> Program:
    made = flat(lambda x: x + 1.0, np.ones((4, 8), np.float32))
    change(made)
    return made


def swap(name: str, /, **changes: Any) -> Any:
    def change(made: Program) -> None:
        at = next(i for i, op in enumerate(made.ops) if op.name == name)
        made.ops[at] = replace(made.ops[at], **changes)

    return change


def on_host(name: str) -> Any:
    def change(made: Program) -> None:
        (result,) = next(op.results for op in made.ops if op.name == name)
        made.types[result] = replace(made.types[result], host=True)

    return change


def drop(name: str) -> Any:
    return lambda made: made.ops.remove(next(op for op in made.ops if op.name == name))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (swap("ttnn.add", name="ttir.add"), VerifyError, "ttir.add is left"),
        (swap("ttnn.add", name="ttnn.plus"), VerifyError, "ttnn.plus is no op"),
        (swap("ttnn.add", attributes={"dim": 1}), VerifyError, "no attribute dim"),
        (on_host("ttnn.add"), ResidencyError, "works on tiled tensors on the devices"),
        (swap("ttnn.full", attributes={"shape": ()}), VerifyError, "needs the attribute fill_value"),
        (swap("ttnn.full", operands=()), VerifyError, "the device is its last operand"),
        (swap("ttnn.get_device", attributes={"mesh_shape": (4, 2)}), VerifyError, "the mesh \\(2, 4\\)"),
        (swap("ttnn.from_device", name="ttnn.to_device"), ResidencyError, "makes"),
        (drop("ttnn.deallocate"), VerifyError, "never deallocated"),
        (
            swap("ttnn.deallocate", attributes={"force": True}),
            VerifyError,
            "force = True, but other values do not share",
        ),
        (drop("ttnn.to_device"), VerifyError, "nothing before it gives"),
        (lambda made: made.ops.append(made.ops[-1]), VerifyError, "after it was deallocated"),
        (lambda made: made.results.append(Port(0, False)), VerifyError, "not there at the end"),
    ],
)
def test_the_verifier_refuses(change: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        verify_flat(broken(change))
