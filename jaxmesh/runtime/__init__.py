"""The executors of TTNN-level programs, and the tensors they run on."""
