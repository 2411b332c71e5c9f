"""Notices to people: which are due, how they are grouped, and which runs failed or are silent."""
