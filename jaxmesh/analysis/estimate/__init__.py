"""Estimates a lower bound of a program's time on Tenstorrent's machines, from published rates; measures nothing."""

from __future__ import annotations

from jaxmesh.analysis.estimate.cost import OpCost as OpCost
from jaxmesh.analysis.estimate.estimate import Estimate as Estimate, estimate_program as estimate_program
from jaxmesh.analysis.machines import MACHINES as MACHINES, Machine as Machine, Rate as Rate
