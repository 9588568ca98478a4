"""Further arguments for a stage with right results: its operations may be wrong in what no result shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.diagnose.integer_uses import IntegerUses, Need
from jaxmesh.analysis.diagnose.matching import Globals
from jaxmesh.analysis.diagnose.reference import bounded, run_program
from jaxmesh.analysis.diagnose.reference_value import Reference
from jaxmesh.analysis.diagnose.stage import Array, place_arguments, run_stage
from jaxmesh.analysis.diagnose.texts import StageTexts
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.control_flow import find_counter
from jaxmesh.frontends.stablehlo.gspmd import walk

_BELOW = (2, 4)
"""By draw, the bound of the integers that nothing restricts: programs compare them with small numbers."""
_LARGER = (4.0, 0.25)
"""By draw, by how much floats are larger than those that the program was run for."""
_FURTHER, _MOST = 64, 0.05
"""By how much more than with other arguments a result has to differ, at most by which part of its largest magnitude:
rounding grows with the arguments."""


def revealing(texts: StageTexts, runs: Sequence[Track], seed: int) -> Iterator[Reference]:
    """Yields the runs of the program for other arguments for which the results of a right stage seem wrong: one draw
    for every stage, and one more for a stage with values that are not explained.

    Args:
      texts: the texts.
      runs: the right runs of stages.
      seed: the seed of the arguments.
    """
    hiding = [r for r in runs if any(r.unexplained.keys() & {*op.results} for _, op in r.before(r.results))]
    for draw, asked in enumerate((runs, hiding) if runs and _ends(runs[0].reference.block) else ()):
        known = runs[0].reference
        try:
            made = run_program(texts.frontend, texts.compiler, list(_drawn(known, draw, seed)), 0) if asked else None
            with bounded(texts, made or known):
                is_wrong = made is not None and _is_as_valid(made, known) and any(_is_wrong(r, made) for r in asked)
        except JaxmeshError:
            continue
        if made is not None and is_wrong:
            yield made


def _ends(block: Any) -> bool:
    """Returns True if no arguments make a loop of a program go on forever: all loops count."""
    inner = (op for o in block.operations for op in (o.operation, *walk(o.operation)))
    return all(find_counter(op) is not None for op in inner if op.name == "stablehlo.while")


def _drawn(known: Reference, draw: int, seed: int) -> Iterator[Array]:
    """Yields arguments of other sizes; integers that have to lie somewhere stay, and others are few numbers."""
    rng: Any = np.random.default_rng((seed, draw))
    needs = IntegerUses.of(known.block).needs
    for number, x in enumerate(known.inputs):
        need, is_integer = needs.get(number, Need()), jnp.issubdtype(x.dtype, jnp.integer)
        if is_integer and not (need.spans or need.once):
            # A single integer is the bound itself.
            low = 0 if x.size > 1 else _BELOW[draw]
            yield rng.integers(low, max(low + 1, _BELOW[draw]), x.shape).astype(x.dtype)
        else:
            yield (x * x.dtype.type(_LARGER[draw])).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _is_as_valid(made: Reference, known: Reference) -> bool:
    """Returns True if a run divides no integer by zero, and if all results are finite that were."""

    def zeros(run: Reference) -> int:
        rows = [v for v in run.values if v.op.endswith((".divide", ".remainder")) and v.array.dtype.kind in "iu"]
        return sum(bool((run.values[v.operands[1]].array == 0).any()) for v in rows)

    def finite(run: Reference) -> list[Any]:
        return [np.isfinite(run.values[n].array.astype(np.complex128)) for n in run.outputs]

    stays = all(bool((now >= before).all()) for now, before in zip(finite(made), finite(known), strict=True))
    return stays and zeros(made) <= zeros(known)


def _is_wrong(run: Track, reference: Reference) -> bool:
    """Returns True if a stage has a wrong result for the arguments of a run of the program."""
    placed = place_arguments(run.stage, reference.inputs, reference.arguments)
    found = {v: copies for v, copies in run_stage(run.stage, placed) if v in run.results}
    other = Track(run.stage, reference, Globals.of(reference).on(run.stage.mesh), units=run.units, errors=run.errors)
    errors = [other.output(i, o.value, found[o.value]).error for i, o in enumerate(run.outputs)]
    return any(e > max(o.limit, min(_FURTHER * o.limit, _MOST)) for e, o in zip(errors, run.outputs, strict=True))
