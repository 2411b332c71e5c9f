"""The log of each run: flushed into chunks, merged, published, closed, read, deleted and repaired.

run_logs      all parts below, composed
contracts     interfaces and locks that the parts share
backlog       lines of runs that are not flushed yet, here and on other nodes
flush         writes unflushed lines as chunks
chunks        chunks in the store, read through a cache
merge         merges small chunks, and writes `partial.txt`
close         closes a run on all nodes
seal          makes `logs.txt` of a closed run
sweep         closes idle runs, and takes over the runs of lost nodes
delete        deletes runs and pipelines
repair        rebuilds chunks and runs from segments and the table
openmetadata  imports runs that OpenMetadata's own storage wrote

snapshot      the log of a run at one moment
pinned_log    a snapshot that long replies keep
lines         lines and records of a snapshot
cursors       where a page ends, and where the next one begins
read_text     pages and downloads as text
read_records  pages as records
listing       lists of pipelines and runs
"""
