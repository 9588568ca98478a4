"""Runs in the environment of the simulated chip, in two processes: ttnn calls kernels, and the simulator runs them."""
