"""The pass from the compute operations of TTIR to a flat TTNN program."""
