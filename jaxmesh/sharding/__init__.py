"""Meshes, and the arithmetic of distributions: specs, shard attributes, mapper and composer configs."""
