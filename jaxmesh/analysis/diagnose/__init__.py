"""Finds the first wrong operation of a program that Tenstorrent's compiler has compiled, without the compiler."""

from jaxmesh.analysis.diagnose.diagnose import diagnose as diagnose
from jaxmesh.analysis.diagnose.diagnosis import Diagnosis as Diagnosis
from jaxmesh.analysis.diagnose.minimize import Minimized as Minimized, minimize as minimize
from jaxmesh.analysis.diagnose.reference import argument_types as argument_types
