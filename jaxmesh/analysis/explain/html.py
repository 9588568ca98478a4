"""An explanation in Jupyter: sections that fold, and rows that a text filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jaxmesh.analysis.explain.records import Line, Row, by_line
from jaxmesh.analysis.explain.report import ReportSection, counted, remark_counts, sections, without_empty_columns
from jaxmesh.analysis.explain.table import about, closing, equation, move_text, remarks, value_text
from jaxmesh.drawing.text_layout import escape
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.jaxprs.source_locations import short_location

if TYPE_CHECKING:
    from jaxmesh.analysis.estimate import Estimate

# Colours of Okabe and Ito, which colour-blind readers can distinguish; text and background are the page's own.
_STYLE = """\
<style>
.jaxmesh-explain { color: inherit; overflow-x: auto; font-size: 12px; }
.jaxmesh-explain table { border-collapse: collapse; color: inherit; background: transparent; margin: 4px 0 8px;
  font-size: inherit; }
.jaxmesh-explain th, .jaxmesh-explain td { text-align: left; vertical-align: top; padding: 2px 8px; border: 0;
  color: inherit; background: transparent; white-space: nowrap; }
.jaxmesh-explain thead th { border-bottom: 1px solid rgba(128, 128, 128, .6); }
.jaxmesh-explain td.number, .jaxmesh-explain th.number { text-align: right; font-variant-numeric: tabular-nums; }
.jaxmesh-explain td.wide { white-space: normal; overflow-wrap: anywhere; min-width: 11em; }
.jaxmesh-explain td.first { border-left: 4px solid transparent; font-family: monospace; }
.jaxmesh-explain tr.host td.first { border-left-color: #e69f00; }
.jaxmesh-explain tr.devices td.first { border-left-color: #0072b2; }
.jaxmesh-explain tr.shards td.first { border-left-color: #009e73; }
.jaxmesh-explain tr.moves td { background: rgba(86, 180, 233, .16); }
.jaxmesh-explain tr.cancelled td { text-decoration: line-through; }
.jaxmesh-explain summary { cursor: pointer; padding: 2px 0; }
.jaxmesh-explain details details { margin-left: 16px; }
.jaxmesh-explain details details > summary { font-family: monospace; }
.jaxmesh-explain input { color: inherit; background: transparent; border: 1px solid rgba(128, 128, 128, .6);
  padding: 2px 6px; margin: 4px 0; width: 24em; }
</style>""".replace(".jaxmesh-explain ", ".jaxmesh-explain" * 3 + " ")
# The class is repeated three times to outweigh Jupyter's rule for tables, which aligns texts to the right.


_FILTER = """\
var q = this.value.toLowerCase(), all = this.parentNode;
all.querySelectorAll('details').forEach(function (line) {
  var any = false, named = line.firstChild.textContent.toLowerCase().includes(q);
  line.querySelectorAll('tbody tr').forEach(function (row) {
    row.hidden = !named && !row.textContent.toLowerCase().includes(q);
    any = any || !row.hidden;
  });
  line.hidden = !any;
  line.open = q !== '' && any;
});"""
"""Hides the rows without the text of the field, and lines without rows. It asks no server, so it works offline."""
_HEAD = ("value", "op", "type, residency, bytes", "moves and remarks")
_NUMBERS = frozenset({"times", "bytes per device", "bytes sent by all", "at least"})


def as_html(
    heading: str,
    rows: Sequence[Row],
    decisions: Sequence[Decision],
    ends: Sequence[str],
    estimate: Callable[[], Estimate] | None,
) -> str:
    """Returns the sections, which fold, and all equations by source line; its texts are escaped."""
    rules: dict[str, int] = {}
    parts = [_section(s) for s in sections(rows, decisions)]
    if estimate is not None:
        parts.append(_estimate(estimate))
    listing = "".join(_line(line, rules) for line in by_line(rows))
    field = f'<input type="search" placeholder="filter rows" oninput="{escape(" ".join(_FILTER.split()))}">'
    parts.append(_fold("all equations, by source line", f"{field}{listing}{_texts(closing(rules, ()))}"))
    if decisions:
        parts.append(_fold("decisions of the partitioner", _texts(map(str, decisions))))
    above = _texts([*remark_counts(rows), *ends])
    return f'<div class="jaxmesh-explain">{_STYLE}<div><b>{escape(heading)}</b></div>{above}{"".join(parts)}</div>'


def _fold(title: str, body: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{body}</details>"


def _texts(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in lines)


def _section(section: ReportSection) -> str:
    return _fold(section.title, _table(section.head, section.rows) + _texts(filter(None, [section.note])), opened=True)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table without its empty columns."""
    head, *rows = without_empty_columns([head, *rows])
    marks = [' class="number"' if name in _NUMBERS else ' class="wide"' for name in head]
    names = "".join(f"<th{m}>{escape(h)}</th>" for m, h in zip(marks, head, strict=True))
    lines = ("".join(f"<td{m}>{escape(c)}</td>" for m, c in zip(marks, row, strict=True)) for row in rows)
    return _tagged(names, "".join(f"<tr>{line}</tr>" for line in lines))


def _tagged(names: str, rows: str) -> str:
    return f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"


def _estimate(estimate: Callable[[], Estimate]) -> str:
    """Returns the table of the estimate; a program without one, such as on a mesh of no machine, has the reason."""
    try:
        found = estimate()
    except JaxmeshError as error:
        return _fold("no estimate", _texts([str(error)]))
    head, *rows = found.table()
    return _fold(found.heading, _table(head, rows) + _texts(found.notes()))


def _line(line: Line, rules: dict[str, int]) -> str:
    moved = f"; {line.sent:,} bytes sent by all" if line.sent else ""
    body = "".join(_row(row, rules) for row in line.rows)
    names = "".join(f"<th>{name}</th>" for name in _HEAD)
    return _fold(f"{short_location(line.line)}: {counted(len(line.rows), 'row')}{moved}", _tagged(names, body))


def _row(row: Row, rules: dict[str, int]) -> str:
    css_class = "" if not row.values else "shards" if row.values[0].varying else row.values[0].place
    css_class = " ".join(filter(None, (css_class, "moves" if row.moves else "", "cancelled" if row.cancelled else "")))
    texts = (
        [", ".join(v.name for v in row.values)],
        list(filter(None, (equation(row), about(row)))),
        list(dict.fromkeys(map(value_text, row.values))),
        [*map(move_text, row.moves), *remarks(row, rules)],
    )
    first, *others = ["<br>".join(map(escape, lines)) for lines in texts]
    wide = "".join(f'<td class="wide">{cell}</td>' for cell in others)
    return f'<tr class="{css_class}" title="{escape(row.line)}"><td class="first">{first}</td>{wide}</tr>'
