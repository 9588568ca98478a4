"""Text: MLIR, Python and C++, printed 1:1 from flat programs."""
