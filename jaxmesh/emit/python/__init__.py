"""Prints flat TTNN programs as Python."""
