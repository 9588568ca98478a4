"""Runs programs call by call with Tenstorrent's own kernels on a simulated chip."""

from jaxmesh.analysis.chip.result import ChipRun as ChipRun, ChipValue as ChipValue
