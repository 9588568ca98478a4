"""The names of the languages in which programs are printed; their printers are in `jaxmesh/emit/targets.py`."""

TRACED = ("ttir",)
"""Those of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""Those of programs that an export writes and that run."""

LOWERED = ("ttnn", *EXPORTED)
"""Those of a lowered program, the default first."""
