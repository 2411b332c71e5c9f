"""The compactor: merges flushed segments into the table, each line once.

job         the entry point of `spark-submit`
cli         flags, exit status, and stopping on a signal
setup       makes a compactor from settings
context     the dependencies that all parts of a pass share
runner      one pass, or one after another with a warm Spark
passes      the report of each pass, and its listeners
assignment  assigns nodes and hours to drivers, if several work

plan        chooses the segments of a batch, and the files to compare them with
verify      checks whether segments are intact; packs small ones
ingest      one pass: plan, verify, merge, commit, until no segment is left
placement   gives Spark's files their names in the table
commit      commits a planned change
rewrite     rewrites past hours into files of a good size
purge       removes deleted lines from files of the table
cleanup     removes consumed segments, old hours and records of deletions
skip_index  makes skip indexes after a commit

spark       Spark's jobs and session
settings    the settings of the compactor
report      the report of a pass
listeners   progress bar, log, metrics and summary of a pass
metrics     metrics of passes, and their text file
dry_run     the preview that `--dry-run` prints
"""
