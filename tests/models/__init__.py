"""Real models: of published sizes by their types alone, and of other people's libraries."""
