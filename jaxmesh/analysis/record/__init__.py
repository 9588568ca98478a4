"""Recordings of every value of a program on every device, and the first difference between two of them."""

from jaxmesh.analysis.record.compare import compare as compare
from jaxmesh.analysis.record.comparison import Comparison as Comparison, Row as Row
from jaxmesh.analysis.record.entry import Entry as Entry
from jaxmesh.analysis.record.recording import Recording as Recording
from jaxmesh.analysis.record.source_path import Place as Place, Step as Step
