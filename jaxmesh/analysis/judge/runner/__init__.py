"""Runs an exported program in the Python that has ttnn and watches it line by line. Needs neither JAX nor jaxmesh."""
