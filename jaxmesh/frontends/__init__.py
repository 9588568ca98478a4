"""From Python functions to TTIR-level programs."""
