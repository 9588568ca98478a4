"""Text that fits: its width in a monospaced font, shortened and made safe for XML."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence

ADVANCE = 0.61
"""The width of a character in ems: the widest of the common monospaced fonts (DejaVu Sans Mono, Menlo)."""
LINE = 1.25
"""The height of a line in ems."""


def cells(text: str) -> int:
    """Returns the columns of a text: East Asian wide characters take two columns, combining characters none.

    >>> cells("ab"), cells("\u30e1")
    (2, 2)
    """
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" or ord(c) > 0xFFFF else 1
        for c in text
    )


def width(text: str, size: float) -> float:
    """Returns the width of a text in a font of `size`."""
    return cells(text) * ADVANCE * size


def make_safe(text: str) -> str:
    """Replaces characters that XML forbids, that end lines, or that change the direction of text, by escapes.

    >>> make_safe("a\\x00b\\u202e")
    'a\\\\x00b\\\\u202e'
    """
    return "".join(c if _plain(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def _plain(c: str) -> bool:
    return c == " " or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def escape(text: str) -> str:
    """Returns a line of text escaped for XML, including attributes."""
    return html.escape(make_safe(text), quote=True)


def shorten(text: str, most: int) -> str:
    """Returns a text of at most `most` columns; an ellipsis replaces the rest.

    >>> shorten("abcdefghij", 5)
    'ab...'
    """
    text = make_safe(text)
    if cells(text) <= most:
        return text
    kept, used = "", 0
    for c in text:
        used += cells(c)
        if used > most - 3:
            break
        kept += c
    return kept + "..."


def pad(text: str, wide: int, *, left: bool = False) -> str:
    """Returns a text of at least `wide` columns, filled with spaces after it, or before it."""
    space = " " * (wide - cells(text))
    return space + text if left else text + space


def align_columns(rows: Sequence[Sequence[str]], right: Sequence[bool] | None = None) -> list[str]:
    """Formats rows as lines with aligned columns, two spaces apart; columns of `right` are aligned to the right.

    >>> align_columns([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    columns = list(zip(*rows, strict=True))
    widths, sides = [max(map(cells, column)) for column in columns], right or [False] * len(columns)
    padded = ([pad(t, n, left=end) for t, n, end in zip(row, widths, sides, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def duration(seconds: float) -> str:
    """Returns a time with the largest fitting unit.

    >>> duration(0.0217), duration(3.2e-6), duration(0)
    ('21.7 ms', '3.2 µs', '0 ns')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def binary_bytes(count: int) -> str:
    """Returns a number of bytes with a binary unit.

    >>> binary_bytes(512), binary_bytes(65_536), binary_bytes(12 * 1_072_693_184)
    ('512 B', '64.0 KiB', '11.99 GiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.{2 if power > 2 else 1}f} {_UNITS[power - 1]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB")


def fit_texts(
    choices: Sequence[Sequence[Sequence[str]]], wide: float, high: float, most: float = 12, least: float = 7
) -> tuple[Sequence[Sequence[str]], float]:
    """Chooses lines that fit into boxes of one size, and one font size from `least` to `most`.

    `choices` lists for each box its possible lines, the longest first. Fewer lines are preferred to a size below 9.

    >>> fit_texts([[["a long line", "A"], ["A"]], [["b", "B"], ["B"]]], 30, 20)
    ([['A'], ['B']], 12.0)
    """
    levels = max(map(len, choices), default=0)
    for low in (max(least, min(most, 9.0)), least):
        for level in range(levels):
            chosen = [rows[min(level, len(rows) - 1)] for rows in choices]
            longest = max((cells(line) for lines in chosen for line in lines), default=0)
            lines = max(map(len, chosen))
            if not longest:
                continue
            size = min(most, (wide - 6) / (longest * ADVANCE), (high - 2) / (lines * LINE))
            if size >= low:
                return chosen, int(size * 10) / 10
    return [[] for _ in choices], least


def wrap(text: str, most: int) -> list[str]:
    """Returns the lines of a text, of at most `most` columns, split between words if possible."""
    lines: list[str] = []
    line = ""
    for word in make_safe(text).split(" "):
        while cells(word) > most:
            # Cut a word that is longer than a line.
            if line:
                lines.append(line)
                line = ""
            cut = next(i for i in range(len(word), 0, -1) if cells(word[:i]) <= most)
            lines.append(word[:cut])
            word = word[cut:]
        joined = f"{line} {word}" if line else word
        if cells(joined) > most:
            lines.append(line)
            joined = word
        line = joined
    return [*lines, line] if line else lines
