"""The compactor: flushed segments become the table, each line once.

job.py        what `spark-submit` and `python` start
command.py    from flags (flags.py) to passes, and exit codes
wiring.py     from settings to a `Compactor`, what every part works with (compactor.py)
schedule.py   once, or again and again with a warm Spark
lag.py        whether so much waits that a pass begins before its time
stopping.py   ending when told to, whatever Spark is doing
intake/       segments into the table: plan, verify, merge, place, commit, until nothing is left
spark/        the jobs, and Spark itself, started at the first need
rewrite/      hours that are over, into files of a good size
place/        Spark's files to their names in the table
change.py     committing what was planned, where it still holds
gone.py       files of the table that are not there, and who waits for them
footer.py     of a table file, by its last bytes
sharing/      which nodes this driver works on, where there are several
upkeep/       removing what nobody needs any more
report.py     what a pass did, and what is seen of it meanwhile
telling/      progress bar, log, summary, metrics: who hears of passes
outlook/      `--dry-run`: what a pass would do
jars.py       `python -m compactor.jars`: what Spark needs for S3
"""
