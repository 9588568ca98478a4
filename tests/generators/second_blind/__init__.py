"""A second set of programs and planted errors for which the diagnosis was not written."""
