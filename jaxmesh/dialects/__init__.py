"""The two dialects' sharding operations, as JAX primitives."""
