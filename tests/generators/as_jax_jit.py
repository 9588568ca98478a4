"""Runs a function under `jax.jit` and under `jaxmesh.jit`, and compares the results or the errors."""

from __future__ import annotations

import contextlib
import itertools
import traceback
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm

_config: Any = jax.config
PACKAGE, JAX = str(Path(jm.__file__).parent), str(Path(jax.__file__).parent)
AUTO, EXPLICIT = (
    jax.make_mesh((2, 4), ("y", "x"), axis_types=(kind,) * 2, devices=jax.devices()[:8])
    for kind in (AxisType.Auto, AxisType.Explicit)
)
MESHES = [AUTO, EXPLICIT]
X, W1, W2 = (
    np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(4, 8), (8, 16), (16, 8)])
)


def auto(*spec: Any) -> NamedSharding:
    return NamedSharding(AUTO, P(*spec))


def explicit(*spec: Any) -> NamedSharding:
    return NamedSharding(EXPLICIT, P(*spec))


def put(x: Any, sharding: Any) -> jax.Array:
    return jax.device_put(x, sharding)


@contextlib.contextmanager
def filtering(mode: str) -> Generator[None]:
    """Sets `jax_traceback_filtering`."""
    before = _config.jax_traceback_filtering
    _config.update("jax_traceback_filtering", mode)
    try:
        yield
    finally:
        _config.update("jax_traceback_filtering", before)


@dataclass(frozen=True)
class Outcome:
    """What a call returned or raised."""

    result: Any
    error: BaseException | None

    @property
    def first_line(self) -> str:
        return str(self.error).split("\n")[0]

    @property
    def frames(self) -> list[tuple[str, int | None, str]]:
        """The file, line and function of each frame of the traceback below the caller of the function."""
        assert self.error is not None
        rows = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(self.error.__traceback__)]
        assert rows.pop(0)[2] == "outcome"
        return rows

    @property
    def users_frames(self) -> list[tuple[str, int | None, str]]:
        return [f for f in self.frames if not f[0].startswith((PACKAGE, JAX))]

    @property
    def chain(self) -> list[type]:
        """The types of the errors that the error follows, without JAX's notes about frames."""
        links, error = [], self.error
        while error is not None:
            links.append(type(error))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return [t for t in links if not issubclass(t, traceback_class())]


def traceback_class() -> type:
    """The class of the error to which JAX attaches the frames that it removes."""
    return next(c for c in Exception.__subclasses__() if c.__name__ == "UnfilteredStackTrace")


def anew(f: Any) -> Any:
    """Returns a copy of a function, for which JAX has no program."""
    if not isinstance(f, types.FunctionType):
        return f
    copy = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copy.__kwdefaults__, copy.__qualname__ = f.__kwdefaults__, f.__qualname__
    return copy


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    try:
        return Outcome(call(*args, **kwargs), None)
    except BaseException as error:
        return Outcome(None, error)


def same(f: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Checks that a function means the same under `jax.jit` and `jaxmesh.jit`; returns the outcome of the latter.

    Results have the same tree, types, shardings, mesh objects and values. Errors have the same type, the same first
    line, the same chain, and the same frames of the user; if JAX removes frames of its own, no others are left.

    Args:
      f: the function.
      args: the arguments, as they are given to both.
      options: of `jax.jit` and `jaxmesh.jit`.
    """
    theirs = outcome(jax.jit(anew(f), **options), *args)
    mine = outcome(jm.jit(anew(f), **options), *args)
    if theirs.error is None and mine.error is not None:
        raise mine.error
    assert type(mine.error) is type(theirs.error), (mine, theirs)
    if theirs.error is None:
        same_results(mine.result, theirs.result)
        return mine
    assert mine.first_line == theirs.first_line
    assert mine.chain == theirs.chain
    assert mine.users_frames == theirs.users_frames
    # JAX does not remove frames of what is not an Exception.
    if isinstance(mine.error, Exception) and _config.jax_traceback_filtering not in ("off", "tracebackhide"):
        assert mine.frames == theirs.frames
        assert not [f for f in mine.frames if f[0].startswith(PACKAGE)]
    return mine


def same_results(mine: Any, theirs: Any) -> None:
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert type(a) is type(b)
        assert str(jax.typeof(a)) == str(jax.typeof(b))
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        assert a.committed == b.committed
        assert a.sharding.device_set == b.sharding.device_set
        assert a.sharding.is_equivalent_to(b.sharding, b.ndim), (a.sharding, b.sharding)
        assert type(a.sharding) is type(b.sharding)
        if isinstance(b.sharding, NamedSharding):
            assert a.sharding.mesh is b.sharding.mesh
            assert trimmed(a.sharding.spec) == trimmed(b.sharding.spec)
        for x, y in zip(values(a), values(b), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


def trimmed(spec: P) -> P:
    """Returns a spec without the dims at its end that no axis splits."""
    dims = [*itertools.dropwhile(lambda d: d is None, reversed(spec.partitions))][::-1]
    return P(*dims, unreduced=spec.unreduced, reduced=spec.reduced)


def values(x: jax.Array) -> list[np.ndarray]:
    """Returns the shard of each device of an array; the data of random keys."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return [np.asarray(s.data) for s in x.addressable_shards]
