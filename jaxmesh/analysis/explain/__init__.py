"""Explains a program: the residency of every value, the moves of every equation, and the remarks of the passes."""

from __future__ import annotations

from jaxmesh.analysis.account import Move as Move, Total as Total
from jaxmesh.analysis.explain.explain_program import explain as explain
from jaxmesh.analysis.explain.explanation import Explanation as Explanation
from jaxmesh.analysis.explain.records import Line as Line, Row as Row, Value as Value
from jaxmesh.jaxprs.remarks import Remark as Remark
