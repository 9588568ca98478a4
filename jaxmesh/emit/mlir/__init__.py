"""Prints flat programs as MLIR."""
