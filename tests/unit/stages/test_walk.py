"""The walk of one array through `jm.jit(f)(x)`, and of a text through `jm.from_mlir`: nothing is done twice."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import full_to_shard, shard_to_full
from jaxmesh.frontends.mlir import trace
from jaxmesh.stages import arguments
from tests.generators.suite.all_programs import PROGRAMS, Entry

FIRST_CALL, LATER_CALLS, WITH_THE_ARRAY = 43, 9, 19
"""Modules of which a function runs in the first and in every later call; those of them that are given the array."""


def holds_array(value: Any, depth: int = 0) -> bool:
    """Returns True for an array, concrete or traced, and for a short tree with one."""
    if isinstance(value, jax.Array):
        return True
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return depth < 2 and any(holds_array(x, depth + 1) for x in parts)


def modules_entered(call: Callable[[], Any]) -> tuple[set[str], set[str], Counter[str]]:
    """Returns the modules whose functions a call runs, those that are given an array, and how often functions run."""
    entered: set[str] = set()
    given: set[str] = set()
    functions: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("jaxmesh."):
            return
        code = frame.f_code
        entered.add(module)
        functions[f"{module}.{code.co_qualname}"] += 1
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        values = [frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals]
        if any(map(holds_array, values)):
            given.add(module)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered, given, functions


def matmul(x: Any, w: Any) -> Any:
    x, w = full_to_shard(x, P("y", "x")), full_to_shard(w, P("x"))
    return shard_to_full(jax.lax.psum(x @ w, "x"), P("y"))


def test_an_array_passes_few_modules() -> None:
    f, x, w = jm.jit(matmul, mesh=jm.make_mesh((2, 4))), jnp.ones((4, 8)), jnp.ones((8, 6))
    # The first trace of a process wraps what JAX binds, once for all.
    jm.jit(lambda x: shard_to_full(full_to_shard(x, P("y")), P("y")), mesh=jm.make_mesh((2, 4))).trace(x)
    with jm.check_replication(False):
        first, given, functions = modules_entered(lambda: f(x, w))
        later, _, again = modules_entered(lambda: f(x, w))
    assert len(given) <= WITH_THE_ARRAY, sorted(given)
    assert len(first) <= FIRST_CALL, sorted(first)
    assert len(later) <= LATER_CALLS, sorted(later)
    assert functions[f"{arguments.__name__}.{arguments.flatten.__name__}"] == 1
    assert not again[f"{arguments.__name__}.{arguments.flatten.__name__}"]
    assert not [name for name in functions if ".ArgumentSet." in name]


@pytest.mark.parametrize("entry", PROGRAMS[::12], ids=lambda e: e.name)
def test_a_text_is_traced_once(entry: Entry) -> None:
    traced = entry.traced
    for text in (traced.as_text(), traced.lower().as_text()):
        _, _, functions = modules_entered(lambda text=text: jm.from_mlir(text, entry.mesh))
        assert functions[f"{trace.__name__}.{trace.trace_program.__name__}"] == 1
