"""The compactor: flushed segments become the table, each line once.

job.py          what `spark-submit` and `python` start
cli.py          from flags (flags.py) to passes, exit codes, and stopping when told to
wiring.py       from settings to a `Compactor`, what every part works with (context.py)
runner.py       passes: once, or again and again with a warm Spark
ingest/         segments into the table: plan, verify, prune, merge, commit, until nothing is left
spark/          the jobs, and Spark itself, started at the first need
rewrite/        hours that are over, into files of a good size
commit/         Spark's files to their names in the table, and commits where they still hold
assignment.py   which nodes this driver works on, where there are several
maintenance/    removing what nobody needs any more
report.py       what a pass did, and what is seen of it meanwhile
reporting/      progress bar, log, summary, metrics
dry_run.py      `--dry-run`: what a pass would do
"""
