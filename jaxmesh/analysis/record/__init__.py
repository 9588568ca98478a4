"""Goldens: every value that a program makes, on every device, and where two runs first differ."""

from jaxmesh.analysis.record.compare import compare as compare
from jaxmesh.analysis.record.comparison import Comparison as Comparison, Row as Row
from jaxmesh.analysis.record.recording import Entry as Entry, Place as Place, Recording as Recording, Step as Step
