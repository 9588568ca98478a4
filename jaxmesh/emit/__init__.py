"""Printers of flat programs as text, one to one: MLIR, Python and C++."""
