"""The text of an issue for tt-mlir: the smallest program, what the compiler makes of it, the proof and the remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from jaxmesh.analysis.diagnose import minimize
from jaxmesh.analysis.diagnose.as_jax import as_jax
from jaxmesh.analysis.diagnose.diagnosis import REFUSED
from jaxmesh.analysis.repair.repair import Repair, in_short
from jaxmesh.frontends.mlir.source import parse
from jaxmesh.frontends.stablehlo.shardings import replicated
from jaxmesh.frontends.stablehlo.text import read_boundary
from jaxmesh.jaxprs.source_locations import short_location

PROOF = (
    "The proof: the text that the compiler printed was run on emulated devices, and each value compared with the "
    "program on one device."
)


def issue_text(repair: Repair, source: str, plugin: str, cluster: str, compiler: Callable[[str], object]) -> str:
    """Returns an issue in Markdown.

    Args:
      repair: the repair of the program.
      source: the StableHLO text of the program.
      plugin: the compiler's package and version.
      cluster: the machine that was described to it.
      compiler: compiles a StableHLO text, for the smallest program with the error.
    """
    found = repair.before
    small = None if found.culprit is None else minimize(found, compiler=compiler)
    text, jax = (_plain(source), _in_jax(source)) if small is None else (small.stablehlo, small.jax)
    parts = [
        f"# {textwrap.shorten(in_short(found), 110, placeholder=' ...')}",
        f"{plugin}, compiled for a described {cluster}; no board is needed.",
        _section("What happens", str(found)),
        *([] if found.verdict == REFUSED else [PROOF]),
        _section("StableHLO", text, "mlir"),
        *([_section("The same in JAX", jax, "python")] if jax else []),
        _section("What is right", _remedy(repair)),
        *(
            [_section("The program that is compiled right", _plain(repair.text), "mlir")]
            if repair and repair.changes
            else []
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Returns a text without locations, which name files of its author."""
    return "\n".join(str(piece.module) for piece in parse(text))


def _in_jax(text: str) -> str | None:
    """Returns a StableHLO text as a JAX program if each operation has a short form there, and it has one result."""
    (piece, *_), ends = parse(text), read_boundary(text)
    functions = [o.operation for o in piece.module.body.operations if o.operation.name == "func.func"]
    (entry,) = functions[0].regions[0].blocks
    *ops, end = [o.operation for o in entry.operations]
    if len(functions) > 1 or len(end.operands) != 1:
        return None
    shardings = [sharding or replicated(len(shape)) for shape, sharding in ends.arguments]
    ((_, result),) = ends.results
    return as_jax(ops, list(entry.arguments), end.operands[0], shardings, result, ends.axes)


def _remedy(repair: Repair) -> str:
    if not repair:
        return f"no remedy was found; {repair.reason}"
    if not repair.changes:
        return "the program is compiled right"
    lines = [f"{short_location(c.source) or 'the program'}: {c.what}" for c in repair.changes]
    costs: Sequence[str] = [f"{when}: {cost}" for when, cost in repair.costs.items()]
    return "\n".join([*lines, *costs, "compiled again, it is " + repair.verdict])


def _section(title: str, text: str, language: str = "") -> str:
    return f"## {title}\n\n```{language}\n{text.rstrip()}\n```"
