"""What runs in the Python that has ttnn: an exported program, watched line by line. Needs neither JAX nor jaxmesh."""
