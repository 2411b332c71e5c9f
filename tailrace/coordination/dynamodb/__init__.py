"""Partitions in a DynamoDB table of the same shape as Data Prepper's.

item      a partition as an item; the table, created or checked
requests  retries and counts requests, learns the server's time, translates errors
store     the store: `tailrace.coordination.partitions.PartitionStore`
"""
