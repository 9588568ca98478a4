"""The functions of a StableHLO file: each that nobody calls is a program, and the compiler takes one, named main."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

from jaxmesh.errors import ArgumentValueError, ParseError

_NAME = r'@("(?:[^"\\\n]|\\.)*"|[\w$.\-]+)'
_PUBLIC = re.compile(rf"func\.func (?:public )?{_NAME}\(")
_SYMBOL = re.compile(rf'{_NAME}|"(?:[^"\\\n]|\\.)*"')
"""A symbol; or a string, which has none."""
_MAIN = "main"


def public_names(text: str) -> list[str]:
    """Returns the names of the public functions of a text, without quotes."""
    return [name.strip('"') for name in _PUBLIC.findall(text)]


def programs(text: str) -> list[str]:
    """Returns the names of the public functions that no other one calls; of all, if each is called.

    >>> programs("func.func @f() { call @g }  func.func @g()  func.func private @h()  func.func @k()")
    ['f', 'k']
    """
    found = list(dict.fromkeys(public_names(text)))
    uses = Counter(name.strip('"') for name in _SYMBOL.findall(text)) if len(found) > 1 else Counter[str]()
    return [name for name in found if uses[name] <= 1] or found


def one_program(text: str, function: str | None, where: str) -> str | None:
    """Returns the name of the function for which arguments are; None for a text without functions.

    Raises:
      ArgumentValueError: there are several.
    """
    found = programs(text) if function is None else [function]
    if len(found) > 1:
        raise ArgumentValueError(
            f"{where} has the functions @{', @'.join(found)}, and arguments belong to one function; choose it with "
            f"--func {found[0]}, in Python function={found[0]!r}."
        )
    return next(iter(found), None)


def only(text: str, function: str | None) -> str:
    """Returns a text whose other functions are private."""
    if function is None or function not in public_names(text):
        return text

    def alone(found: re.Match[str]) -> str:
        return found[0] if found[1].strip('"') == function else f"func.func private @{found[1]}("

    return _PUBLIC.sub(alone, text)


def as_main(text: str, function: str | None) -> str:
    """Returns a text whose function has the name that the compiler takes, on the same lines; main has the other one.

    >>> as_main('func.func @f() { call @main }  func.func private @main() loc("@f")', "f")
    'func.func @main() { call @f }  func.func private @f() loc("@f")'
    """
    if function in (None, _MAIN):
        return text

    written = next((name for name in _PUBLIC.findall(text) if name.strip('"') == function), function)
    others = {written: _MAIN, _MAIN: written}
    return _SYMBOL.sub(lambda m: f"@{others[m[1]]}" if m[1] in others else m[0], text)


@contextlib.contextmanager
def named_errors(path: Path) -> Generator[None]:
    """Adds the name of a file to the errors of its text, which have its lines."""
    try:
        yield
    except ParseError as error:
        raise ParseError(f"{path.name}: {error}") from None
