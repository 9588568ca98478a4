"""Writes `jaxmesh/ttnn/rules/elementwise.txt`: what the elementwise functions of the real `ttnn` take.

`python -m tests.generators.real_ttnn.elementwise_table` asks the library that `JAXMESH_TTNN_PYTHON` names, in minutes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.ttnn.rules.elementwise import NUMBERS, TABLE, tables
from jaxmesh.ttnn.signatures import NEWEST, signatures
from tests.generators.real_ttnn import elementwise
from tests.generators.real_ttnn.elementwise import OPTIONS, TYPES, Key
from tests.generators.real_ttnn.process import run_jobs

HEAD = """\
# What the elementwise functions of ttnn {} take; `elementwise.py` says how to read it. Written by
# tests/generators/real_ttnn/elementwise_table.py from the installed library.
"""
_OPERANDS = "xyz"
Answers = Mapping[Key, str]
"""By call the letter of the result's element type, empty for a refusal; calls without a signature are left out."""


def asked(callees: Mapping[str, int]) -> dict[str, tuple[list[str], Answers]]:
    """Returns by function the options that matter, and the answers of the library."""
    options = {c: [o for o in OPTIONS if n > 1 and _has(c, o)] for c, n in callees.items()}
    jobs = list(jobs_of(callees, options))
    found: dict[str, dict[Key, str]] = {c: {} for c in callees}
    for job, outcome in zip(jobs, run_jobs("elementwise", jobs), strict=True):
        known = zip(elementwise.keys(job), outcome, strict=True)
        found[job["callee"]] |= {key: answer for key, answer in known if answer != "-"}
    return {c: without_types(options[c], found[c]) for c in callees}


def jobs_of(callees: Mapping[str, int], options: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yields the jobs of the functions, one for each kind of the first operand."""
    tensors, numbers = "".join(TYPES), "".join(NUMBERS)
    for callee, count in callees.items():
        rest = tensors + numbers + ("-" if callee == "ttnn.clamp" else "")
        more = [0.1] if callee == "ttnn.leaky_relu" else []
        for letter in tensors + (numbers if count == 2 else ""):
            operands = [letter, *[rest] * (count - 1)]
            yield {"callee": callee, "operands": operands, "options": options[callee], "numbers": NUMBERS, "more": more}


def _has(callee: str, option: str) -> bool:
    return any(p.name == option for overload in signatures(callee) for p in overload)


def without_types(options: list[str], answers: Answers) -> tuple[list[str], Answers]:
    """Returns the answers by the type of the result without a `dtype`, and no such option where all are accepted."""
    if "dtype" not in options:
        return options, answers
    place = options.index("dtype") - len(options)
    plain = {key: answers.get((*key[:place], "-", *key[place:][1:])) for key in answers}
    assert all(key[place] in ("-", answer) for key, answer in answers.items() if answer)
    same = all(bool(plain[key]) == bool(answer) for key, answer in answers.items())
    if same:
        kept = [o for o in options if o != "dtype"]
        return kept, {(*k[:place], *k[place:][1:]): answer for k, answer in answers.items() if k[place] == "-"}
    count = len(options)
    bare = {key: answers.get((*key[:-count], *["-"] * count)) for key in answers}
    # `?` stands for any type: the call is accepted with a dtype alone.
    return options, {key: answer and (plain[key] or bare[key] or "?") for key, answer in answers.items()}


def write(release: str, answers: Mapping[str, tuple[list[str], Answers]], operands: Mapping[str, int]) -> str:
    """Returns the table."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for callee, (options, known) in sorted(answers.items()):
        rows = (" ".join(row) for row in cover(known, operands[callee]))
        groups.setdefault((" ".join(options), *rows), []).append(callee)
    blocks = [
        "\n".join([*textwrap.wrap(f"{' '.join(names)}: {options}", 118), *(f"  {row}" for row in rows)])
        for (options, *rows), names in groups.items()
    ]
    return "\n\n".join([HEAD.format(release).rstrip(), *blocks]) + "\n"


def cover(answers: Answers, operands: int) -> Iterator[list[str]]:
    """Yields rows of sets of letters: their products have every accepted call, and no refused one."""
    count = len(next(iter(answers)))
    letters = [sorted({key[i] for key in answers}, key=_ORDER.index) for i in range(count)]
    shape = [len(part) for part in letters]
    uncovered = np.zeros(shape, bool)
    # By code: the calls whose result it gives, or that no signature has.
    fits = {code: np.ones(shape, bool) for code in (*_OPERANDS[:operands], *TYPES)}
    for key, answer in answers.items():
        at = tuple(part.index(k) for part, k in zip(letters, key, strict=True))
        uncovered[at] = bool(answer)
        for code, fit in fits.items():
            given = key[_OPERANDS.index(code)] if code in _OPERANDS else code
            fit[at] = bool(answer) and given in TYPES and answer in ("?", given)
    while uncovered.any():
        start = np.argwhere(uncovered)[0]
        rows = [(grown(start, fit), code) for code, fit in fits.items() if fit[tuple(start)]]
        best, code = max(rows, key=lambda row: uncovered[np.ix_(*row[0])].sum())
        uncovered[np.ix_(*best)] = False
        yield ["".join(part[i] for i in sorted(chosen)) for part, chosen in zip(letters, best, strict=True)] + [code]


def grown(start: Sequence[int], fit: np.ndarray) -> list[list[int]]:
    """Returns a product of sets around a call that fits as a whole, and that no more letter fits."""
    chosen = [[int(i)] for i in start]
    for axis, size in sorted(enumerate(fit.shape), key=lambda part: -part[1]):
        others = [i for i in range(size) if i not in chosen[axis]]
        for i in others:
            if fit[np.ix_(*chosen[:axis], [i], *chosen[axis + 1 :])].all():
                chosen[axis].append(i)
    return chosen


_ORDER = "-" + "".join(TYPES) + "".join(NUMBERS) + "YNFTO"


def main() -> None:
    """Asks the library about the functions of the table."""
    operands = {callee: known.operands for callee, known in tables().items()}
    TABLE.write_text(write(NEWEST, asked(operands), operands))


if __name__ == "__main__":
    main()
