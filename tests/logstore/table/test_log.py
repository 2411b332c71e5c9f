"""The log as we read it says what delta-rs says, in one read, and what was so at some time."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.table.log import LocalLogFolder, Log, LogFile, Look
from tailrace.logstore.table.schema import JOB
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import LOG, Advance, Table, TableChange, commit
from tests.simulation.clocks import ManualClock

NODES = ("a", "b", "c")


@dataclass
class Counted:
    """The log's folder, which counts how often each file is asked for."""

    inner: LocalLogFolder
    got: Counter[str] = field(default_factory=Counter)
    threads: set[str] = field(default_factory=set)

    def list(self, start: str) -> Iterator[LogFile]:
        self.got["list"] += 1
        return self.inner.list(start)

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        self.got[name] += 1
        return self.inner.get(name, offset, size)

    def look(self, version: int) -> Look:
        self.got["look"] += 1
        return self.inner.look(version)


def folder_of(table: Table) -> Path:
    return Path(table.uri) / LOG


def grown(table: Table, clock: ManualClock, commits: int) -> TableSnapshot:
    """Nodes advance in turn; a commit in five is of no node."""
    snapshot = table.create()
    at = dict.fromkeys(NODES, 0)
    for number in range(1, commits + 1):
        node = NODES[number % len(NODES)]
        advances = [Advance(node, at[node] + 1, at[node] + 2)] if number % 5 else []
        at[node] += 2 * len(advances)
        change = TableChange(advances=advances, purged_ms=number if number > 9 else None)
        snapshot = commit(table, snapshot, change, job=f"J{number}", clock=clock)
    return snapshot


def by_delta(table: Table, version: int) -> dict[str, int]:
    delta = DeltaTable(table.uri, version)
    names = ["deletions", "expired", *(f"segments/{node}" for node in NODES)]
    loaded = {name: delta.transaction_version(name) for name in names}
    return {name: found for name, found in loaded.items() if found is not None}


def test_of_every_version_it_says_what_delta_rs_says(table: Table, clock: ManualClock) -> None:
    """With no checkpoint yet, at one, between two, and behind the last."""
    grown(table, clock, 45)
    for version in range(46):
        assert table.log.transactions(version) == by_delta(table, version)


def test_also_of_one_whose_first_commits_are_cleaned_up(table: Table, clock: ManualClock) -> None:
    snapshot = grown(table, clock, 44)
    for path in folder_of(table).iterdir():
        moment = path.stat().st_mtime - 3 * 86_400
        os.utime(path, (moment, moment))
    change = TableChange(advances=[Advance("d", 1, 9)])
    after = commit(table, snapshot, change, job="last", clock=clock)
    assert not (folder_of(table) / f"{20:020}.json").exists()
    assert table.log.transactions(after.version) == by_delta(table, 45) | {"segments/d": 9}
    assert table.log.transactions(20) is None


def test_the_marks_of_all_nodes_are_one_read(table: Table, clock: ManualClock) -> None:
    """Each commit since the checkpoint once, however many nodes: it was once for each."""
    grown(table, clock, 35)
    counted = Counted(LocalLogFolder(str(folder_of(table))))
    snapshot = Table(table.uri, log_folder=counted).snapshot()
    nodes = [*NODES, *(f"n{i}" for i in range(100))]
    marks = snapshot.marks(nodes)
    assert (snapshot.marks(nodes), snapshot.mark("a"), snapshot.purged_ms) == (
        marks, marks["a"], 35
    )  # fmt: skip
    assert {node: marks[node] for node in NODES} == {
        node: DeltaTable(table.uri).transaction_version(f"segments/{node}") for node in NODES
    }
    assert counted.got.pop("list") == 1
    of_checkpoint = [name for name in counted.got if "checkpoint" in name]
    assert len(of_checkpoint) == 1
    assert counted.got.pop(of_checkpoint[0]) <= 4
    base = int(of_checkpoint[0][:20])
    assert counted.got == {f"{number:020}.json": 1 for number in range(base + 1, 36)}


def test_a_checkpoint_of_another_form_is_left_to_delta_rs(table: Table, clock: ManualClock) -> None:
    """Named by a UUID, as version 2 of checkpoints is."""
    grown(table, clock, 44)
    log = folder_of(table)
    marks = {node: DeltaTable(table.uri).transaction_version(f"segments/{node}") for node in NODES}
    last = max(log.glob("*.checkpoint.parquet"))
    base = int(last.name[:20])
    for old in log.iterdir():
        if old.name[:20].isdigit() and int(old.name[:20]) <= base and old != last:
            old.unlink()
    last.rename(log / f"{base:020}.checkpoint.{uuid.uuid4()}.parquet")
    (log / "_last_checkpoint").unlink()
    assert table.log.transactions(44) is None
    assert table.snapshot().marks(NODES) == marks
    assert table.mark("a") == marks["a"]


def test_the_version_of_a_time_is_the_last_one_written_by_then(tmp_path: Path) -> None:
    for version in range(250):
        path = tmp_path / f"{version:020}.json"
        path.write_bytes(b"")
        os.utime(path, ns=(0, (1_000 + 10 * version) * 1_000_000))
    log = Log(LocalLogFolder(str(tmp_path)))
    for newest in (0, 90, 240, 249):
        assert log.version_at(999, newest) is None
        assert log.version_at(1_000, newest) == 0
        assert log.version_at(1_009, newest) == 0
        assert log.version_at(2_495, newest) == 149
        assert log.version_at(3_489, newest) == 248
        assert log.version_at(10_000, newest) == 249


def test_a_commit_that_looks_younger_than_it_is_makes_nothing_older(tmp_path: Path) -> None:
    """Restored from a copy: what came after it was there no sooner than it."""
    for version, written in enumerate((10, 20, 90, 40, 50)):
        path = tmp_path / f"{version:020}.json"
        path.write_bytes(b"")
        os.utime(path, ns=(0, written * 1_000_000))
    log = Log(LocalLogFolder(str(tmp_path)))
    assert [log.version_at(then, 4) for then in (20, 60, 89, 90)] == [1, 1, 1, 4]


def test_a_version_known_by_its_checkpoint_alone_has_its_time(tmp_path: Path) -> None:
    for name, written in ((f"{7:020}.checkpoint.parquet", 30), (f"{8:020}.json", 50)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, ns=(0, written * 1_000_000))
    log = Log(LocalLogFolder(str(tmp_path)))
    assert [log.version_at(then, 8) for then in (29, 30, 50)] == [None, 7, 8]


def test_marks_at_a_time_are_those_of_its_version_while_others_commit(
    table: Table, clock: ManualClock
) -> None:
    """delta-rs's history of a version that was loaded begins at the newest one."""
    grown(table, clock, 30)
    for version in range(31):
        path = folder_of(table) / f"{version:020}.json"
        os.utime(path, ns=(0, (1_000 + version) * 1_000_000))
    for version in (0, 7, 19, 20, 21, 30):
        loaded = by_delta(table, version)
        marks = {node: loaded.get(f"segments/{node}", 0) for node in NODES}
        assert table.marks_at(1_000 + version, NODES) == marks
    assert table.marks_at(999, NODES) == dict.fromkeys(NODES, 0)


def test_a_table_that_does_not_exist_had_no_marks(table: Table) -> None:
    assert table.marks_at(int(time.time() * 1000), NODES) == dict.fromkeys(NODES, 0)


def test_jobs_are_those_of_the_versions_between(table: Table, clock: ManualClock) -> None:
    grown(table, clock, 6)
    assert table.log.jobs(JOB, 3, 6) == {"J4", "J5", "J6"}
    assert table.log.jobs(JOB, 6, 6) == set()
    (folder_of(table) / f"{5:020}.json").unlink()
    with pytest.raises(StoreUnavailable, match="is gone"):
        table.log.jobs(JOB, 3, 6)


def test_what_is_no_commit_is_not_skipped(table: Table, clock: ManualClock) -> None:
    grown(table, clock, 3)
    (folder_of(table) / f"{2:020}.json").write_bytes(b'{"txn": and so on')
    with pytest.raises(StoreUnavailable, match="not a commit"):
        table.log.transactions(3)


def test_a_broken_checkpoint_is_not_taken_for_an_empty_one(
    table: Table, clock: ManualClock
) -> None:
    grown(table, clock, 30)
    (first,) = sorted(folder_of(table).glob("*.checkpoint.parquet"))[:1]
    first.write_bytes(first.read_bytes()[:-100])
    with pytest.raises(StoreUnavailable, match="checkpoint"):
        table.log.transactions(30)


def test_of_a_checkpoint_in_parts_all_must_be_there(table: Table, clock: ManualClock) -> None:
    """As Spark writes large ones; here the parts are one and the same, which adds nothing."""
    grown(table, clock, 30)
    log = folder_of(table)
    (whole,) = sorted(log.glob("*.checkpoint.parquet"))[-1:]
    base = int(whole.name[:20])
    expected = table.log.transactions(30)
    body = whole.read_bytes()
    whole.unlink()
    for old in range(base + 1):
        (log / f"{old:020}.json").unlink()
    first, second = (log / f"{base:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2))
    first.write_bytes(body)
    assert table.log.transactions(30) is None
    second.write_bytes(body)
    assert table.log.transactions(30) == expected


def test_a_local_folder_gives_what_is_there(tmp_path: Path) -> None:
    folder = LocalLogFolder(str(tmp_path / "log"))
    assert list(folder.list("")) == []
    with pytest.raises(NotFound):
        folder.get("x")
    (tmp_path / "log").mkdir()
    for name in ("b", "a", "c"):
        (tmp_path / "log" / name).write_bytes(b"0123456789")
    assert [file.name for file in folder.list("a")] == ["b", "c"]
    assert [(file.size) for file in folder.list("b")] == [10]
    assert folder.get("a", 3, 4) == b"3456"
    assert folder.get("a", 8, 4) == b"89"
    (tmp_path / "log" / "d").mkdir()
    with pytest.raises(StoreUnavailable):
        folder.get("d")


def test_it_is_read_from_several_threads_at_once(table: Table, clock: ManualClock) -> None:
    snapshot = grown(table, clock, 30)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(snapshot.mark("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [by_delta(table, 30)["segments/a"]] * 4
