"""The table: a Delta log, and Parquet files that compacted segments become.

schema      columns, partitions, layout and statistics of its files
table       opens, creates and commits
snapshot    one version of the table: its files by hour, and its marks
followed    the newest version, followed by the log, for frequent readers
log         the files of the log in a folder; `log_bucket` has those on S3
skip_index  which row groups of a file cannot hold a text
line_map    where the lines of a row group lie, so that single lines can be read
file_check  compares the pages of a file with their CRCs
"""
