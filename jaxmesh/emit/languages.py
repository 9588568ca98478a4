"""The names of the languages in which programs are printed; their printers are in `jaxmesh/emit/targets.py`."""

TRACED = ("ttir",)
"""The languages of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""The languages of programs that an export writes and that run."""

LOWERED = ("ttnn", *EXPORTED)
"""The languages of a lowered program, the default first."""
