"""Estimates beside the published times of tt-metal's model table: a table of docs/tables.

`python -m tests.generators.estimates` writes it; `--print` prints it and writes nothing. An estimate is a bound, so one
that is not below the published time is wrong: the command ends with 1 then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.generators.published_models import MODELS, SOURCE, Model
from tests.generators.readme_tables import write

FIDELITY = "LoFi"
"""The fastest, since demos set their own for each product."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model: seconds of a step, published and estimated, and the shares of the estimate."""

    model: str
    cluster: str
    published: float
    estimate: float
    overlapped: float
    compute: float
    dram: float
    links: float

    @property
    def is_bound(self) -> bool:
        return 0 < self.overlapped <= self.estimate < self.published

    def __str__(self) -> str:
        times = " | ".join(f"{1e3 * s:.2f}" for s in (self.published, self.estimate, self.overlapped))
        shares = " | ".join(f"{s:.0%}" for s in (self.compute, self.dram, self.links))
        return f"| {self.model} | {self.cluster} | {times} | {self.estimate / self.published:.2f} | {shares} |"


def row(model: Model) -> Row:
    """Estimates one model."""
    found = model.lower().estimate(model.cluster, stored=model.stored, fidelity=FIDELITY)
    shares = (found.shares[part] for part in ("compute", "DRAM", "links"))
    name = f"{model.name}, {model.per_step} {model.unit}" if model.per_step > 1 else model.name
    return Row(name, model.cluster, model.published, found.seconds, found.overlapped_seconds, *shares)


def faults(found: Iterable[Row]) -> list[str]:
    """Returns the models whose estimate is no bound."""
    return [
        f"{r.model} on {r.cluster}: {r.estimate:.6f} s is not below the published {r.published:.6f} s"
        for r in found
        if not r.is_bound
    ]


def table(found: Sequence[Row]) -> str:
    """Returns the table, with where the published times come from."""
    head = (
        "| model | cluster | published, ms | at least, ms | overlapped, ms | ratio | compute | DRAM | links |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    closing = (
        f"Published: [tt-metal's model table]({SOURCE}) of 2025-11-03, end to end: a token of each user, or a batch. "
        f"Weights are stored as the demos have them, activations are bfloat16, products run at {FIDELITY}."
    )
    return "\n".join([head, *map(str, found), "", closing])


def main(arguments: Sequence[str]) -> int:
    found = [row(model) for model in MODELS]
    if "--print" in arguments:
        print(table(found))
    else:
        write("estimates", table(found))
    wrong = faults(found)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
