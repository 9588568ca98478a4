"""Tenstorrent's own compiler: compiles StableHLO without a board, and returns its texts or its refusal."""

from jaxmesh.analysis.upstream.compile import check_plugin as check_plugin, compile_text as compile_text
from jaxmesh.analysis.upstream.result import (
    UpstreamProgram as UpstreamProgram,
    UpstreamRefusal as UpstreamRefusal,
    refused_or_given as refused_or_given,
)

Compiled = UpstreamProgram
Refusal = UpstreamRefusal
