"""The durable formats that Tailrace's programs share, and nothing else.

Ids, positions, object stores, segments, run manifests and chunks, the table.
Nothing here knows HTTP, Spark jobs or the journal; nothing here imports
`service`, `compactor` or the command line.
"""
