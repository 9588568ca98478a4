"""The suite: programs that every way to run them has to give the same results for.

`PROGRAMS` is for parametrised tests; see `suite_entry.Entry` for what each one says.
"""

from __future__ import annotations

from tests.generators.suite import models as suite_models, moves as suite_moves
from tests.generators.suite.entry import Entry as Entry

PROGRAMS: list[Entry] = [*suite_moves.PROGRAMS, *suite_models.PROGRAMS]
BY_NAME = {e.name: e for e in PROGRAMS}
