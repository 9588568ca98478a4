"""Looks into programs: explains what they move, records their values, compares recordings, lists values to draw; judges
them with the real ttnn."""
