"""The pass from a jaxpr to a flat program, and the rules for JAX's primitives."""
