"""The names of the languages in which programs are printed; their printers are in `jaxmesh/emit/targets.py`."""

from jaxmesh.dialects.program import Op
from jaxmesh.errors import UnsupportedError

TRACED = ("ttir",)
"""The languages of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""The languages of programs that an export writes and that run."""

MADE = ("zeros", "random")
"""The ways in which an exported program makes its inputs instead of loading them; the default first."""

LOWERED = ("ttnn", *EXPORTED)
"""The languages of a lowered program, the default first."""


def undecomposed(op: Op) -> UnsupportedError:
    """The error for an op that upstream's pipeline takes apart before it prints a program."""
    return UnsupportedError(
        f"{op.name} ({op.line or 'no line known'}) has no call in Python and C++; write the to_device, to_layout, "
        "typecast or to_memory_config that it stands for."
    )
