"""Explains a program: where every value lives, what every equation moves, and what the passes did and why."""

from __future__ import annotations

from jaxmesh.analysis.explain.explain_program import explained as explained
from jaxmesh.analysis.explain.explanation import Explanation as Explanation
from jaxmesh.analysis.explain.records import Move as Move, Row as Row, Total as Total, Value as Value
from jaxmesh.jaxprs.remarks import Remark as Remark
