"""Records every value of a program on every device, and finds the first difference between two recordings."""

from jaxmesh.analysis.record.compare import compare as compare
from jaxmesh.analysis.record.comparison import ComparedValue as ComparedValue, Comparison as Comparison
from jaxmesh.analysis.record.entry import Entry as Entry
from jaxmesh.analysis.record.recording import Recording as Recording
from jaxmesh.analysis.record.source_path import PathStep as PathStep, Place as Place
