"""What Spark counts on the way: without a second look, and not waited for in vain."""

from __future__ import annotations

from contextlib import suppress

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.jobs import rows_of
from compactor.spark.session import Session
from tailrace.logstore import ulid
from tailrace.logstore.errors import Unavailable
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch, records

pytestmark = pytest.mark.spark


def test_a_count_that_is_never_told_ends_with_an_error(session: Session) -> None:
    """As where the event of the query's end was dropped: nobody ever fulfils it."""
    never = Observation()
    session.get().range(3).observe(never, F.count(F.lit(1)).alias("rows"))
    with pytest.raises(Unavailable, match=r"did not say within 0.2 s how many rows"):
        rows_of(never, seconds=0.2)


def test_a_count_that_is_told(session: Session) -> None:
    told = Observation()
    session.get().range(3).observe(
        told, F.count(F.lit(1)).alias("rows")
    ).count()  # `collect` leaves a socket
    assert rows_of(told) == 3


def test_segments_are_read_once_though_lines_are_deleted(warm: Lake, session: Session) -> None:
    """Beside copies, held lines, several deletions of one run and one of a pipeline."""
    held, run, gone = (batch(fqn, "r", NOON, 40) for fqn in ("f", "h", "g"))
    kept = batch("g", "r", NOON + HOUR, 5)
    warm.put("a", [held])
    warm.compact()
    for line in (9, 19):
        warm.delete("h", "r", run[1] + line)
    warm.delete("g", None, gone[1] + 39)
    warm.put("a", [held, run, gone, kept])
    warm.put("b", [run])
    first = stages(session)
    report = warm.compact()
    assert (report.rows_in, report.rows_out) == (165, 25)
    assert (report.deleted, report.duplicates) == (20 + 20 + 40, 40 + 20)
    upper = {
        (fqn, name, id_, text) for fqn, name, id_, text in records([run]) if id_ > last(run, 19)
    }
    assert set(warm.table()) == records([held, kept]) | upper
    assert rows_read(session, first) == 165 + 40


def last(one: Batch, line: int) -> str:
    return ulid.encode(one[1] + line)


def stages(session: Session) -> int:
    """How many there were so far."""
    store, number = session.get().sparkContext._jsc.sc().statusStore(), 0
    with suppress(Py4JError):
        while store.lastStageAttempt(number):
            number += 1
    return number


def rows_read(session: Session, first: int) -> int:
    """Of files, by all stages from that one on."""
    store = session.get().sparkContext._jsc.sc().statusStore()
    every = range(first, stages(session))
    return sum(store.lastStageAttempt(number).inputRecords() for number in every)
