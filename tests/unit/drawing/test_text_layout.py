"""Texts fit into the columns and the boxes that there are."""

from __future__ import annotations

from jaxmesh.drawing.text_layout import cells, fit_texts, make_safe, shorten, wrap


def test_lines_fit() -> None:
    for most in (7, 20):
        for line in wrap("words of many lengths andonethatislongerthanaline \u30e1\u30c3\u30b7\u30e5", most):
            assert 0 < cells(line) <= most
    assert cells(shorten("\u30e1" * 30, 10)) <= 10
    assert fit_texts([[["wide text"], ["A"]]], 5, 5)[0] == [[]]
    assert fit_texts([[["wide text"], ["A"]]], 20, 12)[0] == [["A"]]
    assert make_safe("a\tb\ufffe") == "a\\tb\\ufffe"
