"""Accounts for a program's operations: the bytes that each moves, its arithmetic, and the memory that it reads."""

from __future__ import annotations

from jaxmesh.analysis.account.moves import HOST_KINDS as HOST_KINDS, Move as Move, Total as Total, totals as totals
from jaxmesh.analysis.account.sends import OpMoves as OpMoves, entries as entries
