"""The text of runs: flushed into chunks, merged, published, closed, deleted, and read."""
