"""frontends/jax"""
