"""Segments: the shipped lines of a node as Parquet.

A segment holds what the journal held between two cuts, one row for each record, in the order of
ULIDs.

    file_format    columns, checksum, footer and quarantine marker
    slices         orders batches by ULID, and divides them into row groups
    writer         batches to a segment
    reader         a segment to batches
    detect         time and level of each record
    times          the forms of times
    levels         the spellings of levels
    continuations  lines that continue the record before them
"""
