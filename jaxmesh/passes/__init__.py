"""Program to program: the lowering from TTIR to TTNN, its clean-up and its proof."""
