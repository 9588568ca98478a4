"""A table of rules by name. Each file of a pass fills a table, and the pass joins the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Rules(dict[str, T]):
    """Rules by the name of the operation or primitive that they rewrite.

    >>> rules = Rules()
    >>> @rules.add("sine", "cosine")
    ... def wave(): ...
    >>> sorted(rules)
    ['cosine', 'sine']
    """

    def add(self, *names: str) -> Callable[[T], T]:
        """Adds the decorated function under each name."""

        def enter(rule: T) -> T:
            for name in names:
                assert name not in self, name
                self[name] = rule
            return rule

        return enter
