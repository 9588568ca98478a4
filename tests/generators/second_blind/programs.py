"""All programs of the set, by name; a maintainer added those of `wider`."""

from tests.generators.second_blind import attention, collectives, signals, tables, training, wider
from tests.generators.second_blind.made import ALL

__all__ = ["ALL", "attention", "collectives", "signals", "tables", "training", "wider"]
