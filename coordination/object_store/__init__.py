"""Partitions in the object store that all programs share: a folder, or a bucket on S3.

source.py     the number of shards of a source; fixed when the source is made
shard.py      a shard: many partitions in one JSON object, changed by compare-and-swap
operations.py the changes of a shard
writer.py     group commit: the changes of a process to one shard become one write
summary.py    the summary of a shard, by which an acquire skips it without a read
cache.py      how much of the shards is kept in memory
directory.py  a source's shards, and one LIST that says which of them changed
acquire.py    acquiring with few requests and few conflicts of workers
pages.py      lists in the order of keys, some of which is kept for the next page
store.py      `coordination.partitions.store.PartitionStore`
"""
