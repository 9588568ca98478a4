"""The main job as a command: a transformer block over an emulated mesh, checked against the unsharded one.

`python -m jaxmesh demo` runs it; `model.py` is what to read and copy.
"""
