"""All programs of the sets, by name; a maintainer added those of `wider`, other authors those of the later sets."""

from tests.generators.second_blind import (
    attention,
    collectives,
    fifth_set,
    fourth_set,
    signals,
    sixth_set,
    tables,
    third_set,
    training,
    wider,
)
from tests.generators.second_blind.made import ALL

THIRD, FOURTH, FIFTH, SIXTH = (
    [name for name, made in ALL.items() if made.__module__ == own.__name__]
    for own in (third_set, fourth_set, fifth_set, sixth_set)
)
"""The programs of the third, of the fourth, of the fifth and of the sixth set."""
SECOND = [name for name in ALL if name not in {*THIRD, *FOURTH, *FIFTH, *SIXTH}]
"""The programs of the second set."""

__all__ = [
    "ALL",
    "FIFTH",
    "FOURTH",
    "SECOND",
    "SIXTH",
    "THIRD",
    "attention",
    "collectives",
    "fifth_set",
    "fourth_set",
    "signals",
    "sixth_set",
    "tables",
    "third_set",
    "training",
    "wider",
]
