"""From Spark's files to files of the table."""
