"""All programs of the sets, by name; a maintainer added those of `wider`, other authors those of the later sets."""

from tests.generators.second_blind import (
    attention,
    collectives,
    fourth_set,
    signals,
    tables,
    third_set,
    training,
    wider,
)
from tests.generators.second_blind.made import ALL

THIRD, FOURTH = (
    [name for name, made in ALL.items() if made.__module__ == own.__name__] for own in (third_set, fourth_set)
)
"""The programs of the third and of the fourth set."""
SECOND = [name for name in ALL if name not in {*THIRD, *FOURTH}]
"""The programs of the second set."""

__all__ = [
    "ALL",
    "FOURTH",
    "SECOND",
    "THIRD",
    "attention",
    "collectives",
    "fourth_set",
    "signals",
    "tables",
    "third_set",
    "training",
    "wider",
]
