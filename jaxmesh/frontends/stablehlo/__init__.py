"""StableHLO with Shardy's annotations to a typed TTIR-level program: plain `jax.jit` programs with shardings."""
