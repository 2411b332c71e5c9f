"""The HTTP service. One node is one process with one journal.

main        starts and stops the process; `worker` and `workers` are for `--workers N`
wiring      makes the parts of a node from its settings
node        the node: what all routes and background tasks work on
settings    every setting of the service

http        routes, connections, bodies and replies
access      tokens and rules: the permissions of clients
ingest      appends: batch ids, duplicates, durability
journal     the write-ahead journal
shipping    cuts the journal into segments and stores them
run_log     the log of each run: flush, close, read, list, delete, repair
status      the states that clients report for their runs
tail        live readers of runs
query       searches over all runs
queue       consumer groups that lease segments
peers       the other nodes on the same store
metrics     the metrics at `/metrics`
runtime     process, disks, health, caches
compaction  the compactor as a child process of the service
erasure     the erasure of deleted lines, and its progress
page        the built files of the web page
"""
