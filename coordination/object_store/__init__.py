"""Partitions in the object store that all programs share: a folder, or a bucket on S3.

source.py     how many shards a source has; fixed when it is made
shard.py      a shard: many partitions in one JSON object, changed by compare-and-swap
row.py        a partition within it
codec.py      how large ones are encoded in the store
shard_edit.py a shard that is being changed; operations.py: by what
writer.py     group commit: the changes of a process to one shard become one write
summary.py    what is remembered of a shard that need not be read again
cache.py      how much of the shards is kept in memory
directory.py  a source's shards, and one LIST that says which of them changed
random_acquire.py, ordered.py   acquiring, with few requests and so that workers do not meet
pages.py      lists in the order of keys, some of which is kept for the next page
store.py      `coordination.partitions.store.PartitionStore`
"""
