"""Programs and planted errors for which the diagnosis was not written, and what it says of them."""
