"""All programs of the sets, by name; a maintainer added those of `wider`, other authors those of the later sets."""

from tests.generators.second_blind import (
    attention,
    collectives,
    fifth_set,
    fourth_set,
    signals,
    tables,
    third_set,
    training,
    wider,
)
from tests.generators.second_blind.made import ALL

THIRD, FOURTH, FIFTH = (
    [name for name, made in ALL.items() if made.__module__ == own.__name__]
    for own in (third_set, fourth_set, fifth_set)
)
"""The programs of the third, of the fourth and of the fifth set."""
SECOND = [name for name in ALL if name not in {*THIRD, *FOURTH, *FIFTH}]
"""The programs of the second set."""

__all__ = [
    "ALL",
    "FIFTH",
    "FOURTH",
    "SECOND",
    "THIRD",
    "attention",
    "collectives",
    "fifth_set",
    "fourth_set",
    "signals",
    "tables",
    "third_set",
    "training",
    "wider",
]
