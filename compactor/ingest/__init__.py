"""Ingests flushed segments into the table: plan, verify, merge, commit, batch by batch."""
