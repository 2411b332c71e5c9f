"""Partitions in the object store that all programs share: a folder or S3.

shard   many partitions in one JSON object, its changes, and the summary of a shard
writer  group commit: all changes of a process to one shard become one write
store   the store: acquires partitions with few requests, and lists them in order
"""
