"""The text of runs: flushed into chunks, folded, published, closed, deleted, and read."""
