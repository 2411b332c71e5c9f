"""The compactor: flushed segments become the table, each line once.

job         the entry point of `spark-submit`
cli         flags, exit status, and stopping on a signal
setup       makes a compactor from settings
context     what all parts of a pass share
runner      one pass, or one after another with a warm Spark
assignment  which nodes and hours this driver works on, if there are several drivers

plan        which segments a batch takes, and which files it compares them with
verify      whether segments are whole; packs small ones
ingest      one pass: plan, verify, merge, commit, until no segment is left
placement   gives Spark's files their names in the table
commit      commits a planned change
rewrite     rewrites past hours into files of a good size
purge       removes deleted lines from files of the table
cleanup     removes consumed segments, old hours and records of deletions
skip_index  makes skip indexes after a commit

spark       Spark's jobs and session
report      the report of a pass
listeners   progress bar, log lines and summary of a pass
metrics     metrics of passes, and their text file
dry_run     the preview that `--dry-run` prints
"""
