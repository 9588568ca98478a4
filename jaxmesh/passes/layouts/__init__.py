"""Decides for each value of a flat TTNN program its element type, its layout, and whether it is on the host.

Each op's definition declares what the real function takes and gives (`jaxmesh/dialects/ttnn/forms.py`); the passes of
this folder insert the conversions in between.
"""
