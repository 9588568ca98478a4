"""The calls that the Python emitter prints fit the real functions."""

from __future__ import annotations

import pytest

from jaxmesh.dialects.ttnn import OPS
from jaxmesh.ttnn.signatures import NEEDED, NEWEST, OLDEST, Parameter, expand, signatures, table


def misfits(name: str, overload: tuple[Parameter, ...]) -> list[str]:
    """Returns what does not fit of a printed call."""
    printed = OPS[name].python.params
    places = [p.name for p in overload if not p.keyword]
    known = {p.name for p in overload}
    wrong: list[str] = []
    for number, param in enumerate(printed):
        names = {param.name, *param.also}
        if param.keyword:
            wrong += [] if names & known else [f"no argument {param.name}"]
        elif number >= len(places) or places[number] not in names:
            wrong.append(f"{param.name} is not argument {number}")
    given = {n for p in printed for n in (p.name, *p.also)}
    return wrong + [f"{p.name} is missing" for p in overload if p.default is NEEDED and p.name not in given]


@pytest.mark.parametrize("name", sorted(OPS))
def test_printed_calls_fit_the_newest_release(name: str) -> None:
    overloads = signatures(OPS[name].python.callee)
    assert overloads
    assert min((misfits(name, o) for o in overloads), key=len) == []


def test_the_table_has_two_releases() -> None:
    """A function that the older one lacks has no signature there, and others differ."""
    assert signatures("ttnn.argmax", NEWEST) != signatures("ttnn.argmax", OLDEST)
    assert [p.name for p in signatures("ttnn.gelu_bw", OLDEST)[0]][2] == "approximate"
    assert len(table(OLDEST)) == len(table(NEWEST))


def test_shared_declarations_are_expanded() -> None:
    assert expand("(input_tensor, *, dtype)") == "(input_tensor: Tensor, *, dtype: DataType | None = None)"
    empty = signatures("ttnn.empty")[0]
    assert [p.default is NEEDED for p in empty] == [True, False, False, True, False]
