"""Partitions in the object store that all programs share: a folder, or a bucket on S3.

source.py     how many shards a source has; fixed when it is made
shard.py      a shard: many partitions in one JSON object, changed by compare-and-swap
row.py        a partition within it
packed.py     how large ones lie in the store
draft.py      a shard that is being changed; operations.py: by what
writer.py     group commit: the changes of a process to one shard become one write
summary.py    what is remembered of a shard that need not be read again
cache.py      how much of the shards is kept in memory
board.py      a source's shards, and one LIST that says which of them changed
routes.py     which shard a worker turns to, so that workers do not meet
spread.py, ordered.py   acquiring, with few requests
pages.py      lists in the order of keys, some of which is kept for the next page
store.py      `coordination.store.PartitionStore`
"""
