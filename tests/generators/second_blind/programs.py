"""All programs of the sets, by name; a maintainer added those of `wider`, other authors those of the later sets."""

from tests.generators.second_blind import (
    attention,
    collectives,
    eighth_set,
    fifth_set,
    fourth_set,
    ninth_set,
    seventh_set,
    signals,
    sixth_set,
    tables,
    third_set,
    training,
    wider,
)
from tests.generators.second_blind.made import ALL

THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH = (
    [name for name, made in ALL.items() if made.__module__ == own.__name__]
    for own in (third_set, fourth_set, fifth_set, sixth_set, seventh_set, eighth_set, ninth_set)
)
"""The programs of each set from the third to the ninth."""
SECOND = [name for name in ALL if name not in {*THIRD, *FOURTH, *FIFTH, *SIXTH, *SEVENTH, *EIGHTH, *NINTH}]
"""The programs of the second set."""

__all__ = [
    "ALL",
    "EIGHTH",
    "FIFTH",
    "FOURTH",
    "NINTH",
    "SECOND",
    "SEVENTH",
    "SIXTH",
    "THIRD",
    "attention",
    "collectives",
    "eighth_set",
    "fifth_set",
    "fourth_set",
    "ninth_set",
    "seventh_set",
    "signals",
    "sixth_set",
    "tables",
    "third_set",
    "training",
    "wider",
]
