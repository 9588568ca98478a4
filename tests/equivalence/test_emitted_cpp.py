"""Emitted C++, compiled with the header that runs it, against the meanings of the rows, and its text."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.dialects.ttnn import OPS
from jaxmesh.emit.cpp.printer import cpp_text, include_dir
from jaxmesh.emit.cpp.values import function_name
from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementReplicate, PlacementShard
from jaxmesh.sharding.distribution import resolve_composer, resolve_mapper
from tests.generators.cpp_programs import AXES, MESH, Made, constants, perceptron
from tests.generators.flat_programs import run_flat
from tests.generators.ttnn_cases import Case, cases

GCC = shutil.which("g++")
needs_gcc = pytest.mark.skipif(GCC is None, reason="g++ is not installed; CI has it")
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror"]

MOVES = frozenset({
    "reshape", "permute", "transpose", "repeat", "repeat_interleave", "concat", "slice_static", "pad", "assign",
    "where", "all_gather", "all_reduce", "all_reduce_async", "reduce_scatter", "mesh_partition", "point_to_point",
    "all_to_all_dispatch", "all_to_all_combine",
    "sort", "topk", "argmax", "fill_cache", "update_cache", "embedding", "typecast", "max", "min", "max_pool2d",
    "maximum", "minimum", "concatenate_heads", "split_query_key_value_and_split_heads", "upsample", "zeros", "ones",
    "full", "constant", "empty", "arange", "abs", "neg", "floor", "ceil", "trunc", "round", "relu", "clamp_scalar",
    "add", "multiply", "subtract", "isfinite", "eq", "ne", "lt", "gt", "le", "ge", "bitwise_not",
})  # fmt: skip
"""Ops whose results are equal bit for bit: they move or choose numbers, or round one operation once."""


# --- building, compiling, running ------------------------------------------------------------------------------------


@functools.cache
def precompiled() -> Path:
    """A folder with the headers, compiled once for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="headers"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = folder / "ttnn-precompiled.hpp"
    header.write_text(f'#include "{include_dir() / header.name}"\n')
    command = [str(GCC), *FLAGS, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return folder


def compiled(text: str, folder: Path, *flags: str) -> None:
    """Makes the executable of a program, without a warning."""
    (folder / "main.cpp").write_text(text)
    command = [str(GCC), *FLAGS, *flags, "-I", str(precompiled()), "main.cpp", "-o", "main"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(folder / "main"), *arguments], cwd=folder, capture_output=True, text=True)


def stored(array: Any) -> np.ndarray:
    x = np.asarray(array)
    return x if x.dtype.isbuiltin == 1 else x.view(f"u{x.dtype.itemsize}")


def export(folder: Path, program: Program, inputs: Sequence[Any], expected: Sequence[Any], **options: Any) -> str:
    """Writes the tensors; gives the text of the program that loads them."""
    (folder / "tensors").mkdir(exist_ok=True)
    for kind, arrays in (("arg", inputs), ("expected", expected)):
        for i, array in enumerate(arrays):
            np.save(folder / "tensors" / f"{kind}{i}.npy", stored(array))
    return cpp_text(program, load=True, **options)


def stacked(x: Any, devices: int) -> np.ndarray:
    """A result on the devices as its file holds it; what is the same everywhere may come as one array."""
    shards = [s for _, s in x.shards()] if isinstance(x, jm.MeshTensor) else [x] * devices
    return np.stack([np.asarray(s) for s in shards])


def on_devices(array: np.ndarray) -> Any:
    return ttnn.from_host_shards(list(array), MESH)


# --- every row -------------------------------------------------------------------------------------------------------


def program_of(chosen: Sequence[Case]) -> Program:
    """All cases in one program, whose operands and results live on the devices."""
    program = Program("rows", dict(AXES))
    device = Type((), np.dtype(np.int32), kind="device")
    operands: list[list[int | None]] = []
    for case in chosen:
        row: list[int | None] = []
        for x in case.operands:
            row.append(None if x is None else program.new(Type(x.shape[1:], x.dtype, tile=True)))
            if x is not None:
                program.arguments.append(Port(len(program.types) - 1, True))
        operands.append(row)
    mesh = program.new(device)
    program.ops.append(Op("ttnn.get_device", (), (mesh,), {"mesh_shape": MESH}))
    for case, row in zip(chosen, operands, strict=True):
        results = tuple(program.new(Type(s, t, tile=True)) for s, t in case.types)
        given = (*row, mesh) if OPS[case.op].on_device else tuple(row)
        program.ops.append(Op(f"ttnn.{case.op}", given, results, case.attributes))
        program.results += [Port(r, True) for r in results]
    return program


@needs_gcc
@pytest.mark.parametrize("exact", [True, False])
def test_every_row_gives_its_own_result(tmp_path: Path, exact: bool) -> None:
    chosen = [c for c in cases(MESH) if (c.op in MOVES) == exact]
    program, mesh = program_of(chosen), jm.make_mesh(MESH)
    inputs = [x for c in chosen for x in c.operands if x is not None]
    results = run_flat(program, mesh, *(on_devices(x) for x in inputs))
    wanted = [stacked(x, mesh.size) for x in results]
    compiled(export(tmp_path, program, inputs, wanted, exact=exact), tmp_path)
    done = run(tmp_path, "--check")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", len(wanted))
    names = [c.op for c in chosen for _ in c.types]
    wrong = [f"{name}: {line}" for name, line in zip(names, done.stdout.splitlines(), strict=True) if "WRONG" in line]
    assert (wrong, done.returncode) == ([], 0)


@needs_gcc
def test_a_sharded_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 4), (4,)))
    moved = x @ w + b
    wanted = [np.tanh(moved), np.stack([moved.reshape(2, 4, 4)[i // 4] for i in range(8)])]
    compiled(export(tmp_path, perceptron(), [x, w, b], wanted), tmp_path)
    done = run(tmp_path, "--check")
    assert (done.returncode, done.stdout.count(": ok")) == (0, 2), done.stdout + done.stderr
    wanted[1][3, 2, 1] += 0.01
    np.save(tmp_path / "tensors" / "expected1.npy", wanted[1])
    done = run(tmp_path, "--check")
    assert (done.returncode, done.stdout.count(": ok"), done.stdout.count("WRONG")) == (1, 1, 1), done.stdout
    assert run(tmp_path).returncode == 0
    # Computed by way of narrower floats, a result may differ by their rounding.
    compiled(export(tmp_path, perceptron(), [x, w, b], wanted, bits=[0, 16]), tmp_path)
    assert run(tmp_path, "--check").returncode == 0
    np.save(tmp_path / "tensors" / "expected1.npy", wanted[1] + 1)
    assert run(tmp_path, "--check").returncode == 1


@needs_gcc
def test_what_upstream_loses(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (8, 5)).astype(np.int32)
    pieces = (x.reshape(4, 2, 5) + np.arange(10, dtype=np.int32).reshape(2, 5) ** 3).tolist()
    nothing = np.zeros((2, 5), np.int32).tolist()
    wanted = np.array([pieces[3], pieces[0], pieces[1], nothing], np.int32).reshape(8, 5)
    compiled(export(tmp_path, constants(), [x], [wanted], exact=True), tmp_path)
    done = run(tmp_path, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_gcc
def test_programs_that_make_their_inputs(tmp_path: Path) -> None:
    m = Made("ones", x=2)
    out = m.op("ttir.add", [m.argument(3, presharded=True), m.split(m.argument(3), None)], 3)
    compiled(cpp_text(m.ttnn((out, True))), tmp_path)
    assert run(tmp_path).returncode == 0


@needs_gcc
@pytest.mark.parametrize("load", [False, True])
def test_a_program_without_ops(tmp_path: Path, load: bool) -> None:
    program, x = Program("same", {"x": 2}), np.eye(2, dtype=np.uint8)
    value = program.new(Type((2, 2), np.dtype(np.uint8), host=True))
    program.arguments, program.results = [Port(value, False)], [Port(value, False), Port(value, False)]
    compiled(export(tmp_path, program, [x], [x, x]) if load else cpp_text(program), tmp_path)
    assert run(tmp_path, *["--check"] * load).returncode == 0


@needs_gcc
@pytest.mark.parametrize("load", [False, True])
def test_a_program_without_arguments(tmp_path: Path, load: bool) -> None:
    compiled(cpp_text(Program("main", {"x": 2}), load=load), tmp_path)
    assert run(tmp_path).returncode == 0


# --- element types ---------------------------------------------------------------------------------------------------

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3,
          ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e5m2,
          ml_dtypes.float8_e5m2fnuz]  # fmt: skip
INTEGERS = [np.int64, np.int32, np.int16, np.int8, ml_dtypes.int4, ml_dtypes.int2, np.uint64, np.uint32, np.uint16,
            np.uint8, ml_dtypes.uint4, ml_dtypes.uint2, np.bool_]  # fmt: skip


def every_value(dtype: np.dtype) -> np.ndarray:
    """All values of small types; of large ones many bit patterns, the ends among them."""
    rng = np.random.default_rng(0)
    if dtype == np.bool_:
        return np.arange(2) == 1
    if dtype.itemsize == 1 and dtype.kind not in "iu" and dtype.name.startswith(("int", "uint")):
        info = ml_dtypes.iinfo(dtype)
        return np.arange(int(info.min), int(info.max) + 1).astype(dtype)
    if dtype.itemsize < 3:
        return np.arange(2 ** (8 * dtype.itemsize), dtype=np.uint32).astype(f"u{dtype.itemsize}").view(dtype)
    bits = rng.integers(0, 256, (200, dtype.itemsize)).astype(np.uint8)
    bits[0], bits[1] = 0, 255
    return bits.view(dtype).reshape(-1)


@needs_gcc
def test_every_element_type(tmp_path: Path) -> None:
    """Read from files, moved over a mesh and back, in texts as constants; sums wrap and round in the type."""
    program, inputs, wanted = Program("types", {"x": 2}), [], []
    device = program.new(Type((), np.dtype(np.int32), kind="device"))
    program.ops.append(Op("ttnn.get_device", (), (device,), {"mesh_shape": (2,)}))
    results = []
    for dtype in map(np.dtype, (*FLOATS, *INTEGERS)):
        every = every_value(dtype)
        inputs.append(np.stack([every, np.roll(every, 1)]))
        a = program.new(Type(every.shape, dtype, tile=True))
        program.arguments.append(Port(a, True))
        held = np.roll(every, 2)
        b, total = (program.new(Type(every.shape, dtype, tile=True)) for _ in range(2))
        program.ops.append(Op("ttnn.constant", (device,), (b,), {"value": held}))
        program.ops.append(Op("ttnn.add", (a, b), (total,)))
        results += [a, b, total]
        with np.errstate(all="ignore"):
            added = np.logical_or(inputs[-1], held) if dtype == np.bool_ else inputs[-1] + held
        wanted += [inputs[-1], np.stack([held, held]), added.astype(dtype)]
    program.results = [Port(v, True) for v in results]
    compiled(export(tmp_path, program, inputs, wanted, exact=True, constant_limit=1 << 16), tmp_path)
    done = run(tmp_path, "--check")
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "WRONG" in line) + done.stderr


@needs_gcc
def test_64_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    program, inputs, wanted = Program("wide", {"x": 1}), [], []
    for dtype in (np.int64, np.uint64, np.float64):
        kind = np.dtype(dtype)
        pair = [rng.integers(0, 256, (1, 50, 8)).astype(np.uint8).view(dtype).reshape(1, 50) for _ in range(2)]
        if dtype == np.float64:
            pair = [rng.normal(size=(1, 50)) for _ in range(2)]
        ports = [program.new(Type((50,), kind, tile=True)) for _ in pair]
        program.arguments += [Port(p, True) for p in ports]
        inputs += pair
        divided = np.divide if dtype == np.float64 else toward_zero
        calls = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "lt": np.less}
        for name, function in {**calls, "divide": divided}.items():
            answer = function(*pair)
            out = program.new(Type((50,), answer.dtype, tile=True))
            program.ops.append(Op(f"ttnn.{name}", tuple(ports), (out,)))
            program.results.append(Port(out, True))
            wanted.append(answer)
    compiled(export(tmp_path, program, inputs, wanted, exact=True), tmp_path)
    done = run(tmp_path, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def toward_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    exact = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a[0], b[0], strict=True)]
    return np.array([exact], a.dtype)


# --- the rules of the mesh -------------------------------------------------------------------------------------------

TRIES = """
#include "ttnn-precompiled.hpp"
using namespace ttnn;
using namespace ttnn::distributed;
using M = MeshMapperConfig;
[[maybe_unused]] static void attempt(const char* name, const std::function<void()>& f) {
  try { f(); } catch (const std::exception& e) { std::printf("%s: %s\\n", name, e.what()); return; }
  std::printf("%s: fine\\n", name);
}
[[maybe_unused]] static Tensor counted(Dims shape) {
  Array x(DataType::INT32, std::move(shape));
  std::iota(x.data<int64_t>(), x.data<int64_t>() + x.size(), 0);
  return Tensor(x);
}
[[maybe_unused]] static std::string shown(const Array& x) {
  Dims all = x.shape;
  all.insert(all.end(), x.data<int64_t>(), x.data<int64_t>() + x.size());
  return show(all);
}
"""


def cpp_override(override: Sequence[int] | None) -> str:
    return "std::nullopt" if override is None else f"MeshShape({{{', '.join(map(str, override))}}})"


def distributions(count: int) -> list[tuple[Any, ...]]:
    """Mesh, override, placements and dims, and a shape; many of them against the rules."""
    rng = np.random.default_rng(7)
    found: list[tuple[Any, ...]] = []
    while len(found) < count:
        mesh = [(2, 2), (4,), (2, 3), (1, 4), (2, 2, 2)][rng.integers(5)]
        override = [None, mesh, (int(np.prod(mesh)),), (1,) * len(mesh), (2, 1), (3,), (2,), (4, 2), (1, 2, 2)][
            rng.integers(9)
        ]
        rank = len(mesh if override is None else override) + int(rng.random() < 0.05)
        shape = tuple(
            int(n)
            for n in rng.choice([0, 1, 2, 4, 6, 8, 12], rng.integers(1, 4), p=[0.04, 0.1, 0.2, 0.2, 0.16, 0.15, 0.15])
        )
        dims = [int(rng.integers(-len(shape) - (rng.random() < 0.05), len(shape))) for _ in range(rank)]
        placements = [None if rng.random() < 0.4 else d for d in dims]
        found.append((mesh, override, placements, dims, shape))
    return found


def oracle(
    mesh: Sequence[int], override: Any, placements: Sequence[int | None], dims: Sequence[int], shape: Sequence[int]
) -> list[str]:
    """What Python's arithmetic says: the pieces, and what a composer makes of pieces of that shape."""
    full = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    lines = []
    try:
        config = MeshMapperConfig(
            [PlacementReplicate() if d is None else PlacementShard(d) for d in placements], override
        )
        resolved = resolve_mapper(config, mesh, shape)
        held = {c: full[resolved.index(p)] for c, p in resolved.shard_coordinates()}
        pieces = [held.get(c) for c in np.ndindex(*mesh)]
        lines.append(" ".join("-" if p is None else str([*p.shape, *p.reshape(-1).tolist()]) for p in pieces))
    except VerifyError:
        lines.append("error")
    try:
        made = resolve_composer(MeshComposerConfig(dims, override), mesh, shape)
        out = np.zeros(made.full, int)
        for coordinate, place in zip(made.landing.coordinates(), np.ndindex(*made.landing.shape), strict=True):
            begin = [0] * len(shape)
            for axis, dim in enumerate(made.dims):
                if dim is not None:
                    begin[dim] = place[axis] * shape[dim]
            out[tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))] = full + 1000 * int(
                np.ravel_multi_index(coordinate, mesh)
            )
        lines.append(str([*out.shape, *out.reshape(-1).tolist()]))
    except VerifyError:
        lines.append("error")
    return lines


@needs_gcc
def test_distributions_as_python_resolves_them(tmp_path: Path) -> None:
    tries = distributions(300)
    rows = []
    for mesh, override, placements, dims, shape in tries:
        marks = ", ".join(
            "M::Placement{M::Replicate{}}" if d is None else f"M::Placement{{M::Shard{{{d}}}}}" for d in placements
        )
        numbers, sizes = ", ".join(map(str, dims)), ", ".join(map(str, shape))
        rows.append(f"    tried({cpp_override(mesh)}, M{{{{{marks}}}, {cpp_override(override)}}}, "
                    f"MeshComposerConfig{{{{{numbers}}}, {cpp_override(override)}}}, Dims{{{sizes}}});")  # fmt: skip
    text = TRIES + """
static void tried(const MeshShape& shape, const M& mapper, const MeshComposerConfig& composer, const Dims& full) {
  MeshDevice device(shape);
  try {
    const Tensor made = distribute_tensor(counted(full), *create_mesh_mapper(device, mapper));
    std::string line;
    for (const auto& s : made.shards()) line += (line.empty() ? "" : " ") + (s ? shown(*s) : std::string("-"));
    std::printf("%s\\n", line.c_str());
  } catch (const Error&) { std::printf("error\\n"); }
  try {
    std::vector<std::optional<Array>> shards;
    for (std::size_t i = 0; i < device.num_devices(); ++i) {
      const Array base = filled(DataType::INT32, {}, static_cast<int64_t>(1000 * i));
      shards.push_back(combined(counted(full).whole(), base, [](auto a, auto b) { return a + b; }));
    }
    const Tensor given(Place::HOST_SHARDS, &device, shards, Layout::ROW_MAJOR);
    std::printf("%s\\n", shown(aggregate_tensor(given, *create_mesh_composer(device, composer)).whole()).c_str());
  } catch (const Error&) { std::printf("error\\n"); }
}
int main() {
""" + "\n".join(rows) + "\n}\n"  # fmt: skip
    compiled(text, tmp_path)
    found = run(tmp_path).stdout.splitlines()
    wanted = [line for case in tries for line in oracle(*case)]
    assert len(found) == len(wanted)
    wrong = [(tries[i // 2], a, b) for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    assert not wrong, wrong[:3]
    assert 100 < wanted.count("error") < 500


@needs_gcc
def test_what_real_ttnn_refuses(tmp_path: Path) -> None:
    text = (
        TRIES
        + """
int main() {
  MeshDevice* device = DeviceGetter::getInstance(MeshShape({2}));
  const Tensor host = counted({4});
  const auto mapper = create_mesh_mapper(*device, M{{M::Placement{M::Shard{0}}}});
  const auto composer = create_mesh_composer(*device, MeshComposerConfig{{0}});
  const Tensor shards = distribute_tensor(host, *mapper);
  const Tensor x = to_device(shards, device);
  attempt("other mesh", [] { DeviceGetter::getInstance(MeshShape({2, 1})); });
  attempt("compute on a host tensor", [&] { ttnn::add(host, host); });
  attempt("compute on host shards", [&] { ttnn::add(shards, shards); });
  attempt("mixed", [&] { ttnn::add(x, shards); });
  attempt("distribute shards", [&] { distribute_tensor(shards, *mapper); });
  attempt("distribute from the devices", [&] { distribute_tensor(x, *mapper); });
  attempt("aggregate from the devices", [&] { aggregate_tensor(x, *composer); });
  attempt("to_device twice", [&] { to_device(x, device); });
  attempt("from_device of a host tensor", [&] { from_device(shards); });
  attempt("matmul", [&] { ttnn::matmul(x, ttnn::reshape(x, Ints{1, 2}), false, false, std::nullopt, std::nullopt); });
  attempt("broadcast", [&] { ttnn::add(x, ttnn::concat({x, x, x}, 0)); });
  attempt("reshape", [&] { ttnn::reshape(x, Ints{3}); });
  attempt("cluster_axis", [&] { ttnn::all_gather(x, 0, 1); });
  attempt("dim", [&] { ttnn::all_gather(x, 1, 0); });
  const Tensor odd = ttnn::slice(x, Ints{0}, Ints{1}, Ints{1});
  attempt("partition", [&] { ttnn::mesh_partition(odd, 0, 0); });
  attempt("coordinate", [&] { ttnn::point_to_point(x, MeshCoordinate({0}), MeshCoordinate({2})); });
  attempt("reduce", [&] { ttnn::experimental::all_reduce_async(x, 0, ReduceType::Max); });
  const Tensor copy = x;
  ttnn::deallocate(copy, false);
  attempt("use after deallocate", [&] { ttnn::add(x, x); });
  attempt("deallocate twice", [&] { ttnn::deallocate(x, false); });
  attempt("fine", [&] { aggregate_tensor(shards, *composer); });
}
"""
    )
    compiled(text, tmp_path)
    said = dict(line.split(": ", 1) for line in run(tmp_path).stdout.splitlines())
    words = {
        "other mesh": "is open already", "compute on a host tensor": "to_device", "compute on host shards": "to_device",
        "mixed": "host memory", "distribute shards": "whole tensor", "distribute from the devices": "whole tensor",
        "aggregate from the devices": "from_device", "to_device twice": "already",
        "from_device of a host tensor": "host memory", "matmul": "contracted dims", "broadcast": "do not broadcast",
        "reshape": "elements", "cluster_axis": "no axis", "dim": "out of range", "partition": "does not divide",
        "coordinate": "not on the mesh", "reduce": "only sums", "use after deallocate": "after it was deallocated",
        "deallocate twice": "after it was deallocated", "fine": "fine",
    }  # fmt: skip
    assert said.keys() == words.keys()
    assert {k: v for k, v in said.items() if words[k] not in v} == {}


# --- files -----------------------------------------------------------------------------------------------------------


@needs_gcc
def test_files_that_are_not_what_was_exported(tmp_path: Path) -> None:
    program = Program("f", {"x": 1})
    value = program.new(Type((2, 3), np.dtype(np.float32), host=True))
    program.arguments, program.results = [Port(value, False)], [Port(value, False)]
    x = np.array([[0, -0.0, np.nan], [np.inf, -np.inf, 1]], np.float32)
    compiled(export(tmp_path, program, [x], [x]), tmp_path)
    assert run(tmp_path, "--check").returncode == 0
    tensors = tmp_path / "tensors"

    def outcome(name: str, array: np.ndarray) -> tuple[int, str]:
        kept = (tensors / name).read_bytes()
        np.save(tensors / name, array)
        done = run(tmp_path, "--check")
        (tensors / name).write_bytes(kept)
        return done.returncode, done.stdout + done.stderr

    for at, other in (((0, 2), 0.0), ((1, 0), 1e38), ((1, 0), -np.inf), ((1, 2), np.nan), ((1, 2), 1.001)):
        changed = x.copy()
        changed[at] = other
        code, said = outcome("expected0.npy", changed)
        assert (code, "WRONG" in said) == (1, True), (at, other, said)
    changed = x.copy()
    changed[1, 2] = 1.00005
    assert outcome("expected0.npy", changed)[0] == 0
    for array, word in (
        (x[:1], "shape"),
        (x.astype(np.float64), "<f8"),
        (np.asfortranarray(x), "column order"),
        (x.T.copy(), "shape"),
    ):
        code, said = outcome("arg0.npy", array)
        assert (code, word in said) == (2, True), said
    (tensors / "arg0.npy").write_bytes((tensors / "arg0.npy").read_bytes()[:-4])
    assert "bytes" in run(tmp_path, "--check").stderr
    (tensors / "arg0.npy").write_bytes(b"no array at all")
    assert "no .npy file" in run(tmp_path, "--check").stderr
    (tensors / "arg0.npy").unlink()
    done = run(tmp_path, "--check")
    assert done.returncode == 2
    assert "tensors/arg0.npy" in done.stderr
    assert run(tmp_path, "--chek").returncode == 2
    with (tensors / "arg0.npy").open("wb") as file:
        np.lib.format.write_array(file, x, version=(2, 0))
    assert run(tmp_path, "--check").returncode == 0
    compiled(cpp_text(program, load=True, exact=True), tmp_path)
    assert run(tmp_path, "--check").returncode == 0
    for at, other in (((0, 0), -0.0), ((1, 2), np.nextafter(np.float32(1), np.float32(2)))):
        changed = x.copy()
        changed[at] = other
        assert outcome("expected0.npy", changed)[0] == 1


HOSTILE = [
    "main", "", "add", "ttnn", "std", "NULL", "EOF", "assert", "int", "co_await", "_Reserved", "__x", "a__b",
    "size_t", "1st", "v1", "f\n#error", "x*/ y", "/*", "// \\", "??/", 'R"(', "<lambda>", "na\xefve", "\x00",
    "printf", "linux", "ref_1", "constant_1", "util_create_vec", "x" * 999, "create_inputs_for_f", "f() {} int main",
    "%s", "\u202e", "exp", "div",
]  # fmt: skip


@needs_gcc
def test_hostile_names(tmp_path: Path) -> None:
    """Each in the place of the function's name and of an argument's path; all that are different in one file."""
    bodies: dict[str, str] = {}
    for i, name in enumerate(HOSTILE):
        program = Program(name, {"x": 1})
        value = program.new(Type((1,), np.dtype(np.float32), host=True))
        program.arguments, program.results = [Port(value, False, f"['{name}']")], [Port(value, False)]
        text = cpp_text(program)
        assert text.isascii()
        assert not any(line.endswith("\\") or "#error" in line.split("//")[0] for line in text.splitlines())
        legal = function_name(name)
        assert re.fullmatch(r"_main|[A-Za-z](_?[A-Za-z0-9])*", legal), legal
        bodies[legal] = text.split("\n", 1)[1].replace("int32_t main()", f"int32_t main_{i}()")
    assert len(bodies) > 20
    compiled('#include "ttnn-precompiled.hpp"\n' + "\n".join(bodies.values()) + "int main() {}\n", tmp_path)


@needs_gcc
def test_no_word_of_the_headers_is_a_name(tmp_path: Path) -> None:
    """Every identifier and every macro that the headers bring is made a name that can be declared."""
    assert GCC is not None
    source = f'#include "{include_dir() / "ttnn-precompiled.hpp"}"\n'
    words: set[str] = set()
    for flags in (["-E", "-P"], ["-E", "-dM"]):
        for standard in ("-std=c++20", "-std=gnu++20"):
            done = subprocess.run(
                [GCC, standard, *flags, "-x", "c++", "-"], input=source, capture_output=True, text=True, check=True
            )
            text = (
                "\n".join(line.split()[1].split("(")[0] for line in done.stdout.splitlines())
                if "-dM" in flags
                else done.stdout
            )
            words |= set(re.findall(r"\b[A-Za-z]\w*\b", text))
    assert len(words) > 3000
    names = sorted({function_name(w) for w in words})
    text = (
        source
        + "".join(f"::std::vector<::ttnn::Tensor> {n}(::std::vector<::ttnn::Tensor>);\n" for n in names)
        + "int main() {}\n"
    )
    for standard in ("-std=c++20", "-std=gnu++20"):
        done = subprocess.run(
            [GCC, standard, "-fsyntax-only", "-x", "c++", "-"], input=text, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:3000]
