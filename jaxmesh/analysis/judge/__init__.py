"""The real ttnn as the judge of a program: accepted or refused and where, and what it takes on the devices."""

from jaxmesh.analysis.judge.judge import judge_folder as judge_folder
from jaxmesh.analysis.judge.verdict import (
    Leak as Leak,
    Memory as Memory,
    Place as Place,
    Refusal as Refusal,
    Verdict as Verdict,
)
