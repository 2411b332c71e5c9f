"""The compactor: flushed segments become the table, each line once.

job.py        what `spark-submit` and `python` start
command.py    flags, exit codes, the line of JSON at the end
schedule.py   once, or again and again with a warm Spark
compaction.py one pass: plan, verify, merge, place, commit, until nothing is left
plan.py       which segments are next
verify.py     which of them are whole, and how their lines lie in time
buckets.py    time buckets of about equal size
merge.py      the Spark job, from what merge_input.py describes
session.py    Spark, started at the first need
s3a.py        Spark on S3, by the jars of jars.py
place.py      Spark's files to their names in the table: place_folder.py, place_objects.py
wiring.py     from settings to a compactor
deletions.py  which lines are deleted
aside.py      segments that cannot be read
cleanup.py    what has become needless
"""
