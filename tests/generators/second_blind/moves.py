"""Further kinds of planted errors, which the authors of later sets added: movements in another order, and casts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.generators.blind.texts import Op, Text
from tests.generators.second_blind.edits import Edit, element, made, numbers, placed, shape
from tests.generators.second_blind.kinds import KINDS, Kind


def _sizes(sizes: list[int]) -> str:
    return f"shape = [{', '.join(f'{n} : i32' for n in sizes)}]"


def reshaped_for_permuted(text: Text, op: Op) -> Iterator[Edit]:
    """A reshape stands in the place of a permutation."""
    order = numbers(op.attributes, "permutation") if op.name == "permute" else None
    sizes = shape(op.types[0]) if order else ()
    moved = [d for d in order or () if sizes[d] > 1]
    if moved != sorted(moved):
        yield placed(text, op, made(op, "reshape", attributes=_sizes(list(shape(op.made)))))


def order_of_reshape(text: Text, op: Op) -> Iterator[Edit]:
    """Two dims are transposed before a reshape."""
    sizes = shape(op.types[0]) if op.name == "reshape" else ()
    for a, b in itertools.pairwise(d for d, n in enumerate(sizes) if n > 1):
        order = list(range(len(sizes)))
        order[a], order[b] = b, a
        kind = op.types[0].replace("x".join(map(str, sizes)), "x".join(str(sizes[d]) for d in order), 1)
        attributes = f"permutation = array<i64: {', '.join(map(str, order))}>"
        first = made(op, "permute", results="%planted", attributes=attributes, made=kind)
        yield placed(text, op, first, made(op, operands=("%planted",), types=(kind,)), wrong=(0, 1))


def cast_there_and_back(text: Text, op: Op) -> Iterator[Edit]:
    """Fractions are cast to integers, and back."""
    if op.dialect == "ttir" and element(op.made) == "f32" and len(op.results) == 1:
        whole = op.made.replace("f32", "i32", 1)
        there = made(op, "typecast", results="%cast", operands="%planted", types=op.made, made=whole, attributes="")
        back = made(op, "typecast", operands="%cast", types=whole, attributes="")
        yield placed(text, op, made(op, results="%planted"), there, back, wrong=(1, 2), at=2)


MOVES: dict[str, Kind] = {**KINDS, "reshaped_for_permuted": reshaped_for_permuted, "order_of_reshape": order_of_reshape}
"""The kinds for the third set."""
CASTS: dict[str, Kind] = {**MOVES, "cast_there_and_back": cast_there_and_back}
"""The kinds for the fourth set."""
