"""The names of the languages of printed programs; their printers are in `jaxmesh/emit/targets.py`."""

from jaxmesh.dialects.program import Op
from jaxmesh.errors import UnsupportedError

TRACED = ("ttir",)
"""The languages of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""The languages of exported programs that can run."""

MADE = ("zeros", "random")
"""The ways to create the inputs of an exported program instead of loading them; the default first."""

LOWERED = ("ttnn", *EXPORTED)
"""The languages of a lowered program, the default first."""


def undecomposed(op: Op) -> UnsupportedError:
    """Returns the error for an op that upstream's pipeline decomposes before it prints a program."""
    return UnsupportedError(
        f"{op.name} ({op.line or 'no line known'}) does not have a call in Python and C++; write the to_device, "
        "to_layout, typecast or to_memory_config that it represents."
    )
