"""The text of an issue for tt-mlir: the smallest program, what the compiler makes of it, the proof and the remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.diagnose import Diagnosis, minimize
from jaxmesh.analysis.diagnose.diagnosis import REFUSED
from jaxmesh.analysis.repair.repair import Repair
from jaxmesh.jaxprs.source_locations import short_location

PROOF = (
    "The proof: the text that the compiler printed was run on emulated devices, and each value compared with the "
    "program on one device."
)


def issue_text(repair: Repair, source: str, plugin: str, cluster: str, compiler: Callable[[str], Any]) -> str:
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
    text, jax = (source, "") if small is None else (small.stablehlo, small.jax or "")
    parts = [
        f"# {_title(found)}",
        f"{plugin}, compiled for a described {cluster}; no board is needed.",
        _section("What happens", str(found)),
        *([] if found.verdict == REFUSED else [PROOF]),
        _section("StableHLO", text, "mlir"),
        *([_section("The same in JAX", jax, "python")] if jax else []),
        _section("What is right", _remedy(repair)),
        *([_section("The program that is compiled right", repair.text, "mlir")] if repair and repair.changes else []),
    ]
    return "\n\n".join(parts) + "\n"


def _title(found: Diagnosis) -> str:
    first = textwrap.shorten(found.cause or found.verdict, 90, placeholder=" ...")
    return f"{found.verdict}: {found.op}: {first}" if found.op else f"{found.verdict}: {first}"


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
