"""Every wrong call of the tables raises its named error, which says the rule, both values and the remedy."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli import main
from tests.generators.faults import wrong_fuzz
from tests.generators.faults.wrong_calls import DROP_IN, ROWS, t
from tests.generators.faults.wrong_calls_cli import MESHES, ROWS as COMMANDS, make_files
from tests.generators.oracles import EVERY, cases

CALLS = [pytest.param(*row[1:], id=f"{table}: {row[0]}") for table, rows in ROWS.items() for row in rows]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call writes by mistake goes nowhere."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _tensor() -> None:
    """The tensor that the calls share; some of them first read it while a program is traced."""
    t()


@pytest.mark.parametrize(("call", "error", "builtin", "message"), CALLS)
def test_wrong_calls(call: Callable[[], Any], error: type[Exception], builtin: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, (jm.JaxmeshError, AttributeError))
    assert isinstance(caught.value, builtin)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize("call", [c[1] for c in DROP_IN], ids=[c[0] for c in DROP_IN])
def test_shard_map_says_what_jax_says(call: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        call(jax.shard_map)
    with pytest.raises(type(theirs.value)) as ours:
        call(jm.shard_map)
    assert words(ours.value) == words(theirs.value)


def words(error: BaseException) -> str:
    """A message without addresses."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(error))


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    make_files(folder)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong command line leaves on standard error."""
    try:
        code: Any = main.main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (main.USAGE, ""), (code, out, err)
    assert err.startswith("jaxmesh: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(("line", "words"), COMMANDS, ids=[line or "nothing" for line, _ in COMMANDS])
def test_wrong_commands(line: str, words: str, odd_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(line.replace("{}", str(odd_files)).split(), capsys)


@pytest.mark.parametrize("sizes", MESHES)
def test_wrong_meshes(sizes: str, odd_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"got {sizes!r}" if sizes != "-1" else "--mesh"
    for command in (["demo"], ["opt", str(odd_files / "good.mlir")], ["run", str(odd_files / "good.mlir")]):
        assert said in refused([*command, "--mesh", sizes], capsys)


@pytest.mark.slow
def test_a_full_disk(odd_files: Path) -> None:
    model = str(odd_files / "good.mlir")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jaxmesh", "opt", model],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=Path(jm.__file__).parents[1],
        )  # fmt: skip
    assert done.returncode == main.USAGE
    assert done.stderr.startswith("jaxmesh: error: [Errno 28] No space left on device")
    assert done.stderr.count("\n") == 1


# --- hostile values --------------------------------------------------------------------------------------------------

FUZZED = sorted(wrong_fuzz.PLAIN) if not EVERY else sorted(wrong_fuzz.targets())


def chosen(name: str, argument: str) -> list[str]:
    """The values to strike with: all, or a few, others for every argument and the same in every run."""
    values = list(wrong_fuzz.POOL)
    if EVERY:
        return values
    start = zlib.crc32(f"{name} {argument}".encode())
    return [values[(start + i * 37) % len(values)] for i in range(3)]


@pytest.mark.parametrize("name", FUZZED)
def test_hostile_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some values are good names of folders.
    monkeypatch.chdir(tmp_path)
    target = wrong_fuzz.targets()[name] if EVERY else wrong_fuzz.PLAIN[name]
    rows = [(a, v, wrong_fuzz.strike(target, a, v)) for a in target.right for v in chosen(name, a)]
    assert [row for row in rows if row[2] is not None] == []


# --- arithmetic ------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= 16)


@cases(60)
@given(st.data())
def test_divisibility(data: st.DataObject) -> None:
    sizes = data.draw(SIZES)
    mesh = AbstractMesh(tuple(sizes), tuple("zyx"[-len(sizes) :]))
    axis = data.draw(st.sampled_from(mesh.axis_names))
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    count, size = mesh.shape[axis], shape[dim]
    spec = P(*[None] * dim, axis)
    function = jm.jit(lambda x: jm.full_to_shard(x, spec), mesh=mesh)
    kind = jax.ShapeDtypeStruct(tuple(shape), np.float32)
    if size % count == 0:
        assert function.trace(kind).out_avals[0].shape[dim] == size // count
        return
    with pytest.raises(jm.VerifyError) as caught:
        function.trace(kind)
    padded = next(n for n in range(size, size + count) if n % count == 0)
    text = str(caught.value)
    assert f"dim {dim} has size {size}, which {count} devices ('{axis}' of size {count}) do not divide" in text
    assert f"pad the dim to {padded}" in text


@cases(150)
@given(SIZES, SIZES, st.data())
def test_overrides_and_counts(sizes: list[int], override: list[int], data: st.DataObject) -> None:
    mesh = jm.make_mesh(tuple(sizes))
    count = data.draw(st.integers(0, 4))
    devices, places = math.prod(sizes), math.prod(override)
    makers: list[Any] = [
        lambda: ttnn.create_mesh_mapper(mesh, ttnn.MeshMapperConfig([ttnn.PlacementReplicate()] * count, override)),
        lambda: ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig(range(count), override)),
    ]
    for make in makers:
        if places > devices:
            words = f"{override} has {places} coordinates, but the mesh {sizes} has only {devices} devices"
        elif count != len(override):
            words = f"distribution shape {override}, got {count} for {len(override)} axes"
        else:
            make()
            continue
        with pytest.raises(jm.VerifyError) as caught:
            make()
        assert words in str(caught.value)


@cases(150)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=2), st.integers(0, 3))
def test_dims_in_range_and_unique(dims: list[int], rank: int) -> None:
    mesh = jm.make_mesh((2, 2))
    placements = [ttnn.PlacementShard(d) for d in dims]
    full = np.zeros((4,) * rank, np.float32)
    spread = ttnn.distribute_tensor(full, ttnn.replicate_tensor_to_mesh_mapper(mesh))
    calls: list[Any] = [
        lambda: ttnn.distribute_tensor(full, ttnn.create_mesh_mapper(mesh, ttnn.MeshMapperConfig(placements))),
        lambda: ttnn.aggregate_tensor(spread, ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig(dims))),
    ]
    beyond = [d for d in dims if d not in range(-rank, rank)]
    places = [d if d >= 0 else d + rank for d in dims]
    for call in calls:
        if beyond:
            words = f"names dim {beyond[0]} of a tensor of rank {rank}; allowed dims: " + (
                f"{-rank} to {rank - 1}" if rank else "none"
            )
        elif places[0] == places[1]:
            words = f"dims must be unique, but axes 0 and 1 both name tensor dim {places[0]}"
        else:
            call()
            continue
        with pytest.raises(jm.VerifyError) as caught:
            call()
        assert words in str(caught.value)


@cases(100)
@given(st.integers(1, 4), st.integers(-9, 9), st.sampled_from(["static", "donate"]))
def test_positions_of_arguments(count: int, position: int, kind: str) -> None:
    function = eval(f"lambda {', '.join(f'a{i}' for i in range(count))}: 0")
    options: dict[str, Any] = {f"{kind}_argnums": position}
    if position in range(-count, count):
        jm.jit(function, **options)
        return
    with pytest.raises(jm.ArgumentValueError) as caught:
        jm.jit(function, **options)
    assert f"{kind}_argnums names position {position}, but <lambda> takes {count} arguments" in str(caught.value)
    assert f"{-count} to {count - 1}" in str(caught.value)


@cases(100)
@given(SIZES, st.integers(0, 20))
def test_numbers_of_devices(sizes: list[int], given: int) -> None:
    devices = jax.devices()[:given]
    if math.prod(sizes) <= len(devices):
        assert jm.make_mesh(sizes, devices=devices).size == math.prod(sizes)
        return
    with pytest.raises(jm.DeviceCountError) as caught:
        jm.make_mesh(sizes, devices=devices)
    assert f"{tuple(sizes)} needs {math.prod(sizes)} devices, got {len(devices)}" in str(caught.value)


@cases(100)
@given(st.integers(-(2**80), 2**80), st.sampled_from([np.int8, np.uint8, np.int32]))
def test_numbers_that_a_type_holds(number: int, kind: Any) -> None:
    least, most = {np.int8: (-128, 127), np.uint8: (0, 255), np.int32: (-(2**31), 2**31 - 1)}[kind]
    dtype = ttnn.DataType[np.dtype(kind).name.upper()]
    if least <= number <= most:
        assert ttnn.Tensor([number], [1], dtype).to_list() == [number]
        return
    with pytest.raises(jm.VerifyError) as caught:
        ttnn.Tensor([number], [1], dtype)
    assert str(np.dtype(kind)) in str(caught.value)
    assert str(number)[:20] in str(caught.value)
