"""A transformer block over an emulated mesh as a command, checked against the unsharded block.

`python -m jaxmesh demo` runs it; read and copy `model.py`.
"""
