"""emit/mlir"""
