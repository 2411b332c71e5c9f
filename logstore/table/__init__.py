"""The table: the Delta log over Parquet files that compacted segments become.

snapshot.py   one version: its files and marks, for a query or a compaction
table.py      opens and creates the table, finds orphaned files
commit.py     adds segments, exactly once
options.py    the table's place by the settings, and delta-rs's options for it
stats.py      the statistics of a written Parquet file
schema.py     columns, partitions, marks
layout.py     names and row groups of its files
log.py        what its log holds beside files, in one read
log_folder.py, log_bucket.py  access to the files of the log
file_index.py   the files of a version by hour
followed.py     the newest version, followed by the log, for frequent readers
skip_index.py which of a file's row groups cannot hold a text    ngrams.py  by what
pages/          where the lines of the others lie
shape.py        whether the table still has our schema and features
"""
