"""Tailrace without its HTTP service and its compactor.

cli           the command `tailrace`
forwarder     ships log files
pipelines     feeds segments to appenders
coordination  leases and partitions: which process works on what
logstore      the durable formats that all programs share
verification  compares everything that is stored, line by line
backups       backup and restore of a store and its data folders
"""
