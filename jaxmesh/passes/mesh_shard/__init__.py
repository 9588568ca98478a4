"""passes/mesh_shard"""
