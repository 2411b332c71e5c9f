"""Run logs: flushed into chunks, merged, published, closed, deleted, and read."""
