"""The library's reason for a refusal, out of the text of its error."""

from __future__ import annotations

import re

_PLACE = re.compile(r"TT_\w+ @ (?:/project/)?(\S+):(\d+): (.*)")
_KEYWORD = re.compile(r"[(,]\s*(\w+)\s*=")
_PARAMETER = re.compile(r"[(,]\s*\*?\s*(\w+):")


def describe(error: BaseException) -> dict[str, str]:
    """Returns the kind of an error, the reason in one line, the place in the library, and the text without backtrace."""
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
    """Returns which memory is too small, `DRAM` or `L1`; else `rule`."""
    if reason.startswith("Out of Memory"):
        return "DRAM" if " DRAM buffer" in reason else "L1"
    return "L1" if "L1 buffers" in reason or "beyond max L1 size" in reason else "rule"


def _binding(text: str) -> str:
    """Returns why Python's arguments do not fit a function: the keyword that it does not have, or how it was called."""
    head, _, rest = text.partition("Called with:")
    called, _, signatures = rest.partition("Available signatures:")
    called = " ".join(called.split())
    known = set(_PARAMETER.findall(signatures))
    unknown = [k for k in _KEYWORD.findall(called) if k not in known]
    if known and unknown:
        function = head.strip().partition("(")[0]
        return f"{function} has no argument {unknown[0]!r}; it has {', '.join(sorted(known))}"
    return " ".join(head.split()) + (f" Called with {called}" if called else "")
