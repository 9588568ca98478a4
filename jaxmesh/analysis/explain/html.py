"""An explanation as an HTML table for Jupyter."""

from __future__ import annotations

import html
from collections.abc import Sequence

from jaxmesh.analysis.explain.records import Row, totals
from jaxmesh.analysis.explain.table import RIGHT, TOTALS, cells, closing, header, remarks, total_cells

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
.jaxmesh-explain td.note { padding-left: 28px; opacity: .85; font-style: italic; white-space: normal; }
.jaxmesh-explain ol { margin: 4px 0; padding-left: 28px; }
</style>""".replace(".jaxmesh-explain ", ".jaxmesh-explain" * 3 + " ")
# The class is repeated three times to outweigh Jupyter's rule for tables, which aligns texts to the right.


_WIDE = frozenset({"op", "moves", "line", "remark"})
"""Columns whose texts may wrap."""


def as_html(heading: str, rows: Sequence[Row], assumptions: Sequence[str]) -> str:
    """Returns the table, with its texts escaped and with its style."""
    rules: dict[str, int] = {}
    columns = header(rows)
    body = "".join(_row(row, rules, columns) for row in rows)
    sums = "".join(f"<tr>{_cells(total_cells(t), TOTALS)}</tr>" for t in totals(rows))
    ends = "".join(f"<div>{html.escape(text)}</div>" for text in closing(rules, assumptions))
    return (
        f'<div class="jaxmesh-explain">{_STYLE}<div><b>{html.escape(heading)}</b></div>'
        f"<table>{_head(columns)}<tbody>{body}</tbody></table>"
        f"<table>{_head(TOTALS)}<tbody>{sums}</tbody></table>{ends}</div>"
    )


def _head(header: Sequence[str]) -> str:
    names = "".join(f"<th{_number(h)}>{html.escape(h)}</th>" for h in header)
    return f"<thead><tr>{names}</tr></thead>"


def _number(name: str) -> str:
    return ' class="number"' if name in RIGHT else ' class="wide"' if name in _WIDE else ""


def _cells(line: Sequence[str], header: Sequence[str]) -> str:
    first, *rest = line
    others = "".join(f"<td{_number(h)}>{html.escape(c)}</td>" for c, h in zip(rest, header[1:], strict=True))
    return f'<td class="first">{html.escape(first)}</td>{others}'


def _row(row: Row, rules: dict[str, int], columns: Sequence[str]) -> str:
    css_class = "" if not row.values else "shards" if row.values[0].varying else row.values[0].place
    css_class = " ".join(filter(None, (css_class, "moves" if row.moves else "", "cancelled" if row.cancelled else "")))
    title = html.escape(row.line, quote=True)
    lines = "".join(f'<tr class="{css_class}" title="{title}">{_cells(c, columns)}</tr>' for c in cells(row, columns))
    notes = [f'<tr><td class="note" colspan="{len(columns)}">{html.escape(t)}</td></tr>' for t in remarks(row, rules)]
    return lines + "".join(notes)
