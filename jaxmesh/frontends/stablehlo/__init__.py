"""Imports StableHLO with Shardy's annotations as a typed TTIR-level program: plain `jax.jit` programs with
shardings."""
