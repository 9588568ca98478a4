"""Prints flat TTNN programs as C++."""
