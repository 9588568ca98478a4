"""The demo's results as text and as files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxmesh.cli.demo.checks import Check, Holding, show_slices
from jaxmesh.cli.demo.run import DemoOutcome
from jaxmesh.drawing.text_layout import align_columns

NEXT = (
    ("jaxmesh demo --verbose", "every comparison, every shard, and the programs for the devices"),
    ("jaxmesh demo --out DIR", "the same, as files"),
    ("jaxmesh/cli/demo/model.py", "the sharded block, to read and copy"),
    ("jaxmesh --help", "the other commands, such as explain, estimate and diagnose"),
)
"""Where to look next."""


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [title, *(f"  {line}" for line in align_columns([columns, *rows]))]


# --- the screen ------------------------------------------------------------------------------------------------------


def summary(outcome: DemoOutcome) -> str:
    """Returns one screen: what ran, the verdicts, what moved, and where to look next."""
    checks, holdings = outcome.checks, outcome.holdings
    good, exact = sum(c.passed for c in checks), sum(h.exact for h in holdings)
    per_device = {c: sum(h.nbytes for h in holdings if h.coordinate == c) for c in {h.coordinate for h in holdings}}
    axes, d = ", ".join(f"{name}={size}" for name, size in outcome.mesh.shape.items()), outcome.dims
    *data, model = outcome.mesh.axis_names
    batch = f"the batch is split over {', '.join(data)}, " if data else ""
    verdicts = (("compared with the same block on one device", "error", "allowed", "result"), *_verdicts(checks))
    moves = [(t.kind, ", ".join(t.axes) or "no axis: copies", str(t.count), f"{t.bytes:>9,}") for t in outcome.moves]
    moved = (("moved by a forward pass", "over", "times", "bytes of each device"), *moves)
    return "\n".join([
        f"A Llama-style transformer block on {outcome.mesh.devices.size} emulated devices, mesh {axes}:",
        f"{batch}heads and MLP over {model}; at most {max(per_device.values()):,} bytes on each device",
        f"batch {d.batch}, sequence {d.sequence}, width {d.width}, {d.kv_heads * d.queries_per_kv} query heads and "
        f"{d.kv_heads} key heads of {d.head}, hidden {d.hidden}",
        "", *align_columns(verdicts), "", *align_columns(moved), "",
        f"{'PASS' if outcome.passed else 'FAIL'}: {good} of {len(checks)} comparisons within tolerance, "
        f"{exact} of {len(holdings)} shards bit-equal to their slice",
        "", *_table("Where to look next", *NEXT[:1], NEXT[1:]),
    ])  # fmt: skip


def _verdicts(checks: Sequence[Check]) -> list[tuple[str, ...]]:
    """Returns one line per program: its largest error, and how many of its comparisons pass."""
    lines = list[tuple[str, ...]]()
    for program in dict.fromkeys(c.program for c in checks):
        of_it = [c for c in checks if c.program == program]
        # A value that is not a number is the largest error.
        worst = max(of_it, key=lambda c: (math.isnan(c.error), c.error))
        good = sum(c.passed for c in of_it)
        verdict = f"{worst.verdict} {good} of {len(of_it)}"
        lines.append((program, f"{worst.error:.1e}", f"{worst.tolerance:.0e}", verdict))
    return lines


# --- the whole -------------------------------------------------------------------------------------------------------


def checks_table(checks: Sequence[Check]) -> list[str]:
    """Returns a table with one row per comparison."""
    results = (f"{c.verdict} ({c.note})" if c.note else c.verdict for c in checks)
    errors = ((c.name, f"{c.error:.1e}", f"{c.tolerance:>9.0e}") for c in checks)
    rows = ((*error, result) for error, result in zip(errors, results, strict=True))
    title = "Against the unsharded model: largest difference relative to the largest magnitude"
    return _table(title, ("comparison", "error", "tolerance", "result"), rows)


def holdings_table(holdings: Sequence[Holding], axes: Sequence[str]) -> list[str]:
    """Returns a table with one row per device and tensor."""
    rows = list[Sequence[str]]()
    for h in holdings:
        device, exact = f"({', '.join(map(str, h.coordinate))})", "yes" if h.exact else "FAIL"
        rows.append((device, h.tensor, str(list(h.shape)), show_slices(h.slices), f"{h.nbytes:>9,}", exact))
    columns = ("tensor", "local shape", "slice of the full tensor", "    bytes", "bit-equal")
    return _table("What each device holds", (f"device ({', '.join(axes)})", *columns), rows)


def report_text(outcome: DemoOutcome) -> str:
    """Returns all tables and the summary, without the programs."""
    held = holdings_table(outcome.holdings, outcome.mesh.axis_names)
    return "\n".join([*checks_table(outcome.checks), "", *held, "", summary(outcome)]) + "\n"


def whole_text(outcome: DemoOutcome) -> str:
    """Returns the programs, all tables and the summary."""
    return f"TTIR program\n{outcome.ttir}\n\nTTNN program\n{outcome.ttnn}\n\n{report_text(outcome)}"


def write(outcome: DemoOutcome, folder: Path) -> list[Path]:
    """Writes the programs and the report into an existing folder."""
    texts = {
        "ttir.mlir": outcome.ttir + "\n",
        "ttnn.mlir": outcome.ttnn + "\n",
        "hlo.txt": outcome.hlo,
        "report.txt": report_text(outcome),
    }
    for name, text in texts.items():
        # JAX colours the text of a program if it runs in a terminal.
        (folder / name).write_text(re.sub(r"\x1b\[[0-9;]*m", "", text), encoding="utf-8")
    return [folder / name for name in texts]
