"""passes/fusion"""
