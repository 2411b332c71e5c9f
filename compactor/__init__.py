"""The compactor: flushed segments become the table, each line once.

job.py          what `spark-submit` and `python` start cli.py          from flags (flags.py) to
passes, exit codes, and stopping on a signal wiring.py       from settings to a `Compactor`, what
every part works with (context.py) runner.py       passes: once, or again and again with a warm
Spark ingest/         ingest of segments into the table: plan, verify, prune, merge, commit, until
nothing is left spark/          the jobs, and Spark itself, started at the first need rewrite/
rewrites hours that are over into files of a good size commit/         gives Spark's files their
names in the table, and commits assignment.py   which nodes this driver works on, where there are
several maintenance/    retention, deletions, clean-up report.py       the report of a pass
reporting/      progress bar, log, summary, metrics dry_run.py      `--dry-run`: the preview of a
pass
"""
