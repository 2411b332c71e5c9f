"""Verification: compares every line in journal, segments, run logs and table with its copies.

    verifier  the order of all checks, in which no moving line is missed
    findings  the faults that are reported
    journal   the journal of a data folder, if no service holds it
    segments  numbers without gaps, checksums, quarantine; also repairs segments
    run_logs  manifests, chunks and indexes of runs
    table     files, log and checkpoints of the table
    state     small objects of all other kinds
    compare   the statements that compare copies of lines
    remembered  the sound parts of an earlier verification

One segment, one range of text and the memory limit of DuckDB bound the memory; DuckDB spills the
rest. For each line it keeps id, position and hash, and never the message.
"""
