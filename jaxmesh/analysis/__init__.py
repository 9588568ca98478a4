"""Analyses of programs: data movement, recordings and their comparison, values to draw, and the verdict of the real
ttnn."""
