"""Searches over all runs: unflushed lines, segments and the table, each record once.

    request         a validated question, its cursor, and time cut into ranges
    engine          many searches at once: slots, time limits, idle databases
    search          one search: ordered, without duplicates, cut at its limit
    sources         what one search reads, pinned in the one right order
    unflushed       lines of this node that are in no segment yet
    sql             the statements of DuckDB
    duckdb          DuckDB with its limits, and on S3
    duckdb_process  DuckDB in a process that can be killed

    table_search    the table's part of a search
    table_reads     which row groups and rows of table files to read
    footers         footers of table files, kept in memory
    text_scan       finds a text in row groups without DuckDB
    skip_indexes    which row groups cannot hold a text
    page_checks     compares pages of table files with their CRCs
    file_cache      table files of S3 on the local disk
    scan_copies     uncompressed copies of table files that are often searched

    facets          histogram, fields, values and counts
    logql_search    LogQL as a search, and the lines that it finds
    logql_lines     stages of LogQL on found lines
    logql_metrics   numbers of LogQL
    context         the records around a hit
    output          replies as ndjson, text and Parquet

    live_cursor     how far a live reader is, and the window in which records are reordered
    live_sources    the journal, segments and other nodes at one moment
    live_search     live searches and their readers

The language of searches is in `tailrace.logstore.search`.

**The invariant of live searches.** A reader's cursor is (`seen`, `last`): a position for each node,
and the key of a record. The reader has got exactly the matching records whose position is below
`seen` of their node and whose key is at most `last`. So the cursor alone says which records are
still to come, wherever they are stored by then, and after any crash:

- A record with a higher key is on time. Readers get it in the order of keys.
- A record with a lower key, at `seen` or above, is late: readers got a higher ULID before it
  arrived. They get it in the order of positions, and it is marked.

If a reader goes on where a node cannot be asked, the cursor's position of that node goes back to
where its records can be read, and `given` remembers the records that the reader got beyond it.

`last` follows the clock at a distance of `window`. So a record is late if it was acknowledged more
than the window after the time of its ULID. A record whose ULID is ahead of the clock waits for its
time.
"""
