"""Goldens: every value that a program makes, on every device, and where two runs first differ."""

from jaxmesh.goldens.comparing import compare as compare
from jaxmesh.goldens.recording import Entry as Entry, Place as Place, Recording as Recording, Step as Step
from jaxmesh.goldens.report import Comparison as Comparison, Row as Row
