"""NumPy arrays as arguments of `jm.jit`: programs take copies, in whatever order calls with and without them come."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import ArgumentTypeError, DeletedError

SIZE = 1 << 18


def long(x: Any) -> Any:
    for _ in range(20):
        x = jnp.sin(x) + 1
    return x


def tree(x: Any, rest: Any, *, scale: Any = 1) -> Any:
    return (long(x) + rest["a"] + rest["b"][0]) * scale


@pytest.mark.parametrize("options", [{}, {"mesh": (2, 4), "in_shardings": P("y")}], ids=["alone", "sharded"])
def test_what_is_written_after_a_call_is_not_read(options: dict[str, Any]) -> None:
    mesh = jm.make_mesh(options["mesh"]) if options else None
    fun: Any = jm.jit(long, mesh=mesh, **({"in_shardings": options["in_shardings"]} if options else {}))
    for number in range(9):
        x = np.full(SIZE, number, np.float32)
        wanted = long(jnp.asarray(x.copy()))
        # Every third call takes an array of JAX.
        got = fun(jnp.asarray(x.copy()) if number % 3 == 2 else x)
        x[:] = -1
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_trees_and_names_and_static_arguments() -> None:
    fun: Any = jm.jit(tree)
    static: Any = jm.jit(lambda n, x: x * n, static_argnums=0)
    one, two = np.ones(4, np.float32), jnp.ones(4)
    for a, b, scale in ((one, two, 2), (two, two, 2), (one, one, one), (two, one, 3.0), (one, 1.5, 2)):
        for _ in range(2):
            wanted = tree(jnp.asarray(a), {"a": b, "b": [one]}, scale=scale)
            np.testing.assert_allclose(fun(a, {"a": b, "b": [one]}, scale=scale), wanted, rtol=1e-6)
        for n in (2, 2.5):
            np.testing.assert_allclose(static(n, a), np.asarray(a) * n)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (np.ma.masked_array(np.ones(4, np.float32), [1, 0, 0, 0]), ArgumentTypeError),
        (np.ones(4, ">f4"), ArgumentTypeError),
        (np.array(["a"] * 4), ArgumentTypeError),
    ],
    ids=["masked", "byte order", "text"],
)
def test_errors_are_those_of_a_first_call(wrong: Any, error: type[Exception]) -> None:
    messages = list[str]()
    for before in ((), (np.ones(4, np.float32),), (jnp.ones(4),)):
        fun: Any = jm.jit(long)
        for x in before:
            fun(x)
        with pytest.raises(error) as raised:
            fun(wrong)
        messages.append(str(raised.value))
    assert len(set(messages)) == 1


def test_a_deleted_array_after_numpy_arrays() -> None:
    fun: Any = jm.jit(jnp.add)
    gone = jnp.ones(4)
    fun(np.ones(4, np.float32), np.ones(4, np.float32))
    gone.delete()
    with pytest.raises(DeletedError):
        fun(gone, np.ones(4, np.float32))


def test_parts_of_other_programs_after_numpy_arrays() -> None:
    fun: Any = jm.jit(long)
    x = np.ones(4, np.float32)
    fun(x)
    wanted = long(jnp.ones(4))
    np.testing.assert_allclose(jax.jit(lambda: fun(x))(), wanted, rtol=1e-6)
    fun(x)
    np.testing.assert_allclose(jax.vmap(fun)(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(fun(x), wanted, rtol=1e-6)


def test_threads_with_and_without_numpy_arrays() -> None:
    fun: Any = jm.jit(long)
    failures = list[Any]()

    def work(number: int) -> None:
        for _ in range(30):
            x = np.full(1 << 14, number, np.float32)
            got = fun(x if number % 2 else jnp.asarray(x.copy()))
            x[:] = -1
            if not np.allclose(got, wanted[number], rtol=1e-4):
                failures.append(number)

    wanted = [np.asarray(long(jnp.full(1 << 14, n, jnp.float32))) for n in range(4)]
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
