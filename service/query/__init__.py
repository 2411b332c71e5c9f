"""Search over all runs: hot lines, segments and the table, each record once.

request.py   what is asked, validated          cursor.py   where a search stopped
view.py      what is searched, pinned in the one right order
hot.py       the journal's part as Arrow        tiles.py   time, cut into pieces of work
slices.py    pieces of a tile, where a few records of it do
locked.py    DuckDB with its limits             pool.py    those that are open already
table_reads.py what is read of the table        scan_copies.py  and of what
skip_indexes.py what is left out of it          index_files.py, fetched_indexes.py  by what
prefilter.py lines with a text, before DuckDB   text_rows.py, footers.py, found_rows.py  how
looking.py   in many row groups at once         row_groups.py  what they are
mapped_lines.py, copy_rows.py  where lines lie, in files and in copies
fetched_pages.py  and on S3
file_cache.py files of S3 on this disk          nearest.py  what one search reads in their place
read_counts.py what is worth it to have here
plain.py     searches that need no DuckDB then
database.py  the statements of one search       sql.py     how they are spelled
deleted.py   what is left out of them           bucket.py    DuckDB on S3
process.py   DuckDB in a process that can be ended    child.py   that process
search.py    one search: ordered, deduplicated, cut at the limit
histogram.py counts by time and level           service/http/histogram.py
sample.py    the newest records, for fields.py and values.py: service/http/completion.py
spelling.py  names and values as `q` has them
engine.py    many searches: slots, time limits, cancelling
output.py    ndjson, text, Parquet              service/http/query.py   `GET /query`

`logstore/search/` has the language and what is asked for in statements.
"""
