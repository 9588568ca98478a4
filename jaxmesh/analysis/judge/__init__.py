"""Judges a program with the real ttnn: accepted, or refused and where, and the memory that it takes on the devices."""

from jaxmesh.analysis.judge.judge import judge_folder as judge_folder
from jaxmesh.analysis.judge.verdict import (
    DeviceMemory as DeviceMemory,
    Leak as Leak,
    Refusal as Refusal,
    ScriptLine as ScriptLine,
    Verdict as Verdict,
)
