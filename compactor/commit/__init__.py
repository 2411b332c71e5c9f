"""Places the files that Spark wrote, compares them with row counts, and commits them."""
