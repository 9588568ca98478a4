"""Comparisons with Tenstorrent's own `ttnn` on a mock cluster; `process` starts it, `runner` runs in it."""
