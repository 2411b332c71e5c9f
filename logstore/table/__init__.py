"""The table: what flushed segments become, as a Delta log over Parquet files.

snapshot.py   one version: files, marks, what a query or a compaction reads
table.py      opening, creating, finding what nobody needs
commit.py     taking segments in, exactly once
options.py    where it is by the settings, and delta-rs's options there
names.py      how its files are called
stats.py      what a written Parquet file says of itself
schema.py     columns and partitions
layout.py     row groups
log.py        what its log says beside files, in one read
log_folder.py, log_bucket.py  where the files of the log are
file_index.py   files of a version by hour
replay.py       what a commit changes
followed.py     the newest version, followed by the log: for who asks often
shape.py      whether it still is as we made it
"""
