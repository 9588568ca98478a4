"""The names of variables, which are found row by row, are those in the text of the whole program."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from jaxmesh.jaxprs.walk import open_jaxpr, variable_names


def program(x: Any, y: Any) -> Any:
    inner = jax.jit(lambda x: jnp.where(x > 0, jnp.sin(x), x) + 1)
    jnp.tanh(x)
    left, _ = jnp.linalg.qr(x)
    y, sums = jax.lax.scan(lambda c, t: (inner(c) + t, jnp.sum(c)), y, jnp.stack([x, x]))
    z = jax.lax.cond(jnp.sum(y) > 0, lambda q: q + 1, inner, inner(y))
    for i in range(40):
        z = jnp.sin(z) + i
    return z, left, sums


def test_names_are_those_of_the_text() -> None:
    x = jnp.ones((4, 4))
    for fun in (program, jax.grad(lambda *args: program(*args)[0].sum())):
        jaxpr = jax.make_jaxpr(fun)(x, x)
        names, body = variable_names(jaxpr), open_jaxpr(jaxpr)
        text, at = jaxpr.pretty_print(use_color=False, print_shapes=False), 0
        for eqn in (e for e in body.eqns if e.outvars):
            made = re.escape(" ".join(names[v] for v in eqn.outvars))
            found = re.compile(rf"(?<![^\s;]){made} = {eqn.primitive.name}\b").search(text, at)
            assert found is not None, (at, made, eqn.primitive.name)
            at = found.end()
        # They end together.
        last = [names[v] for v in body.outvars if v in names]
        assert re.search(rf"in \({re.escape(last[0])}\b", text[at:])
