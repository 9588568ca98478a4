"""The operations of both dialects: definitions, JAX primitives of sharding, and the flat programs they form."""
