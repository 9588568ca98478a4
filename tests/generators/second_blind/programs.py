"""All programs of the set, by name."""

from tests.generators.second_blind import attention, collectives, signals, tables, training
from tests.generators.second_blind.made import ALL

__all__ = ["ALL", "attention", "collectives", "signals", "tables", "training"]
