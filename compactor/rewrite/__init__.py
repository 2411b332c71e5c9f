"""Rewrites hours: many overlapping files become a few that are sorted over all."""
