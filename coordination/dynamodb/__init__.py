"""Partitions in a table of DynamoDB that has the same shape as Data Prepper's.

item.py      a partition as an item, and its keys in the index
table.py     the table: created or checked
open.py      botocore's client, which sends each request once
requests.py  retries and counts requests, and learns the server's time
errors.py    what DynamoDB's errors mean
writes.py    conditional writes, also those whose answers were lost
acquire.py   a search through the index, and the writes that decide it
store.py     `coordination.partitions.store.PartitionStore`
"""
