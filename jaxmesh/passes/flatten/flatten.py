"""The pass from a jaxpr to a flat program. Each JAX primitive becomes operations of TTIR, by the rules of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxmesh.dialects.program import Port, Program, Type, Value, without_dead
from jaxmesh.dialects.residency import DEVICE, HOST, ResidencyMap
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import primitives
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.primitives import CALLBACKS, CALLS_HOST, MACHINE_BITS
from jaxmesh.passes.flatten import (
    bits,
    collectives,
    complex_pairs,
    control_flow,
    convolutions,
    dot_general,
    elementwise,
    linear_algebra,
    loops,
    random,
    reduce_window,
    reductions,
    scatter,
    shapes,
    slicing_and_gather,
    special_functions,
)
from jaxmesh.passes.flatten.builder import Builder, Options, Rule
from jaxmesh.passes.flatten.constant_folding import storage_type

_DECOMPOSES = (
    "JAX calls a library of the host for it, and neither TTIR nor TTNN has such an operation; compute it on the host, "
    "or write it as matrix products in a jax.lax.while_loop, which has a text"
)
REFUSED = {
    **dict.fromkeys(CALLBACKS, CALLS_HOST),
    **dict.fromkeys(("eigh", "eig", "svd", "schur"), _DECOMPOSES),
    "rng_bit_generator": MACHINE_BITS,
}
"""Primitives that no text can express: what TTIR lacks for each, and what to do instead."""


def _refuse(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    name = eqn.primitive.name
    raise InexpressibleError(f"no text for primitive {name!r} ({b.line}): {REFUSED[name]}.")


_FILES = (
    bits, collectives, complex_pairs, control_flow, convolutions, dot_general, elementwise, linear_algebra, random,
    reduce_window, reductions, scatter, shapes, slicing_and_gather, special_functions,
)  # fmt: skip
_RULES: Mapping[str, Rule] = {name: rule for file in _FILES for name, rule in file.RULES.items()}
RULES = (
    dict.fromkeys(REFUSED, _refuse)
    | _RULES
    | {name: random.move_keys(rule) for name, rule in _RULES.items() if name in primitives.MOVES}
)
"""By the name of the primitive. Rules of primitives that only move data take keys of random numbers, too."""


def flatten(
    jaxpr: Jaxpr,
    *,
    name: str,
    mesh: Mapping[str, int],
    level: str,
    arguments: Sequence[tuple[bool, str]],
    results: Sequence[tuple[bool, str]],
    options: Options | None = None,
) -> Program:
    """Returns the flat program of a closed jaxpr.

    `level` is `ttir` for a traced and `ttnn` for a lowered jaxpr. `arguments` and `results` are pairs: True if it is on
    the devices, and its path.

    Raises:
      MissingRuleError: a primitive has no rule.
      UnsupportedError: a loop whose trip count is not static, or too large.
    """
    program, options = Program(name, dict(mesh)), options or Options()
    if options.keep_above is not None:
        options = replace(options, keep_above=loops.largest_unrolled(jaxpr, options.keep_above, mesh))
    builder = Builder(program, level, RULES, options)
    if level == "ttnn" and options.keep_above is not None:
        builder.residencies = ResidencyMap(jaxpr, [DEVICE if presharded else HOST for presharded, _ in arguments])
    for aval, (presharded, path) in zip(jaxpr.in_avals, arguments, strict=True):
        value = program.new(Type(*storage_type(aval)))
        program.arguments.append(Port(value, presharded, path))
    outs = builder.jaxpr(jaxpr, [a.value for a in program.arguments])
    for aval in jaxpr.out_avals:
        storage_type(aval)
    program.results = [Port(v, presharded, path) for v, (presharded, path) in zip(outs, results, strict=True)]
    return without_dead(program)


def flatten_on_devices(jaxpr: Jaxpr, mesh: Mapping[str, int]) -> Program:
    """Returns the flat program of a lowered jaxpr whose inputs and results are on the devices; raises as `flatten`."""
    ins, outs = [(True, "")] * len(jaxpr.in_avals), [(True, "")] * len(jaxpr.out_avals)
    return flatten(jaxpr, name="alone", mesh=mesh, level="ttnn", arguments=ins, results=outs)
