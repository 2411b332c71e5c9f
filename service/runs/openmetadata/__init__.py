"""Runs that OpenMetadata's own storage wrote, imported at their first use."""
