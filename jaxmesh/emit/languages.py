"""The names of the languages in which programs are printed; their printers are in `jaxmesh/emit/targets.py`."""

TRACED = ("ttir",)
"""The languages of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""The languages of programs that an export writes and that run."""

MADE = ("zeros", "random")
"""The ways in which an exported program makes its inputs instead of loading them; the default first."""

LOWERED = ("ttnn", *EXPORTED)
"""The languages of a lowered program, the default first."""
