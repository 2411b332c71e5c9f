"""Which files of the table have a skip index, and for how long; files are made without Spark."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from compactor import skip_index
from compactor.cleanup import remove_orphans
from compactor.report import PassReport
from compactor.settings import Compaction
from compactor.skip_index import index_files
from tailrace.logstore import keys
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.logstore.table.skip_index import SkipIndex, grams_of, parse
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import TableChange, commit
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.simulation.faulty_store import AT_EACH_STEP, Crash, Fault, FaultyStore, Schedule

ALL = Compaction(index_min_bytes=1)


def some(number: int) -> list[Batch]:
    return [batch("f", f"run-{number}-{i}", NOON + number * HOUR, 40) for i in range(3)]


def indexed(
    lake: Lake, report: PassReport | None = None, pass_bytes: int = skip_index.PASS_BYTES
) -> int:
    report = report or PassReport()
    before = report.files_indexed
    lake.run(index_files(lake.compactor, report, pass_bytes=pass_bytes))
    return report.files_indexed - before


def stored(lake: Lake, file: TableFile) -> SkipIndex:
    async def read() -> bytes:
        return (await lake.store.get(keys.skip_index(file.path)))[1]

    return parse(lake.run(read()), size=file.size)


def names(lake: Lake) -> set[str]:
    return {keys.indexed_file(key) for key in lake.keys(keys.SKIP_INDEXES)}


def files(snapshot: TableSnapshot) -> set[str]:
    return {f"{keys.TABLE}/{file.path}" for file in snapshot.files}


def removed(lake: Lake, snapshot: TableSnapshot) -> None:
    """A version without the files of this one."""
    change = TableChange(removed=snapshot.files, same_lines=False)
    commit(lake.compactor.table, snapshot, change, job="removing", clock=lake.clock)


def test_each_file_gets_one_that_knows_its_row_groups(any_lake: Lake) -> None:
    lake = any_lake
    lake.limits = ALL
    snapshot = add_files(lake, some(0), some(1))
    assert indexed(lake) == 2
    assert names(lake) == files(snapshot)
    for number, file in enumerate(sorted(snapshot.files, key=lambda file: file.start_ms)):
        index = stored(lake, file)
        assert index.rows.sum() == file.rows == 120
        for run in range(3):
            # The lines of each run: 40 of 16 in a row group.
            found = index.may_hold(grams_of(f"run-{number}-{run} {NOON + number * HOUR}"))
            wanted = np.zeros(8, np.bool_)
            wanted[run * 40 // 16 : ((run + 1) * 40 - 1) // 16 + 1] = True
            assert (found >= wanted).all()
    assert indexed(lake) == 0


def test_a_file_is_fetched_in_pieces(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.limits = ALL
    (file,) = add_files(lake, some(0)).files
    whole = lake.run(skip_index.build(lake.store, file))
    monkeypatch.setattr(skip_index, "_FETCHED_BYTES", 1_500)
    assert lake.run(skip_index.build(lake.store, file)) == whole
    monkeypatch.setattr(skip_index, "_FETCHED_BYTES", 1)
    assert lake.run(skip_index.build(lake.store, file)) == whole


def test_those_of_an_older_version_stay_until_there_are_new_ones(lake: Lake) -> None:
    lake.limits = ALL
    snapshot = add_files(lake, some(0), some(1))
    bare = [keys.skip_index(file.path).removesuffix("4") for file in snapshot.files]
    older = {key + version for key in bare for version in ("", "2", "3")}
    for key in [*older, keys.skip_index("gone.parquet").replace("skip4", "skip3")]:
        lake.run(lake.store.put(key, b"TRSKIP0 and so on"))
    for left in (6, 3, 0):
        assert indexed(lake, pass_bytes=1) == (left > 0)  # a file in each pass
        assert names(lake) == files(snapshot)
        assert len(older & set(lake.keys(keys.SKIP_INDEXES))) == left
    assert set(lake.keys(keys.SKIP_INDEXES)) == {keys.skip_index(f.path) for f in snapshot.files}


def test_small_files_have_none(lake: Lake) -> None:
    (file,) = add_files(lake, some(0)).files
    assert indexed(lake) == 0
    lake.limits = Compaction(index_min_bytes=file.size + 1)
    assert indexed(lake) == 0
    lake.limits = Compaction(index_min_bytes=None)
    assert indexed(lake) == 0
    lake.limits = Compaction(index_min_bytes=file.size)
    assert indexed(lake) == 1


def test_what_waits_goes_first_and_the_newest_hour_before_others(lake: Lake) -> None:
    lake.limits = ALL
    snapshot = add_files(lake, some(0), some(2), some(1))

    async def hurry() -> bool:
        return True

    report, newest_first = PassReport(), sorted(snapshot.files, key=lambda file: -file.start_ms)
    for number in range(1, 4):
        lake.run(index_files(lake.compactor, report, hurry))
        assert names(lake) == {f"{keys.TABLE}/{file.path}" for file in newest_first[:number]}


def test_a_pass_indexes_a_bounded_part_of_the_table(lake: Lake) -> None:
    lake.limits = ALL
    sizes = [file.size for file in add_files(lake, some(0), some(1), some(2)).files]
    assert [indexed(lake, pass_bytes=2 * min(sizes)) for _ in range(3)] == [2, 1, 0]


def test_an_index_goes_with_its_file_and_not_before(any_lake: Lake) -> None:
    lake = any_lake
    lake.limits = ALL
    snapshot = add_files(lake, some(0))
    indexed(lake)
    removed(lake, snapshot)
    kept = add_files(lake, some(1))
    assert lake.run(remove_orphans(lake.compactor)) == 0
    indexed(lake)
    # A search that began before may still read the file.
    assert names(lake) == files(snapshot) | files(kept)
    assert lake.run(remove_orphans(lake.compactor, hours=0)) == 1
    assert names(lake) == files(kept)


def test_a_kill_between_an_index_and_its_file_leaves_no_index_without_one(lake: Lake) -> None:
    lake.limits = ALL
    snapshot = add_files(lake, some(0))
    indexed(lake)
    removed(lake, snapshot)
    lake.run(lake.store.delete(sorted(files(snapshot))))
    assert names(lake) == files(snapshot)
    indexed(lake)
    assert names(lake) == set()


def test_a_file_that_is_gone_or_does_not_read_is_an_alarm(lake: Lake) -> None:
    lake.limits = ALL
    gone, rotten, whole = sorted(
        add_files(lake, some(0), some(1), some(2)).files, key=lambda file: file.start_ms
    )
    lake.run(lake.store.delete([f"{keys.TABLE}/{gone.path}"]))
    lake.put_bytes(f"{keys.TABLE}/{rotten.path}", bytes(rotten.size))
    report = PassReport()
    assert indexed(lake, report) == 1
    assert names(lake) == {f"{keys.TABLE}/{whole.path}"}
    assert [alarm.split(" ")[0] for alarm in report.alarms] == [
        rotten.path,
        gone.path,
    ]


@pytest.mark.parametrize("fault", AT_EACH_STEP)
def test_what_a_kill_or_a_failure_left_is_made_by_the_next_pass(lake: Lake, fault: Fault) -> None:
    lake.limits = ALL
    snapshot, whole = add_files(lake, some(0), some(1)), lake.store
    for step in count(1):
        lake.store = FaultyStore(whole, Schedule({step: fault}))
        try:
            indexed(lake)
        except (Crash, StoreUnavailable, OutcomeUnknown):
            pass
        else:
            break
        lake.store = whole
        indexed(lake)
        assert names(lake) == files(snapshot)
        for file in snapshot.files:
            assert stored(lake, file).rows.sum() == file.rows
        lake.run(whole.delete(lake.keys(keys.SKIP_INDEXES)))
    assert step > 6
