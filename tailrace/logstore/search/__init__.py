"""The language of searches, the conditions that it makes, and how they become SQL of DuckDB."""
