"""Verification: compares every line in journal, segments, run logs and table with its copies.

fault.py     what can be wrong, and where it is reported
catalog.py   segments: numbers without gaps, bytes as they were written, quarantined ones
records.py   a stretch of text, seen as records with their ids
run_logs.py  manifests, chunks and indexes of runs
journal.py   the data folder's journal, when no service holds it
table_log.py entries and checkpoints of the table's log
table.py     files of the table, duplicates in them, and segments that it says it holds
compare.py   the statements: copies of lines against what segments and table have
repair.py    quarantines segments and brings them back
verifier.py  all of it in an order in which nothing that moves is missed

Memory is bounded by one segment, one stretch of text and what DuckDB may use; it spills the
rest. Of a line it keeps id, position and a hash, never the message.
"""
