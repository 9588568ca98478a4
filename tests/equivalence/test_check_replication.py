"""Claims of replication that no type proves, compared at run time: what is planted is found, and where it is."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli.main import main
from jaxmesh.dialects import check_copies, replication
from jaxmesh.dialects.replication import VARIABLE, is_enabled
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from tests.generators.faults import wrong_copies as selftest
from tests.generators.oracles import cases, only_with_every

MESH = jm.make_mesh((2, 4), ("y", "x"))
COPIES = jax.ShapeDtypeStruct((4, 8), np.float32)


@pytest.fixture(autouse=True)
def unlogged() -> Generator[None]:
    """Differences are planted here; one that nobody has raised fails the test."""
    log = logging.getLogger("jaxmesh")
    before, log.disabled = log.disabled, True
    with jm.check_replication():
        yield
    log.disabled = before


def own(copies: Any) -> Any:
    return jm.full_to_shard(copies, P("y", "x"))


ROWS = P("y")


def taken(shard: Any, spec: P = ROWS) -> Any:
    return jm.shard_to_full(shard, spec, assume_replicated=True)


def direct(copies: Any) -> Any:
    return taken(own(copies))


def blocks(good: bool, at: tuple[int, int] = (1, 2), element: tuple[int, int] = (1, 0)) -> Any:
    """A (4, 8) array whose (2, 2) blocks are the copies: equal along x, but for one element of one of them."""
    full = np.tile(np.arange(8, dtype=np.float32).reshape(4, 2), (1, 4))
    if not good:
        full[at[0] * 2 + element[0], at[1] * 2 + element[1]] += 0.5
    return jnp.asarray(full)


def raises(
    run: Callable[[], Any], coordinate: tuple[int, ...], index: tuple[int, ...], match: str = "copies differ"
) -> Any:
    with pytest.raises(jm.ReplicationError, match=match) as caught:
        run()
    told = caught.value.difference
    assert told is not None
    assert (told.coordinate, told.index) == (coordinate, index)
    return told


# --- random plants ---------------------------------------------------------------------------------------------------

MESHES = ((2, 4), (8,), (2, 1, 4), (3, 2))
DTYPES: tuple[Any, ...] = (np.float32, np.int32, np.bool_, jnp.bfloat16, jnp.int4, np.complex64, jnp.float8_e4m3fn)
_compiled: dict[Any, Any] = {}


def compiled(sizes: tuple[int, ...], kept: tuple[int, ...], dtype: Any, local: tuple[int, ...]) -> Any:
    """A checked program that takes copies `(*mesh, *local)`, and takes them for equal but over the mesh axes `kept`."""
    key = sizes, kept, np.dtype(dtype).name, local
    if key not in _compiled:
        mesh = jm.make_mesh(sizes)
        names = mesh.axis_names
        # The dims of the mesh stay, as dims of size 1: joined or dropped.
        spec = P(*[n if a in kept else None for a, n in enumerate(names)])
        f = jm.jit(lambda v: taken(jm.full_to_shard(v, P(*names)), spec), mesh=mesh, check_replication=True)
        traced = f.trace(jax.ShapeDtypeStruct((*sizes, *local), dtype))
        _compiled[key] = f, traced, traced.lower()
    return _compiled[key]


@st.composite
def plants(draw: Any) -> tuple[Any, ...]:
    sizes = draw(st.sampled_from(MESHES))
    kept = draw(st.sampled_from([(), tuple(range(len(sizes) - 1))]))
    dtype = draw(st.sampled_from(DTYPES))
    local = draw(st.sampled_from([(), (3, 2)]))
    seed = draw(st.integers(0, 2**31))
    count = draw(st.integers(0, 2))
    return sizes, kept, dtype, local, seed, count


@hypothesis.given(plants())
@cases(25)
def test_random_plants_are_found_where_a_plain_search_finds_them(plant: tuple[Any, ...]) -> None:
    sizes, kept, dtype, local, seed, count = plant
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2, (*[n if a in kept else 1 for a, n in enumerate(sizes)], *local))
    copies = np.array(np.broadcast_to(base, (*sizes, *local)).astype(dtype))
    for _ in range(count):
        at = tuple(int(rng.integers(n)) for n in copies.shape)
        copies[at] = np.asarray(copies[at] == 0).astype(dtype)
    want = None
    for coordinate in np.ndindex(*sizes):
        read = tuple(i if a in kept else 0 for a, i in enumerate(coordinate))
        for index in np.ndindex(*local):
            if want is None and copies[coordinate][index].tobytes() != copies[read][index].tobytes():
                want = coordinate, index, copies[coordinate][index], copies[read][index]
    f, traced, lowered = compiled(sizes, kept, dtype, local)
    references = [lambda v, stage=stage: stage.reference(v, check_replication=True) for stage in (traced, lowered)]
    for run in (f, *references):
        if want is None:
            shown = copies[tuple(slice(None) if a in kept else slice(1) for a in range(len(sizes)))]
            assert np.asarray(run(jnp.asarray(copies))).tobytes() == np.ascontiguousarray(shown).tobytes()
            continue
        told = raises(lambda run=run: run(jnp.asarray(copies)), want[0], (0,) * len(sizes) + want[1])
        assert (told.value, told.expected) == (want[2], want[3])
        assert told.value.dtype == np.dtype(dtype)


# --- programs and transformations ------------------------------------------------------------------------------------


def doubled(copies: Any) -> Any:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defvjp(lambda x: (2 * x, taken(own(x)).sum()), lambda _, ct: (2 * ct,))
    return twice(copies)


def slope(copies: Any) -> Any:
    @jax.custom_jvp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defjvp(lambda xs, ts: (2 * xs[0], 2 * ts[0] + 0 * taken(own(xs[0])).sum()))
    return twice(copies)


def loop(copies: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + taken(own(copies))), (0, jnp.zeros((4, 2))))


def switch(copies: Any) -> Any:
    branches = [lambda v: taken(own(v)), lambda v: v[:, :2], lambda v: taken(own(v)) * 2]
    return lax.switch(jnp.int32(copies[0, 0]), branches, copies)


def inside(copies: Any) -> Any:
    # On the devices all the way: the value that is read comes back by a loop.
    shard = own(copies)
    return lax.scan(lambda c, _: (c + taken(shard), None), jnp.zeros((4, 2)), None, length=3)[0]


WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Callable[[Any], Any]]]] = {
    "jit": (direct, lambda f: f),
    "outer grad": (direct, lambda f: jax.grad(lambda v: f(v).sum())),
    "inner grad": (lambda v: jax.grad(lambda u: (direct(u) ** 2).sum())(v), lambda f: f),
    "jvp": (direct, lambda f: lambda v: jax.jvp(f, (v,), (jnp.zeros_like(v),))),
    "linearize": (direct, lambda f: lambda v: jax.linearize(f, v)),
    "vmap": (direct, lambda f: lambda v: jax.vmap(f)(jnp.stack([blocks(True), v]))),
    "vmap at the end": (direct, lambda f: lambda v: jax.vmap(f, in_axes=2)(jnp.stack([blocks(True), v], 2))),
    "remat": (jax.checkpoint(direct), lambda f: jax.grad(lambda v: f(v).sum())),
    "custom_vjp forward": (doubled, lambda f: jax.grad(lambda v: f(v).sum())),
    "custom_jvp": (slope, lambda f: lambda v: jax.jvp(f, (v,), (v,))),
    "while": (loop, lambda f: f),
    "switch": (switch, lambda f: f),
    "scan of a shard": (inside, lambda f: f),
    "nested jit": (lambda v: jax.jit(jax.jit(direct))(v) + 1, lambda f: f),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_found_under(name: str) -> None:
    function, derive = WAYS[name]
    run = derive(jm.jit(function, mesh=MESH))
    run(blocks(True))
    told = raises(lambda: run(blocks(False)), (1, 2), (1, 0))
    assert told.mapped == ((1,) if "vmap" in name else ())
    assert Path(__file__).name in told.claim.line
    run(blocks(True))


@pytest.mark.parametrize("name", ["jit", "inner grad", "while", "switch", "scan of a shard", "nested jit"])
def test_both_references_find_the_same(name: str) -> None:
    traced = jm.jit(WAYS[name][0], mesh=MESH).trace(blocks(True))
    said: list[str] = []
    for stage in (traced, traced.lower()):
        stage.reference(blocks(True))
        told = raises(lambda stage=stage: stage.reference(blocks(False)), (1, 2), (1, 0))
        stage.reference(blocks(False), check_replication=False)
        assert Path(__file__).name in told.claim.line
        said.append(str(told).replace("distribute_tensor", "mesh_shard"))
    assert said[0] == said[1]


def test_a_tangent_is_compared_too() -> None:
    f = jm.jit(direct, mesh=MESH)
    told = raises(lambda: jax.jvp(f, (blocks(True),), (blocks(False),)), (1, 2), (1, 0), "the derivative of")
    assert told.tangent
    jax.jvp(f, (blocks(True),), (blocks(True),))


def test_the_first_round_that_differs_is_told() -> None:
    def rounds(stack: Any) -> Any:
        return lax.scan(lambda c, v: (c + taken(own(v)), None), jnp.zeros((4, 2)), stack)[0]

    f = jm.jit(rounds, mesh=MESH)
    stack = [blocks(True), blocks(True), blocks(False, (1, 3), (1, 1)), blocks(False, (0, 1), (0, 0))]
    raises(lambda: f(jnp.stack(stack)), (1, 3), (1, 1))


def test_a_call_always_waits_for_a_check_inside_a_loop() -> None:
    f = jm.jit(inside, mesh=MESH)
    effects = jax.make_jaxpr(f)(blocks(True)).effects
    assert effects >= check_copies.EFFECTS
    for _ in range(12):
        raises(lambda: f(blocks(False)), (1, 2), (1, 0))


def test_a_branch_that_is_not_taken_claims_nothing() -> None:
    f = jm.jit(switch, mesh=MESH)
    other = blocks(False).at[0, 0].set(1.0)
    assert np.array_equal(f(other), other[:, :2])


def test_the_earliest_claim_is_told_and_the_others_named() -> None:
    def both(v: Any) -> Any:
        s = own(v)
        return taken(s), taken(s + 1, P())

    told = raises(lambda: jm.jit(both, mesh=MESH)(blocks(False)), (1, 2), (1, 0), "also differ at")
    assert told.claim.axes == ("x",)


def test_inside_an_outer_jit_the_end_of_the_block_raises(caplog: pytest.LogCaptureFixture) -> None:
    outer = jax.jit(lambda v: jm.jit(direct, mesh=MESH, check_replication=True)(v) + 1)
    logging.getLogger("jaxmesh").disabled = False

    def call() -> None:
        with jm.check_replication():
            outer(blocks(False))

    raises(call, (1, 2), (1, 0))
    assert "copies differ" in caplog.text
    with jm.check_replication():
        outer(blocks(True))


def test_random_keys_and_empty_tensors() -> None:
    keys = jax.random.split(jax.random.key(0), (4, 8))
    f = jm.jit(lambda k: jax.random.key_data(taken(own(k))), mesh=MESH)
    told = raises(lambda: f(keys), (0, 1), (0, 0))
    assert told.value.tolist() == jax.random.key_data(keys)[0, 2].tolist()
    empty = jm.jit(direct, mesh=MESH)
    assert empty(jnp.zeros((0, 8))).shape == empty.lower(jnp.zeros((0, 8))).reference(jnp.zeros((0, 8))).shape == (0, 2)
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    tensor = ttnn.from_host_shards([np.zeros((0, 3), np.float32)] * 8, ttnn.MeshShape(2, 4))
    first = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0], ttnn.MeshShape(1)))
    assert ttnn.aggregate_tensor(tensor, first).shape == (0, 3)


def test_an_aggregate_of_ttnn_inside_a_program() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    dropped = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(2, 1)))
    f = jm.jit(lambda v: ttnn.aggregate_tensor(own(v), dropped), mesh=jm.make_mesh((2, 4)))
    raises(lambda: f(blocks(False)), (1, 2), (1, 0))
    f(blocks(True))


# --- claims of tensors -----------------------------------------------------------------------------------------------


def lying(at: int = 5) -> jm.MeshTensor:
    places = enumerate(MESH.devices.flat)
    arrays = [jax.device_put(np.full(4, 2.0 if i == at else 1.0, np.float32), d) for i, d in places]
    data = jax.make_array_from_single_device_arrays((4,), NamedSharding(MESH, P()), arrays)
    return jm.MeshTensor(data, MESH, ())


def test_a_presharded_argument_declared_equal() -> None:
    f = jm.jit(lambda v: jm.shard_to_full(v * 2, P()), mesh=MESH)
    lowered = f.lower(lying())
    for run in (f, lowered.compile(), lowered.reference, f.trace(lying()).reference):
        raises(lambda run=run: run(lying()), (1, 1), (0,), "argument")
        run(lying(at=-1))
    with jm.check_replication(False):
        f(lying())


def test_what_a_mapper_made_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    copied = ttnn.distribute_tensor(jnp.ones(4), ttnn.replicate_tensor_to_mesh_mapper(device))
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0], ttnn.MeshShape(1)))
    monkeypatch.setattr("jaxmesh.tensor.transfers._check_shards", lambda *_: pytest.fail("compared"))
    assert copied.is_proven
    assert np.asarray(ttnn.aggregate_tensor(copied, composer)).tolist() == [1.0] * 4
    # Another array in the same tree is not known to be anything.
    assert not jax.tree.map(lambda _: lying().data, copied).is_proven


def test_eager_reads() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    rows = [np.full((2, 3), float(i // 4), np.float32) for i in range(8)]
    good = ttnn.from_host_shards(rows, ttnn.MeshShape(2, 4))
    rows[6] = rows[6].copy()
    rows[6][1, 2] = np.nan
    bad = ttnn.from_host_shards(rows, ttnn.MeshShape(2, 4))

    def composer(dims: list[int], shape: list[int]) -> Any:
        return ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig(dims, ttnn.MeshShape(shape)))

    told = raises(lambda: ttnn.aggregate_tensor(bad, composer([0, 1], [2, 1])), (1, 2), (1, 2))
    assert Path(__file__).name in told.claim.line
    raises(lambda: ttnn.aggregate_tensor(good, composer([0], [1])), (1, 0), (0, 0))
    # All of x is read, or only its first half: no copy of anything is the one that differs.
    ttnn.aggregate_tensor(bad, composer([0, 1], [2, 4]))
    assert ttnn.aggregate_tensor(good, composer([0, 1], [2, 1])).shape == (4, 3)
    raises(lambda: ttnn.aggregate_tensor(bad, composer([0, 1], [1, 2])), (1, 0), (0, 0))
    with jm.check_replication(False):
        ttnn.aggregate_tensor(bad, composer([0, 1], [2, 1]))


def test_of_an_axis_read_in_part_the_rest_is_no_copy() -> None:
    rows = [np.zeros(2, np.float32)] * 7 + [np.ones(2, np.float32)]
    tensor = ttnn.from_host_shards(rows, ttnn.MeshShape(2, 4))
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    half = ttnn.MeshComposerConfig([0], ttnn.MeshShape(2))
    assert ttnn.aggregate_tensor(tensor, ttnn.create_mesh_composer(device, half)).tolist() == [0, 0, 0, 0]


def test_shard_map_without_types() -> None:
    mapped = jm.shard_map(lambda v: v * 2, mesh=MESH, in_specs=P("y", "x"), out_specs=P("y"), check_vma=False)
    for run in (mapped, jm.jit(lambda v: mapped(v), mesh=MESH), jax.grad(lambda v: mapped(v).sum())):
        raises(lambda run=run: run(blocks(False)), (1, 2), (1, 0))
        run(blocks(True))

    def later() -> None:
        with jm.check_replication():
            jax.jit(mapped)(blocks(False))

    raises(later, (1, 2), (1, 0))
    with jm.check_replication(False):
        mapped(blocks(False))


def test_a_shard_map_of_several_results() -> None:
    body = lambda v: {"sum": lax.psum(v, "x"), "own": (v, v[0])}  # noqa: E731
    specs = {"sum": P("y"), "own": (P("y", "x"), P("y"))}
    mapped = jm.shard_map(body, mesh=MESH, in_specs=P("y", "x"), out_specs=specs, check_vma=False)
    raises(lambda: mapped(blocks(False, (0, 3), (0, 1))), (0, 3), (1,), r"\['own'\]\[1\]")
    mapped(blocks(True))


# --- text and the command line ---------------------------------------------------------------------------------------


def test_imported_text_names_its_line() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jm.AssumptionWarning)
        lowered = jm.from_mlir(selftest.TEXT, MESH).lower()
    rows = [np.zeros((3, 2), np.float32) for _ in range(8)]
    rows[3][2, 1] = -0.0
    tensor = ttnn.from_host_shards(rows, ttnn.MeshShape(2, 4))
    raises(lambda: lowered.compile()(tensor), (0, 3), (2, 1), r"^line 3: ttir\.mesh_shard: .*-0\.0 \(bits 0x80000000\)")
    again = jm.from_mlir(lowered.as_text(), MESH).lower()
    raises(lambda: again.compile()(tensor), (0, 3), (2, 1), r"^line \d+: ttnn\.aggregate_tensor")
    lowered.compile(check_replication=False)(tensor)


def test_run_check_compares_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.mlir"
    file.write_text(selftest.TEXT)
    # Random presharded inputs are not copies of each other.
    assert main(["run", str(file), "--check"]) == 1
    assert "line 3: ttir.mesh_shard" in capsys.readouterr().err
    same = np.broadcast_to(np.arange(6, dtype=np.float32).reshape(3, 2), (8, 3, 2))
    np.savez(tmp_path / "in.npz", arg0=same)
    assert main(["run", str(file), "--check", "--inputs", str(tmp_path / "in.npz")]) == 0


def test_run_check_of_a_folder_compares_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lowered = jm.jit(direct, mesh=MESH).lower(COPIES)
    lowered.export(tmp_path / "good", blocks(True), languages=["python"])
    assert main(["run", str(tmp_path / "good"), "--check"]) == 0
    with jm.check_replication(False):
        lowered.export(tmp_path / "bad", blocks(False), languages=["python"])
        assert main(["run", str(tmp_path / "bad")]) == 0
        assert main(["run", str(tmp_path / "bad"), "--check"]) == 1
    assert "mesh coordinate [1, 2]" in capsys.readouterr().err


# --- cost ------------------------------------------------------------------------------------------------------------


def proven(v: Any) -> Any:
    return jm.shard_to_full(lax.psum(own(v), "x"), P("y"))


def test_a_program_without_claims_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jm.jit(proven, mesh=MESH)
    lowered = f.lower(COPIES)
    assert add_checks(lowered.jaxpr, {"y": 2, "x": 4}) is lowered.jaxpr
    # On one line of the source, which is a part of the text.
    plain, same = [lowered.compile(check_replication=c).as_text() for c in (False, True)]
    assert plain == same
    checked = jax.jit(f).lower(COPIES).compile().as_text()
    with jm.check_replication(False):
        assert jax.jit(lambda v: f(v)).lower(COPIES).compile().as_text().count("custom-call") == 0
    assert checked is not None
    assert "custom-call" not in checked
    # Nobody waits for the devices.
    monkeypatch.setattr(jax, "effects_barrier", lambda: pytest.fail("waited"))
    f(blocks(False))
    lowered.compile()(blocks(False))
    monkeypatch.undo()


def test_a_check_moves_no_more_than_one_copy() -> None:
    lowered = jm.jit(direct, mesh=MESH).lower(COPIES)
    plain, checked = lowered.compile(check_replication=False).as_text(), lowered.compile().as_text()
    assert checked.count(" all-gather(") == plain.count(" all-gather(")
    assert plain.count(" all-reduce(") == 0
    # The copy that is read, and a flag per device; XLA may join them to one.
    assert 1 <= checked.count(" all-reduce(") <= 2


# --- threads, switches -----------------------------------------------------------------------------------------------


def test_threads_hear_of_their_own_runs_only() -> None:
    f = jm.jit(direct, mesh=MESH, check_replication=True)
    program = f.lower(COPIES).compile(check_replication=True)
    f(blocks(True))
    wrong: list[str] = []

    def work(call: Callable[[Any], Any], at: tuple[int, int] | None) -> None:
        for _ in range(6):
            try:
                call(blocks(at is None, at or (0, 0)))
                found = None
            except jm.ReplicationError as error:
                found = error.difference.coordinate
            if found != at:
                wrong.append(f"{found} instead of {at}")

    places = [None, (0, 1), None, (1, 3)]
    threads = [threading.Thread(target=work, args=(c, p)) for c in (f, program) for p in places]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jm.jit(direct, mesh=MESH)
    with jm.check_replication(False):
        assert not is_enabled()
        assert is_enabled(True)
        f(blocks(False))
        with pytest.raises(jm.ReplicationError):
            jm.jit(direct, mesh=MESH, check_replication=True)(blocks(False))
        with jm.check_replication():
            raises(lambda: f(blocks(False)), (1, 2), (1, 0))
    jm.jit(direct, mesh=MESH, check_replication=False)(blocks(False))
    for bad in (1, "yes"):
        with pytest.raises(jm.ArgumentTypeError, match="check_replication is True, False or None"):
            jm.jit(direct, mesh=MESH, check_replication=bad)  # type: ignore[call-overload]

    def elsewhere() -> None:
        for value, on in (("1", True), ("0", False), ("", False)):
            monkeypatch.setenv(VARIABLE, value)
            replication._of_environment.cache_clear()
            results.append(is_enabled() is on)
        monkeypatch.setenv(VARIABLE, "on")
        replication._of_environment.cache_clear()
        try:
            is_enabled()
        except jm.ArgumentTypeError as error:
            results.append("is 1 or 0, got 'on'" in str(error))

    results: list[bool] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    replication._of_environment.cache_clear()
    assert results == [True] * 4


def test_a_program_is_not_changed_by_its_check() -> None:
    f = jm.jit(direct, mesh=MESH)
    with jm.check_replication(False):
        want = f(blocks(True)), jax.grad(lambda v: (f(v) ** 2).sum())(blocks(True))
    got = f(blocks(True)), jax.grad(lambda v: (f(v) ** 2).sum())(blocks(True))
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
    assert "check_copies" not in str(f.lower(COPIES).jaxpr)


def test_donated_arguments() -> None:
    f = jm.jit(direct, mesh=MESH, donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(blocks(True))
        raises(lambda: f(blocks(False)), (1, 2), (1, 0))


def test_a_function_inside_another_program_is_checked_by_that_one() -> None:
    inner = jm.jit(direct, mesh=MESH)
    outer = jm.jit(lambda v: inner(v) * 2, mesh=MESH)
    raises(lambda: outer(blocks(False)), (1, 2), (1, 0))
    assert np.array_equal(outer(blocks(True)), 2 * inner(blocks(True)))


def test_the_index_is_that_of_the_programs_value() -> None:
    # With three axes and two dims the pass reshapes what it aggregates.
    mesh = jm.make_mesh((2, 2, 2), ("a", "b", "c"))

    @jm.jit(mesh=mesh, check_replication=True)
    def planted(x: Any) -> Any:
        shard = jm.full_to_shard(x, P("b"))
        wrong = (lax.axis_index("a") == 1) & (lax.axis_index("b") == 1) & (lax.axis_index("c") == 0)
        return jm.shard_to_full(shard.at[1, 3].add(jnp.where(wrong, 5.0, 0.0)), P("b"), assume_replicated=True)

    with pytest.raises(jm.ReplicationError, match=r"float32\[2,8\].*coordinate \[1, 1, 0\].*index \[1, 3\]: 5.0"):
        planted(np.zeros((4, 8), np.float32))
    with pytest.raises(jm.ReplicationError, match=r"index \[1, 3\] \(element \[0\] of jax.vmap\): 5.0"):
        jax.vmap(planted)(np.zeros((3, 4, 8), np.float32))


# --- the self-test ---------------------------------------------------------------------------------------------------


@only_with_every
def test_the_selftest_passes() -> None:
    outcome = selftest.run(lambda _: None)
    assert outcome.failures == ()
    assert outcome.passed


@pytest.mark.parametrize("broken", ["deaf", "alarmed"])
def test_the_selftest_can_fail(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check_copies._first  # pyright: ignore[reportPrivateUsage]
    wrong = {"deaf": lambda d, r, c: (first(d, r, c)[0] & False, r), "alarmed": lambda d, r, c: first(d | True, r, c)}
    monkeypatch.setattr(check_copies, "_first", wrong[broken])
    monkeypatch.setattr(selftest, "PROGRAMS", selftest.PROGRAMS[:1])
    state = selftest._Run(MESH)  # pyright: ignore[reportPrivateUsage]
    selftest._check_programs(state)  # pyright: ignore[reportPrivateUsage]
    assert len(state.failures) >= 2
