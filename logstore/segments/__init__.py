"""Segments: a node's flushed lines as Parquet, and how they are read back.

A segment is what the journal held between two cuts, one row per record, sorted by
ULID. `schema` has the columns, `columns` makes them from batches without touching a
line in Python, `writer` and `reader` put them into an object and take them out.
"""
