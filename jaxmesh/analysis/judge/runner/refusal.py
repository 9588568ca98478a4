"""Extracts the library's reason for a refusal from the text of its error."""

from __future__ import annotations

import re

_PLACE = re.compile(r"TT_\w+ @ (?:/project/)?(\S+):(\d+): (.*)")
_KEYWORD = re.compile(r"[(,]\s*(\w+)\s*=")
_PARAMETER = re.compile(r"[(,]\s*\*?\s*(\w+):")


def describe(error: BaseException) -> dict[str, str]:
    """Returns an error's kind, its reason in one line, its location in the library, and its text without the
    backtrace."""
    text = str(error).partition("\nbacktrace:")[0].strip()
    place = _PLACE.match(text)
    if place is None:
        reason = _binding(text) if isinstance(error, TypeError) else f"{type(error).__name__}: {' '.join(text.split())}"
        kind = "arguments" if isinstance(error, TypeError) else "other"
        return {"kind": kind, "reason": reason, "rule": "", "text": text}
    information = text.partition("\ninfo:\n")[2]
    reason = " ".join((information or place[3]).split())
    return {"kind": _kind(reason), "reason": reason, "rule": f"{place[1]}:{place[2]}: {place[3]}", "text": text}


def _kind(reason: str) -> str:
    """Returns the memory that is too small, `DRAM` or `L1`; else `rule`."""
    if reason.startswith("Out of Memory"):
        return "DRAM" if " DRAM buffer" in reason else "L1"
    return "L1" if "L1 buffers" in reason or "beyond max L1 size" in reason else "rule"


def _binding(text: str) -> str:
    """Returns why arguments do not fit a bound function: the unknown keyword, else the call."""
    head, _, rest = text.partition("Called with:")
    called, _, signatures = rest.partition("Available signatures:")
    called = " ".join(called.split())
    known = set(_PARAMETER.findall(_outermost(signatures)))
    unknown = [k for k in _KEYWORD.findall(_outermost(called)) if k not in known]
    if known and unknown:
        function = head.strip().partition("(")[0]
        return f"{function} has no argument {unknown[0]!r}; it has {', '.join(sorted(known))}"
    return " ".join(head.split()) + (f" Called with {_outermost(called)}" if called else "")


def _outermost(text: str) -> str:
    """Returns the text of calls without nested brackets, that is, without the arguments of arguments.

    >>> _outermost("f(a, b=C(d=1, e=[2]), g=3)")
    'f(a, b=C, g=3)'
    """
    kept, depth = "", 0
    for character in text:
        depth += character in "(["
        kept += character if depth <= 1 else ""
        depth -= character in ")]"
    return kept
