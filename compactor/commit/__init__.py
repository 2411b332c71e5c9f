"""From Spark's files to a commit: placed, made durable, and compared with what is stored."""
