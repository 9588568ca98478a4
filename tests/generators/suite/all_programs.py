"""The suite: programs that every way to run them has to give the same results for.

`PROGRAMS` is for parametrised tests; see `suite_entry.Entry` for what each one says.
"""

from __future__ import annotations

import suite_models
import suite_moves
from suite_entry import Entry as Entry

PROGRAMS: list[Entry] = [*suite_moves.PROGRAMS, *suite_models.PROGRAMS]
BY_NAME = {e.name: e for e in PROGRAMS}
