"""Faults that the compactor's torture must see: `make torture OF=compactor ARGS=--prove`.

Those that another layer makes good again are broken together with it: a mark is looked at
when a commit is moved to a later version, and once more when it is made.
"""

from __future__ import annotations

from typing import Final

from tests.proving import Mutation

_PLAIN: Final = ("--plain", "--meetings")
_SPARK: Final = ("--meetings", "deleted_to_the_line")

MUTATIONS: Final = (
    Mutation(
        "a mark is not checked at the commit, nor before",
        "tailrace/logstore/table/table.py",
        "if mark != advance.first - 1 or advance.last < advance.first:",
        "if advance.last < advance.first:",
        (*_PLAIN, "another_takes_in_the_same"),
        (
            Mutation(
                "nor before",
                "compactor/ingest.py",
                "return await _holds(compactor, snapshot, newest, merged)",
                "return newest.version > 0",
            ),
        ),
    ),
    Mutation(
        "segments are removed one ahead of the mark",
        "compactor/cleanup.py",
        "if s.seq <= mark]",
        "if s.seq <= mark + 1]",
        (*_PLAIN, "segments_come_late"),
    ),
    Mutation(
        "files are replaced that are gone",
        "compactor/rewrite.py",
        "return paths <= {file.path for file in newest.files}",
        "return bool(paths)",
        (*_PLAIN, "another_rewrites_the_same_hour"),
        (
            Mutation(
                "nor looked for at the commit",
                "tailrace/logstore/table/table.py",
                "        if file.path not in there:",
                "        if there is None:",
            ),
        ),
    ),
    Mutation(
        "an own commit whose answer was lost is taken for another's",
        "tailrace/logstore/table/table.py",
        "mine = job in table.log.jobs(JOB, before, newest.version)",
        "mine = before > newest.version",
        (*_PLAIN, "answers_are_lost"),
    ),
    Mutation(
        "`<` for `<=` in what Spark leaves out of a batch",
        "compactor/spark/jobs.py",
        'F.col("ulid") <= F.col(',
        'F.col("ulid") < F.col(',
        _SPARK,
    ),
    Mutation(
        "`<` for `<=` in what Spark leaves out of files",
        "compactor/spark/jobs.py",
        'match = lines["ulid"] <= gone["t"]',
        'match = lines["ulid"] < gone["t"]',
        _SPARK,
    ),
    Mutation(
        "`<` for `<=` where files are looked at",
        "compactor/purge.py",
        "pc.less_equal(group",
        "pc.less(group",
        (*_PLAIN, "deleted_to_the_line"),
    ),
    Mutation(
        "a batch is not compared with the table",
        "compactor/ingest.py",
        "held = {file.uri: file.size for file in snapshot.files if ranges.may_overlap(file)}",
        "held: dict[str, int] = {}",
        (*_PLAIN, "deleted_to_the_line"),
    ),
)
