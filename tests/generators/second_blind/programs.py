"""All programs of the sets, by name; a maintainer added those of `wider`, another author those of `third_set`."""

from tests.generators.second_blind import attention, collectives, signals, tables, third_set, training, wider
from tests.generators.second_blind.made import ALL

THIRD = [name for name, made in ALL.items() if made.__module__ == third_set.__name__]
"""The programs of the third set."""
SECOND = [name for name in ALL if name not in THIRD]
"""The programs of the second set."""

__all__ = ["ALL", "SECOND", "THIRD", "attention", "collectives", "signals", "tables", "third_set", "training", "wider"]
