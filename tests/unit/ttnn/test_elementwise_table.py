"""The table of elementwise functions has what the real library answered, and no more."""

from __future__ import annotations

import itertools
import random

import pytest

from jaxmesh.errors import VerifyError
from jaxmesh.ttnn.rules.elementwise import NUMBERS, RULES, TYPES, Accepted, number_kind, tables
from jaxmesh.ttnn.rules.facts import check
from jaxmesh.ttnn.rules.given import TILE, Form, Given
from tests.generators.oracles import count_of
from tests.generators.real_ttnn.elementwise_table import asked, cover
from tests.generators.real_ttnn.process import needs_ttnn


def test_rows_have_every_answer_and_no_other() -> None:
    for seed in range(count_of(200, 20)):
        rng = random.Random(seed)
        keys = [k for k in itertools.product("fbi", "fbiAX", "-b") if rng.random() < 0.9]
        answers = {k: rng.choice(["", "", k[0], "f", "?"]) for k in keys}
        found = Accepted(2, ["dtype"], list(cover(answers, 2)))
        letters = {None: "", **TYPES}
        for key, answer in answers.items():
            got = letters[found.result(key)]
            assert got if answer == "?" else got == answer, (seed, key)


def test_the_numbers_are_of_their_kinds() -> None:
    assert [number_kind(x) for x in NUMBERS.values()] == list(NUMBERS)


ENDS = {
    "A": (-(2**31), -1), "B": (0, 0), "C": (1, 1), "D": (2, 2**31 - 1), "E": (2**31, 2**32 - 1),
    "K": (-(2.0**40), -(2.0**31) - 256), "L": (-(2.0**31), -1.0), "M": (-0.0, 0.0), "N": (1.0, 1.0),
    "O": (2.0, 2.0**31 - 128), "P": (2.0**31, 2.0**32 - 256), "Q": (2.0**32, 2.0**60), "X": (-0.5, float("inf")),
}  # fmt: skip


@pytest.mark.parametrize("letter", ENDS)
def test_the_ends_of_each_kind(letter: str) -> None:
    assert [number_kind(x) for x in ENDS[letter]] == [letter] * 2


@pytest.mark.parametrize("number", [2**33, -(2**33), 2**60])
def test_an_integer_of_more_than_32_bits_goes_as_a_float(number: int) -> None:
    assert number_kind(number) == number_kind(float(number))


def form(dtype: str) -> Form:
    return Form((4, 8), dtype, TILE)


def apply(given: Given) -> None:
    RULES[given.callee](given)
    check(given)


@pytest.mark.parametrize(("callee", "values", "message"), [
    ("add", {"a": form("INT32"), "b": 0.5}, "does not take 0.5 beside INT32; use -3, for one, or ttnn.typecast"),
    ("add", {"a": form("INT32"), "b": form("FLOAT32")}, "does not mix INT32 and FLOAT32; ttnn.typecast one of them"),
    ("divide", {"a": form("INT32"), "b": form("INT32"), "dtype": "BFLOAT16"},
     "takes None or 'FLOAT32' as dtype here, not 'BFLOAT16'"),
    ("divide", {"a": form("FLOAT32"), "b": 2.0, "rounding_mode": "up"},
     "takes None or 'floor' or 'trunc' as rounding_mode here, not 'up'"),
    ("where", {"a": form("INT32"), "b": 2**31 - 1, "c": form("INT32")}, "does not take 2147483648 beside INT32"),
    ("clamp", {"a": form("FLOAT32"), "b": None, "c": None}, "takes one bound at least"),
    ("pow", {"a": Form((4, 8), "INT32", "ROW_MAJOR"), "b": 2}, "in TILE layout; use ttnn.to_layout"),
    ("clamp", {"a": Form((0, 8), "FLOAT32", TILE), "b": Form((0, 8), "FLOAT32", TILE), "c": None}, "with elements"),
])  # fmt: skip
def test_a_refusal_names_the_part_that_another_choice_mends(
    callee: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(VerifyError) as caught:
        apply(Given(f"ttnn.{callee}", values))
    assert message in str(caught.value)


@pytest.mark.slow
@needs_ttnn
def test_the_real_library_answers_as_the_table() -> None:
    wanted = {"ttnn.eq": 2, "ttnn.bitwise_and": 2, "ttnn.relu6": 1, "ttnn.neg": 1, "ttnn.pow": 2, "ttnn.multiply": 2}
    for callee, (options, answers) in asked(wanted).items():
        known = tables()[callee]
        assert (known.operands, list(known.options)) == (wanted[callee], options)
        assert len(answers) > 8
        letters = {None: "", **TYPES}
        assert {key: letters[known.result(key)] for key in answers} == answers
