"""`jaxmesh selftest`: checks on this machine that sharded and unsharded programs compute the same results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.demo.checks import Check, compare
from jaxmesh.cli.demo.model import dims_for
from jaxmesh.cli.demo.run import run
from jaxmesh.cli.options import Commands, emulated_mesh, say_step, seed_of
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax

SELFTEST = """Checks on this machine that sharded programs compute what the unsharded ones do: the demo's transformer
block with its gradients, and a few programs in every way to run them. Exit codes: 0 all hold, 1 one fails, 2 usage."""


def add_commands(commands: Commands) -> None:
    """Adds `selftest` to the parser of the command line."""
    parser = commands.add_parser("selftest", description=SELFTEST)
    parser.add_argument("--seed", type=seed_of, default=0, metavar="N", help="seed of the random inputs (default: 0)")


def product(x: Any, w: Any) -> Any:
    """Returns a matmul over a split contracted dim."""
    x, w = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
    return jm.shard_to_full(lax.psum(x @ w, "x"), P("y"))


def softmax(x: Any, w: Any) -> Any:
    """Returns a softmax over a split dim."""
    e = jnp.exp(jm.full_to_shard(x @ w, P("y", "x")))
    return jm.shard_to_full(e / lax.psum(e.sum(1, keepdims=True), "x"), P("y", "x"))


def ring(x: Any, w: Any) -> Any:
    """Returns a sum over a mesh axis, computed by a ring of exchanges."""
    shard, pairs = jm.full_to_shard(x @ w, P("y", "x")), [(0, 1), (1, 2), (2, 3), (3, 0)]

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        return (carry[0] + carry[1], lax.ppermute(carry[1], "x", pairs)), None

    return jm.shard_to_full(jax.lax.scan(step, (jnp.zeros_like(shard), shard), None, length=4)[0][0], P("y", "x"))


PROGRAMS: dict[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    product: lambda x, w: x @ w,
    softmax: lambda x, w: jax.nn.softmax(x @ w, axis=1),
    ring: lambda x, w: jnp.tile((x @ w).reshape(4, 4, 2).sum(1), 4),
}


def comparisons(mesh: Mesh, seed: int) -> Iterator[Check]:
    """Compares every program with its unsharded form: called, compiled, on the reference executor, differentiated."""
    random = np.random.default_rng(seed)
    x, w = (jnp.asarray(random.standard_normal(s, np.float32)) for s in ((4, 8), (8, 8)))
    for sharded, plain in PROGRAMS.items():
        f, wanted = jm.jit(sharded, mesh=mesh), plain(x, w)
        lowered, name = f.lower(x, w), sharded.__name__
        for way, run_it in (("called", f), ("compiled", lowered.compile()), ("reference executor", lowered.reference)):
            yield compare(f"{name}, {way}", run_it(x, w), wanted)
        slopes: list[Any] = [typed.vjp(g, x, w)[1](wanted)[1] for g in (f, plain)]
        yield compare(f"{name}, differentiated", *slopes)


def selftest(arguments: argparse.Namespace) -> int:
    """Runs all comparisons and prints the failures and a verdict; returns the exit code."""
    start, mesh = time.monotonic(), emulated_mesh((2, 4))
    outcome = run(mesh, dims_for(mesh), lambda step: say_step(step, start))
    checks = [*outcome.checks, *comparisons(mesh, arguments.seed)]
    wrong = [f"FAIL {c.name}: error {c.error:.1e}, allowed {c.tolerance:.0e} {c.note}" for c in checks if not c.passed]
    wrong += [f"FAIL {h.tensor} at {list(h.coordinate)} is not its slice" for h in outcome.holdings if not h.exact]
    verdict = "FAILED" if wrong else "holds"
    print(*wrong, f"selftest {verdict}: {len(checks)} comparisons, JAX {version('jax')}", sep="\n", flush=True)
    return 1 if wrong else 0
