"""Several processes over one mesh."""
