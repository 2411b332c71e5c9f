"""Partitions in the object store that all programs share: a folder, or a bucket on S3.

source.py     the number of shards of a source; fixed when the source is made
shard.py      a shard: many partitions in one JSON object, changed by compare-and-swap
row.py        a partition within a shard
codec.py      how large shards are compressed in the store
shard_edit.py a shard that is being changed; operations.py: the changes
writer.py     group commit: the changes of a process to one shard become one write
summary.py    the summary of a shard, by which an acquire skips it without a read
cache.py      how much of the shards is kept in memory
directory.py  a source's shards, and one LIST that says which of them changed
random_acquire.py, ordered.py   acquiring with few requests and few conflicts of workers
pages.py      lists in the order of keys, some of which is kept for the next page
store.py      `coordination.partitions.store.PartitionStore`
"""
