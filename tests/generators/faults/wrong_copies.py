"""That wrong copies are found where they are, and right ones never reported.

Every program takes the copies of all devices as data, splits them, and claims that they are equal. So one compiled
program is given true copies and planted ones, and NumPy says, by a search of its own, which difference is the first.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects.replication import Difference
from tests.generators.outcome import Outcome, Say

Array = np.ndarray[Any, Any]
SHAPE = (2, 4)
LOCAL = (3, 2)
_jax: Any = jax
_lax: Any = lax


# --- programs --------------------------------------------------------------------------------------------------------


def _own(copies: Any) -> Any:
    """This device's copy, of shape `LOCAL`."""
    return jm.full_to_shard(copies, P("y", "x")).reshape(LOCAL)


def _direct(copies: Any) -> Any:
    return jm.shard_to_full(_own(copies), P("y"), assume_replicated=True)  # here


def _everywhere(copies: Any) -> Any:
    return jm.shard_to_full(_own(copies), P(), assume_replicated=True)  # here


def _summed(copies: Any) -> Any:
    # Over y, although the copies along x are then taken to be equal.
    total = _lax.psum(_own(copies), "y")
    return jm.shard_to_full(total, P(), assume_replicated=True)  # here


def _scanned(rounds: Any) -> Any:
    def step(total: Any, copies: Any) -> Any:
        return total + jm.shard_to_full(_own(copies), P("y"), assume_replicated=True), None  # here

    return _lax.scan(step, jnp.zeros((2 * LOCAL[0], LOCAL[1])), rounds)[0]


def _looped(rounds: Any) -> Any:
    def step(i: Any, total: Any) -> Any:
        copies = _lax.dynamic_index_in_dim(rounds, i, keepdims=False)
        return total + jm.shard_to_full(_own(copies), P("y"), assume_replicated=True)  # here

    return _lax.fori_loop(0, jnp.int32(4), step, jnp.zeros((2 * LOCAL[0], LOCAL[1])))


def _branched(copies: Any) -> Any:
    def take(copies: Any) -> Any:
        return jm.shard_to_full(_own(copies), P("y"), assume_replicated=True)  # here

    def leave(copies: Any) -> Any:
        return jnp.zeros((2 * LOCAL[0], LOCAL[1]))

    return _lax.cond(copies.sum() < 1e6, take, leave, copies)


def _rematted(copies: Any) -> Any:
    @_jax.checkpoint
    @_jax.jit
    def inner(copies: Any) -> Any:
        return jm.shard_to_full(_own(copies), P("y"), assume_replicated=True)  # here

    return inner(copies)


@dataclass(frozen=True, slots=True)
class _Program:
    """A program, how many copies it takes one after the other, over which axes it claims them to be equal."""

    name: str
    function: Callable[[Any], Any]
    rounds: int = 0
    axes: tuple[int, ...] = (1,)
    seen: Callable[[Array], Array] = lambda copies: copies
    reverse: bool = True
    sums: bool = False

    @property
    def line(self) -> int:
        """Where the claim stands."""
        lines, first = inspect.getsourcelines(self.function)
        return first + next(i for i, text in enumerate(lines) if "# here" in text)


def _sum_over_y(copies: Array) -> Array:
    return np.broadcast_to(copies.sum(0, keepdims=True), copies.shape)


PROGRAMS = (
    _Program("a shard taken for all along an axis", _direct),
    _Program("a shard taken for all devices", _everywhere, axes=(0, 1)),
    _Program("a psum over the wrong axis", _summed, axes=(0, 1), seen=_sum_over_y, sums=True),
    _Program("a scan", _scanned, rounds=4),
    _Program("a loop", _looped, rounds=4, reverse=False),
    _Program("a branch", _branched),
    _Program("remat of jit", _rematted),
)
DTYPES: tuple[Any, ...] = (
    jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint16, jnp.int4, jnp.bool_, jnp.complex64,
    jnp.float8_e4m3fn,
)  # fmt: skip


# --- the search ------------------------------------------------------------------------------------------------------

Place = tuple[tuple[int, ...], tuple[int, ...], bytes, bytes]
"""Mesh coordinate, index inside the tensor, and the bytes of both copies."""


def search(copies: Array, axes: tuple[int, ...]) -> Place | None:
    """The first difference of copies of shape `(*mesh, *local)` along mesh axes, element by element."""
    for coordinate in np.ndindex(*SHAPE):
        read = tuple(0 if a in axes else i for a, i in enumerate(coordinate))
        for index in np.ndindex(*copies.shape[2:]):
            mine, other = copies[coordinate][index].tobytes(), copies[read][index].tobytes()
            if mine != other:
                return coordinate, index, mine, other
    return None


def found_place(difference: Difference) -> Place:
    """What an error says, in the form of `search`."""
    value, expected = difference.value.tobytes(), difference.expected.tobytes()
    return tuple(difference.coordinate), tuple(difference.index), value, expected


# --- copies ----------------------------------------------------------------------------------------------------------


def true_copies(rng: np.random.Generator, dtype: Any, along: tuple[int, ...] = (1,)) -> Array:
    """Random copies, of shape `(*SHAPE, *LOCAL)`, that are the same along some mesh axes."""
    heads = tuple(1 if a in along else n for a, n in enumerate(SHAPE))
    values = rng.integers(0, 2 if dtype == jnp.bool_ else 7, (*heads, *LOCAL))
    return np.ascontiguousarray(np.broadcast_to(values, (*SHAPE, *LOCAL)).astype(dtype))


def flip(copies: Array, coordinate: tuple[int, ...], index: tuple[int, ...]) -> Array:
    """The copies with the lowest bit of one element of one device's copy flipped."""
    planted = copies.copy()
    element = np.frombuffer(bytearray(planted[coordinate][index].tobytes()), np.uint8)
    element[0] ^= 1
    planted[coordinate][index] = element.view(planted.dtype)[0]
    return planted


def raised(copies: Array, coordinate: tuple[int, ...], index: tuple[int, ...]) -> Array:
    """The copies with 1 added to one element of one device's copy."""
    planted = copies.copy()
    planted[coordinate][index] += 1
    return planted


# --- the checks ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    mesh: Any
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    checks: int = 0
    failures: list[str] = field(default_factory=list[str])

    def expect(self, case: str, run: Callable[[], Any], want: Place | None, line: int | str | None = None) -> None:
        """Runs; an error must come exactly where one is wanted, and say what is wanted."""
        self.checks += 1
        try:
            jax.block_until_ready(run())
        except jm.ReplicationError as error:
            if error.difference is None:
                self.failures.append(f"{case}: an error of another kind: {error}")
                return
            told: Difference = error.difference
            if (got := found_place(told)) != want:
                self.failures.append(f"{case}: found {got}, the difference is {want}: {error}")
            elif line is not None and str(line) not in told.claim.line:
                self.failures.append(f"{case}: the line told is {told.claim.line}, it is {line}")
            return
        if want is not None:
            self.failures.append(f"{case}: nothing found, the difference is {want}")

    def place(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A copy that is not the one read, and an element of it."""
        coordinate = int(self.rng.integers(SHAPE[0])), int(self.rng.integers(1, SHAPE[1]))
        return coordinate, tuple(int(self.rng.integers(n)) for n in LOCAL)


def _data(copies: Array) -> Any:
    """The copies as the program takes them: device blocks of `LOCAL` over both mesh axes."""
    head, (a, b) = copies.shape[:-4], LOCAL
    swapped = np.moveaxis(copies, -3, -2)
    return jnp.asarray(swapped.reshape(*head, SHAPE[0] * a, SHAPE[1] * b))


def _check_programs(run: _Run) -> None:
    """Every program: jit, the reference executor, vmap, a derivative."""
    for program in PROGRAMS:
        _check_program(run, program)


def _check_program(run: _Run, program: _Program) -> None:
    f = jm.jit(program.function, mesh=run.mesh, check_replication=True)
    good = true_copies(run.rng, np.float32, program.axes)
    # A sum would lose the lowest bit of a zero: this machine's arithmetic has no denormal numbers.
    bad = raised(good, *run.place()) if program.sums else flip(good, *run.place())
    rows = [good, bad]
    if program.rounds:
        # The third round has the first difference, the fourth another one, on an earlier device.
        rows = [np.stack([good] * program.rounds), np.stack([good, good, bad, flip(good, (0, 1), (0, 0))])]
    want = search(program.seen(bad), program.axes)
    reference = f.lower(_data(rows[0])).reference
    ways: tuple[tuple[str, Callable[[Array], Any]], ...] = (
        ("jit", lambda row: f(_data(row))),
        ("reference", lambda row: reference(_data(row), check_replication=True)),
        ("derivative", lambda row: _derivative(f, _data(row), program.reverse)),
        # The second of a batch.
        ("vmap", lambda row: jax.vmap(f)(_data(np.stack([rows[0], row])))),
    )
    for way, call in ways:
        run.expect(f"{program.name}, {way}", functools.partial(call, rows[1]), want, program.line)
        run.expect(f"{program.name}, {way}, true copies", functools.partial(call, rows[0]), None)


def _derivative(f: Callable[[Any], Any], x: Any, reverse: bool) -> Any:
    """The value and a derivative; JAX has no reverse mode for loops of unknown length."""

    def total(x: Any) -> Any:
        return f(x).sum()

    return _jax.value_and_grad(total)(x) if reverse else _jax.jvp(total, (x,), (jnp.ones_like(x),))


def _check_outer_jit(run: _Run) -> None:
    """Inside another program nothing can be raised while it runs; the end of the block raises it."""
    f = jm.jit(_direct, mesh=run.mesh)

    @_jax.jit
    def outer(x: Any) -> Any:
        return f(x) * 2

    good = true_copies(run.rng, np.float32)
    bad = flip(good, *run.place())

    def call(copies: Array) -> Any:
        with jm.check_replication():
            return outer(_data(copies))

    run.expect("outer jit", lambda: call(bad), search(bad, (1,)), PROGRAMS[0].line)
    run.expect("outer jit, true copies", lambda: call(good), None)


def _check_dtypes(run: _Run) -> None:
    """Every kind of element; for floats also NaNs, infinities and signs of zero."""
    f = jm.jit(_direct, mesh=run.mesh, check_replication=True)
    for dtype in DTYPES:
        name, good = np.dtype(dtype).name, true_copies(run.rng, dtype)
        bad = flip(good, *run.place())
        run.expect(f"{name}: one bit", lambda bad=bad: f(_data(bad)), search(bad, (1,)))
        run.expect(f"{name}: true copies", lambda good=good: f(_data(good)), None)
    for bits in (0x7FC00000, 0x7FC00001, 0x80000000, 0xFF800000, 0x00000001):
        good = true_copies(run.rng, np.float32)
        coordinate, index = run.place()
        bad = good.copy()
        bad[coordinate][index] = np.uint32(bits).view(np.float32)
        run.expect(f"float32 bits {bits:#x}", lambda bad=bad: f(_data(bad)), search(bad, (1,)))
        good[:] = np.uint32(bits).view(np.float32)
        run.expect(f"float32 bits {bits:#x} everywhere", lambda good=good: f(_data(good)), None)


TEXT = """\
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%x: tensor<3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<6x2xf32> {
    %0 = "ttir.mesh_shard"(%x) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<3x2xf32>) -> tensor<6x2xf32>
    return %0 : tensor<6x2xf32>
  }
}
"""  # noqa: E501


def _check_tensors(run: _Run) -> None:
    """Text that takes presharded copies to be equal, the eager API, and `shard_map` without types."""
    import warnings

    good = true_copies(run.rng, np.float32)
    bad = flip(good, *run.place())
    want = search(bad, (1,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jm.AssumptionWarning)
        compiled = jm.from_mlir(TEXT, run.mesh).lower().compile(check_replication=True)
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*SHAPE))
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(SHAPE[0], 1)))

    @jm.shard_map(mesh=run.mesh, in_specs=P("y", "x"), out_specs=P("y"), check_vma=False)
    def mapped(shard: Any) -> Any:
        return shard

    for case, copies, place in (("", bad, want), (", true copies", good, None)):
        tensor = ttnn.from_host_shards(list(copies.reshape(-1, *LOCAL)), ttnn.MeshShape(*SHAPE))
        run.expect(f"imported text{case}", lambda tensor=tensor: compiled(tensor), place, "line 3: ttir.mesh_shard")
        with jm.check_replication():
            run.expect(f"eager{case}", lambda tensor=tensor: ttnn.aggregate_tensor(tensor, composer), place)
            run.expect(f"check_vma=False{case}", lambda copies=copies: mapped(_data(copies)), place)


@contextmanager
def _unlogged() -> Generator[None]:
    """Differences found on purpose are not logged as errors."""
    log = logging.getLogger("jaxmesh")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def run(say: Say) -> Outcome:
    """Plants wrong copies on this machine's emulated devices and looks whether each is found where it is.

    Args:
      say: takes lines of progress.
    """
    start = time.perf_counter()
    state = _Run(jm.make_mesh(SHAPE, ("y", "x")))
    parts: tuple[tuple[str, Callable[[_Run], None]], ...] = (
        ("programs", _check_programs),
        ("outer jit", _check_outer_jit),
        ("element types", _check_dtypes),
        ("tensors", _check_tensors),
    )
    with _unlogged():
        for name, part in parts:
            before = state.checks
            part(state)
            say(f"replication: {name}: {state.checks - before} runs")
    proved = (
        "where copies are taken to be equal and one bit of one of them differs, check_replication names the first "
        "device, element and line that NumPy's search finds, and says nothing of copies that are equal"
    )
    seconds = time.perf_counter() - start
    return Outcome("replication", proved, state.checks, tuple(state.failures), seconds)
