"""passes/ttir_to_ttnn"""
