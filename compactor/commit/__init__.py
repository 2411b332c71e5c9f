"""From Spark's files to a commit: files are placed, made durable, and compared with row counts."""
