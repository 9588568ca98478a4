"""Programs for Tenstorrent's own compiler, which of them it compiles wrongly or refuses, and why."""
