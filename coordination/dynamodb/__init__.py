"""Partitions in a table of DynamoDB, of the shape that Data Prepper's have.

item.py      a partition as an item; where it stands in the index
table.py     the table: made, or looked at
open.py      botocore's client, which sends once; requests.py: tries, counts, the server's time
errors.py    what DynamoDB's errors mean
writes.py    conditional writes, with answers that were lost
acquire.py   a search through the index, and the writes that decide it
store.py     `coordination.partitions.store.PartitionStore`
"""
