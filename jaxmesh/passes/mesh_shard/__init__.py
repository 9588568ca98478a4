"""The passes over jaxprs from `mesh_shard` to explicit transfers of TTNN, and their verifier."""
