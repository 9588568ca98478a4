"""frontends/mlir"""
