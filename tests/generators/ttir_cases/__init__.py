"""Cases for every TTIR op but the collectives, with their meaning in NumPy."""

from tests.generators.ttir_cases.basic import BASIC
from tests.generators.ttir_cases.neural import NEURAL
from tests.generators.ttir_cases.rows import rows

CASES = [*BASIC, *NEURAL, *rows()]
