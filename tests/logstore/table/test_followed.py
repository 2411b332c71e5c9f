"""A table that is followed by its log is what delta-rs says, whatever happens to it meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import StoreUnavailable, UnsupportedVersion
from tailrace.logstore.table.followed import FollowedTable, TableVersion
from tailrace.logstore.table.log import LocalLogFolder, LogFile, LogFolder, Look, commit_name
from tailrace.logstore.table.snapshot import FileIndex, TableSnapshot
from tailrace.logstore.table.table import LOG, Advance, Table, TableChange, commit, open_table
from tests import reshaped
from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.logstore.table.changing import NAMES, NODES, ChangingTable
from tests.logstore.table.conftest import HOUR, NOON
from tests.seeds import some
from tests.servers.minio import Bucket

HIGHEST = (1 << 128) - 1


@dataclass
class Watched:
    """A log's folder that does something before each call, and counts them."""

    inner: LogFolder
    before: Callable[[], None] = lambda: None
    calls: Counter[str] = field(default_factory=Counter)

    def list(self, start: str) -> Iterator[LogFile]:
        self._called("list")
        return iter(list(self.inner.list(start)))

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        self._called("get")
        return self.inner.get(name, offset, size)

    def look(self, version: int) -> Look:
        self._called("look")
        return self.inner.look(version)

    def _called(self, what: str) -> None:
        self.calls[what] += 1
        self.before()


@dataclass(frozen=True)
class Opened(Table):
    """Counts how often delta-rs opens it."""

    opened: list[int] = field(default_factory=list)

    def snapshot(self) -> TableSnapshot:
        found = super().snapshot()
        self.opened.append(found.version)
        return found


def watched(table: Table) -> tuple[Watched, Opened]:
    folder = Watched(LocalLogFolder(f"{table.uri}/{LOG}"))
    return folder, Opened(table.uri, log_folder=folder)


def check(found: TableVersion, table: Table) -> None:
    """It is the newest version, and so are its files, marks and choices of files."""
    expected = table.snapshot()
    assert found.number == expected.version
    assert found.marks(NODES) == expected.marks(NODES)
    assert set(found.files.within(0, HIGHEST)) == set(expected.files)
    assert found.files.count == len(expected.files)


def check_choice(files: FileIndex, expected: TableSnapshot, dice: random.Random) -> None:
    """Of some hours, fqn and run it has the files that a look at each of all gives."""
    low, high = sorted(ulid.lowest_at(NOON + dice.randrange(-HOUR, 13 * HOUR)) for _ in range(2))
    low, high = dice.choice([(low, high), (0, HIGHEST), (low, low), (0, high)])
    fqn, run = dice.choice([None, *NAMES, "zzz"]), dice.choice([None, "r1", "r11", "x"])
    selected = files.select(low, high, fqn, run)
    wanted = expected.files_for(low, high, fqn, run)
    assert sorted(selected.within(0, HIGHEST), key=str) == sorted(wanted, key=str)
    assert sum(selected.sizes().values()) == sum(file.size for file in wanted)


@pytest.mark.parametrize("seed", some(range(8), 4, "any history"))
def test_after_any_history_it_is_what_delta_rs_says(table: Table, seed: int) -> None:
    dice = random.Random(seed)
    changing = ChangingTable(table, dice)
    followed = FollowedTable(table)
    for _ in range(40):
        for _ in range(dice.randrange(1, 4)):
            changing.step()
        found = followed.newest()
        check(found, table)
        check_choice(found.files, table.snapshot(), dice)


def test_what_did_not_change_costs_a_look(table: Table) -> None:
    ChangingTable(table, random.Random(1)).many()
    folder, counted = watched(table)
    followed = FollowedTable(counted)
    first = followed.newest()
    folder.calls.clear()
    assert all(followed.newest() is first for _ in range(5))
    assert folder.calls == {"look": 5}
    assert len(counted.opened) == 1


def test_what_was_committed_is_read_by_itself(table: Table) -> None:
    changing = ChangingTable(table, random.Random(1))
    changing.many()
    folder, counted = watched(table)
    followed = FollowedTable(counted)
    followed.newest()
    folder.calls.clear()
    for _ in range(3):
        changing.add()
    check(followed.newest(), table)
    assert folder.calls["get"] == 3
    assert len(counted.opened) == 1


def test_behind_a_gap_and_far_behind_it_is_opened_anew(table: Table) -> None:
    changing = ChangingTable(table, random.Random(1))
    changing.add()
    _, counted = watched(table)
    followed = FollowedTable(counted)
    followed.newest()
    for _ in range(25):
        changing.add()
    (changing.log / commit_name(3)).unlink()  # a checkpoint has it
    check(followed.newest(), table)
    assert len(counted.opened) == 2
    for _ in range(101):
        changing.commit(TableChange([]))
    check(followed.newest(), table)
    assert len(counted.opened) == 3


Happening = Callable[[ChangingTable], None]


@pytest.mark.parametrize("what", ["add", "remake", "take_back", "clean_up", "remove"])
@pytest.mark.parametrize("call", some(range(8), 4, "between calls"))
@pytest.mark.parametrize("known", [True, False])
def test_what_happens_between_any_two_calls_is_seen_by_the_next(
    table: Table, what: str, call: int, *, known: bool
) -> None:
    changing = ChangingTable(table, random.Random(call))
    changing.many()
    folder, counted = watched(table)
    followed = FollowedTable(counted)
    if known:
        followed.newest()
        for _ in range(3):
            changing.add()
    asked = table.snapshot().version
    left = call

    def before() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            getattr(changing, what)()

    folder.before = before
    try:
        found = followed.newest()
        assert found.number >= asked or what in ("remake", "remove")
    except StoreUnavailable:
        assert what in ("remake", "remove", "clean_up", "take_back")
    folder.before = lambda: None
    check(followed.newest(), table)


def test_a_commit_that_was_cut_off_is_judged_by_delta_rs_and_not_kept(table: Table) -> None:
    """Between two lines it looks whole, but for the number of its actions."""
    changing = ChangingTable(table, random.Random(1))
    changing.add()
    _, counted = watched(table)
    followed = FollowedTable(counted)
    followed.newest()
    changing.commit(TableChange([changing.file(), changing.file()]))
    newest = changing.log / commit_name(table.snapshot().version)
    whole = newest.read_bytes()
    newest.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    check(followed.newest(), table)
    assert len(counted.opened) == 2
    newest.write_bytes(whole[:-40])
    with pytest.raises(StoreUnavailable):
        followed.newest()
    newest.write_bytes(whole)
    check(followed.newest(), table)


def test_a_commit_whose_bytes_are_not_there_yet_is_not_an_empty_one(table: Table) -> None:
    """A folder that several machines share shows a file before its bytes."""
    changing = ChangingTable(table, random.Random(1))
    changing.add()
    followed = FollowedTable(table)
    followed.newest()
    changing.commit(TableChange([changing.file()]))
    late = changing.log / commit_name(table.snapshot().version)
    body = late.read_bytes()
    changing.commit(TableChange([changing.file()]))
    late.write_bytes(b"")
    followed.newest()
    late.write_bytes(body)
    changing.commit(TableChange([changing.file()]))
    check(followed.newest(), table)


@pytest.mark.parametrize("change", [reshaped.with_deletion_vector, reshaped.with_column_mapping])
def test_another_shape_is_refused_as_long_as_it_lasts(
    table: Table, change: reshaped.Reshape
) -> None:
    changing = ChangingTable(table, random.Random(1))
    changing.commit(TableChange([changing.file(), changing.file()]))
    followed = FollowedTable(table)
    before = followed.newest()
    change(Path(table.uri))
    for _ in range(2):
        with pytest.raises(UnsupportedVersion):
            followed.newest()
    (changing.log / commit_name(before.number + 1)).unlink()
    check(followed.newest(), table)


def test_a_table_that_is_not_there_is_empty_until_it_is(table: Table) -> None:
    followed = FollowedTable(table)
    for _ in range(2):
        assert (followed.newest().number, followed.newest().files.count) == (-1, 0)
        assert followed.newest().marks(["a"]) == {"a": 0}
    ChangingTable(table, random.Random(1)).add()
    check(followed.newest(), table)


def test_a_log_that_only_delta_rs_reads_is_opened_each_time(table: Table) -> None:
    """A checkpoint of another form than ours."""
    changing = ChangingTable(table, random.Random(1))
    for _ in range(25):
        changing.add()
    for path in changing.log.glob("*.json"):
        if int(path.name[:20]) <= 20:
            path.unlink()
    (whole,) = changing.log.glob("*.checkpoint.parquet")
    whole.rename(changing.log / f"{20:020}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet")
    (changing.log / "_last_checkpoint").unlink()
    _, counted = watched(table)
    followed = FollowedTable(counted)
    for _ in range(2):
        check(followed.newest(), table)
    assert len(counted.opened) == 2


@pytest.mark.minio
@pytest.mark.parametrize("seed", range(2))
def test_in_a_bucket_any_request_may_fail(bucket: Bucket, seed: int) -> None:
    """It raises, or is right; what failed is not remembered."""
    straight = open_table(bucket.settings)
    rates = evenly(0.1) | {Kind.CUT_RESPONSE: 0.2}
    schedule = Schedule(seed, rates, most_in_a_row=2, delay_seconds=0.005)
    right, at, clock = 0, 0, SystemClock()
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        through = bucket.through(url, attempts=1)
        followed = FollowedTable(open_table(through.settings))
        for number in range(200):
            if number >= 25 and right > 5:
                break
            if number % 3 == 0:
                at += 1
                advance = [Advance("a", at, at)]
                commit(
                    straight, straight.create(), TableChange([], advance), job=f"{at}", clock=clock
                )
            try:
                found = followed.newest()
            except StoreUnavailable:
                continue
            right += 1
            assert found.marks(["a"]) == {"a": at}
    assert right > 5
    assert schedule.injected[Kind.CUT_RESPONSE] > 0


@pytest.mark.minio
def test_in_a_bucket_it_is_one_request(bucket: Bucket) -> None:
    table = open_table(bucket.settings)
    clock, folder = SystemClock(), Watched(table.log.folder)
    followed = FollowedTable(replace(table, log_folder=folder))
    for at in range(1, 24):
        advance = [Advance("a", at, at)]
        commit(table, table.create(), TableChange([], advance), job=f"{at}", clock=clock)
        assert followed.newest().marks(["a"]) == {"a": at}
    folder.calls.clear()
    assert followed.newest() is followed.newest()
    assert folder.calls == {"look": 2}


def test_an_action_of_an_unknown_kind_changes_nothing(table: Table) -> None:
    changing = ChangingTable(table, random.Random(1))
    changing.add()
    followed = FollowedTable(table)
    before = followed.newest()
    body = b'{"commitInfo":{}}\n{"unheard":{"of":1}}\n'
    (changing.log / commit_name(before.number + 1)).write_bytes(body)
    check(followed.newest(), table)
