"""The program that loads Tenstorrent's compiler, in the Python of its environment; needs JAX alone."""
