"""Counts what a jaxpr computes and reads, equation by equation in plain Python; the package only takes loops apart.

It knows the primitives of the programs that `program_to_count` makes, and no other.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.jaxprs.control_flow import control_flow

EACH = {"add", "sub", "mul", "max", "exp", "tanh", "neg"}
MOVED = {"transpose", "reshape", "broadcast_in_dim", "slice", "concatenate", "squeeze"}
REDUCED = {"reduce_sum", "reduce_max"}


class Counting:
    """Operations by kind, and which elements of each input were read."""

    def __init__(self, jaxpr: Any) -> None:
        self.counts: Counter[str] = Counter()
        # Every element of an input has a number of its own; 0 stands for what is computed.
        numbers = itertools.count(1)
        self.sizes: dict[int, int] = {}
        values = list[Any]()
        for var in jaxpr.jaxpr.invars:
            size = int(np.prod(var.aval.shape))
            ids = np.array([next(numbers) for _ in range(size)]).reshape(var.aval.shape)
            self.sizes |= dict.fromkeys(ids.ravel().tolist(), var.aval.dtype.itemsize)
            values.append(ids)
        self.read: set[int] = set()
        self.body(jaxpr.jaxpr, jaxpr.consts, values)

    @property
    def bytes(self) -> int:
        """The bytes of the elements that were read."""
        return sum(self.sizes[i] for i in self.read)

    def body(self, jaxpr: Any, consts: Any, inputs: Any) -> list[Any]:
        env = dict(zip(jaxpr.constvars, map(np.zeros_like, consts), strict=True))
        env |= dict(zip(jaxpr.invars, inputs, strict=True))

        def value(atom: Any) -> Any:
            return np.zeros(atom.aval.shape, int) if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            env |= dict(zip(eqn.outvars, self.equation(eqn, [value(a) for a in eqn.invars]), strict=True))
        return [value(a) for a in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[Any]) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        if name in ("jit", "pjit", "closed_call"):
            return self.body(params["jaxpr"].jaxpr, params["jaxpr"].consts, operands)
        if name == "scan":
            return self.scan(control_flow(eqn), operands)
        if name == "slice":
            return [operands[0][tuple(map(slice, params["start_indices"], params["limit_indices"]))]]
        if name in ("reshape", "squeeze"):
            return [operands[0].reshape(eqn.outvars[0].aval.shape)]
        if name == "convert_element_type":
            return operands
        # All others read what they are given.
        for operand in operands:
            self.read |= set(operand[operand > 0].ravel().tolist())
        out = np.zeros(eqn.outvars[0].aval.shape, int)
        if name == "dot_general":
            ((contracted, _), _) = params["dimension_numbers"]
            for _ in np.ndindex(out.shape):
                self.counts["products"] += 2 * int(np.prod([operands[0].shape[d] for d in contracted]))
        elif name in EACH:
            self.counts["elementwise"] += out.size
        elif name in REDUCED:
            self.counts["reduced"] += operands[0].size
        else:
            assert name in MOVED, name
        return [out]

    def scan(self, flow: Any, operands: list[Any]) -> list[Any]:
        consts, carry, stacked = flow.split(operands)
        outs = []
        for turn in range(flow.length):
            results = self.body(flow.body.jaxpr, flow.body.consts, [*consts, *carry, *(x[turn] for x in stacked)])
            carry, out = flow.split_results(results)
            outs.append(out)
        return [*carry, *(np.stack(column) for column in zip(*outs, strict=True))]


def program_to_count(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a random program of products, elementwise operations, reductions, moves and loops, and its types."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice([3, 8, 17, 32, 40], 4)]
    dtypes = [np.float32, jnp.bfloat16]
    shapes = [tuple(int(n) for n in rng.choice(sizes, 2)) for _ in range(5)]
    dtype = dtypes[int(rng.integers(2))]
    steps = [(int(rng.integers(9)), int(rng.integers(1000)), int(rng.integers(1000))) for _ in range(6)]
    square = of_size(sizes[0], dtype)

    def fun(w: Any, *args: Any) -> Any:
        values = list(args)
        for kind, first, second in steps:
            x, y = values[first % len(values)], values[second % len(values)]
            values.append(step(kind, x, y, w))
        return values[-1], jnp.sum(values[-2], 0)

    return fun, (square, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))


def of_size(n: int, dtype: Any) -> Any:
    return jax.ShapeDtypeStruct((n, n), dtype)


def step(kind: int, x: Any, y: Any, w: Any) -> Any:
    """Returns the value of one step of a program."""
    n = w.shape[0]
    if kind == 0:
        return jnp.exp(x) @ jnp.tanh(y).reshape(-1, 1)[: x.shape[1]] if y.size >= x.shape[1] else jnp.exp(x)
    if kind == 1:
        return x.T @ x
    if kind == 2:
        return jnp.exp(x) * x
    if kind == 3:
        return -x + jnp.max(x, 1, keepdims=True)
    if kind == 4:
        return jnp.tanh(x).T
    if kind == 5:
        return jnp.exp(jnp.concatenate([x, -x], 0))
    if kind == 6:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), -w, None, length=3)[0]
    if kind == 7:
        last, rows = jax.lax.scan(lambda c, v: (c + v, v * v), jnp.exp(x[0]), x)
        return rows - last
    return (x.reshape(-1, 1) * jnp.ones((1, n), x.dtype))[: x.shape[0]]
