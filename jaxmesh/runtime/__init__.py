"""What runs a TTNN-level program, and the tensors it runs on."""
