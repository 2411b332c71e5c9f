"""Rolling files by the clock, retention, rights, and runs that are deleted and made again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.rolled import RolledCatalog, RollingFileSettings
from tailrace.pipelines.events import Deleted
from tests.pipelines.events import BASE_MS, events

HOUR_MS = 3_600_000
NOON_MS = 1_763_985_600_000  # 2025-11-24T12:00:00Z


class HandClock(SystemClock):
    """A clock that a test sets."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Files:
    """A rolling file below a folder, with a clock and deletions that a test sets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.clock = HandClock()
        self.deletions: Deleted = {}
        self.settings = RollingFileSettings(dir=str(folder), **settings)
        self.fs: FileSystem = Disk(private=True)
        self.files = RollingFile(self.settings)

    def start(self, state: State | None = None) -> None:
        self.files = RollingFile(self.settings)
        context = AppenderContext("p", "files", 0, 1, self.fs, self.clock, lambda: True)
        self.files.start(replace(context, deletions=lambda: self.deletions), state)

    def write(self, *messages: str, **more: Any) -> None:
        self.files.append(events(messages, **more))
        for path in self.folder.rglob("*.log"):  # as if it had been written at the clock's time
            if path.read_text().endswith(f"{messages[-1]}\n"):
                os.utime(path, ns=(0, self.clock.now * 1_000_000))

    def save(self) -> State:
        state = self.files.sync()
        self.files.saved()
        return state

    def names(self) -> dict[str, str]:
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        relative = {str(path.relative_to(self.folder)): path for path in found}
        return {
            name: relative[name].read_text()
            for name in sorted(relative)
            if not name.startswith(".tailrace")
        }


def test_a_period_that_is_over_rolls_every_file_also_while_nothing_comes(tmp_path: Path) -> None:
    files = Files(tmp_path, roll_every="1h", names="timestamp")
    files.start()
    files.write("a", fqn="x")
    files.write("b", fqn="y")
    files.clock.now += HOUR_MS - 1
    assert not files.files.flush()
    files.clock.now += 1
    assert files.files.flush()  # the checkpoint is to have that
    assert not files.files.flush()
    state = files.save()
    files.write("c", fqn="x")
    files.files.stop()
    stamp = "2025-11-24T13-00-00.000"
    expected = {f"x.{stamp}.log": "a\n", f"y.{stamp}.log": "b\n", "x.log": "c\n"}
    assert files.names() == expected
    files.clock.now += HOUR_MS  # a restart in a later period rolls what the last one left
    files.start(state)
    files.write("c", fqn="x")
    files.save()
    assert not files.files.flush()
    files.clock.now += HOUR_MS
    files.write("d", fqn="x")
    files.files.stop()
    assert files.names() == {
        **{f"{name}.{stamp}.log": text for name, text in (("x", "a\n"), ("y", "b\n"))},
        "x.2025-11-24T15-00-00.000.log": "c\n",
        "x.log": "d\n",
    }


def test_files_roll_by_size_and_time_together_and_get_names_of_their_own(tmp_path: Path) -> None:
    files = Files(tmp_path, roll_every="1h", names="timestamp", max_file_size=4)
    files.start()
    files.write("a", "b", "c", "d", "e", fqn="x")
    files.files.stop()
    stamps = ["2025-11-24T12-00-00.000", "2025-11-24T12-00-00.001"]
    expected = {f"x.{stamps[0]}.log": "a\nb\n", f"x.{stamps[1]}.log": "c\nd\n", "x.log": "e\n"}
    assert files.names() == expected


def test_a_file_that_is_idle_is_rolled_and_others_are_not(tmp_path: Path) -> None:
    files = Files(tmp_path, roll_idle="10m", compress="none")
    files.start()
    files.write("a", fqn="x")
    files.clock.now += 400_000
    files.write("b", fqn="y")
    assert not files.files.flush()
    files.clock.now += 301_000
    assert files.files.flush()
    files.save()
    files.files.stop()
    assert files.names() == {"x.000001.log": "a\n", "y.log": "b\n"}


def test_an_idle_file_is_closed_without_a_further_event(tmp_path: Path) -> None:
    files = Files(tmp_path, idle_close="10m")
    files.start()
    files.write("a", fqn="x")
    assert _open_below(tmp_path) == ["x.log"]
    files.clock.now += 600_001
    files.files.flush()
    assert _open_below(tmp_path) == []
    files.files.stop()


def _open_below(folder: Path) -> list[str]:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is(fd)]
    return [os.path.basename(one) for one in links if one.startswith(str(folder)) and ".log" in one]


def _is(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_old_files_go_rolled_or_not_and_no_file_of_others(tmp_path: Path) -> None:
    files = Files(tmp_path, path="{date}.log", keep_for="2h", max_file_size=4)
    (tmp_path / "2020-01-01.log").write_text("of somebody else\n")
    os.utime(tmp_path / "2020-01-01.log", (0, 0))
    files.start()
    files.write("a", "b", "c", at_ms=BASE_MS)
    files.save()
    os.utime(tmp_path / "2023-11-14.000001.log", ns=(0, files.clock.now * 1_000_000))
    files.clock.now += 2 * HOUR_MS + 1
    files.write("d", at_ms=BASE_MS + 24 * HOUR_MS)
    files.files.flush()
    state = files.save()
    files.files.stop()
    assert files.names() == {"2020-01-01.log": "of somebody else\n", "2023-11-15.log": "d\n"}
    files.start(state)
    files.files.stop()
    assert list(_catalog(files)) == ["2023-11-15.log"]


def test_empty_folders_go_with_their_files(tmp_path: Path) -> None:
    files = Files(tmp_path, path="{service}/{date}/{fqn}/x.log", keep_for="2h", compress="gzip")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "of somebody else").write_text("stays")
    files.start()
    files.write("1", fqn="a.one", at_ms=BASE_MS)
    files.write("1", fqn="b.one", at_ms=BASE_MS)
    files.write("2", fqn="a.one", at_ms=BASE_MS + 24 * HOUR_MS)
    files.clock.now += HOUR_MS
    files.write("3", fqn="a.two", at_ms=BASE_MS)
    files.save()
    files.clock.now += HOUR_MS + 1
    files.files.flush()
    files.save()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob("[ab]/**/*"))] == [
        "a/2023-11-14",
        "a/2023-11-14/a.two",
        "a/2023-11-14/a.two/x.log",
        "b/of somebody else",
    ]
    files.write("4", fqn="a.one", at_ms=BASE_MS)
    files.save()
    files.files.stop()
    assert (tmp_path / "a" / "2023-11-14" / "a.one" / "x.log").read_text() == "4\n"


def _catalog(files: Files) -> RolledCatalog:
    catalog = RolledCatalog(files.fs, f"{files.folder}/.tailrace/p.files.0/catalog")
    catalog.start()
    catalog.stop()
    return catalog


def test_a_torn_end_of_the_catalog_is_cut(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.start()
    files.write("a", fqn="x")
    state = files.save()
    files.files.stop()
    path = tmp_path / ".tailrace" / "p.files.0" / "catalog"
    path.write_bytes(path.read_bytes() + b'12345678 ["torn')
    files.start(state)
    files.write("b", fqn="y")
    files.save()
    files.files.stop()
    assert list(_catalog(files)) == ["x.log", "y.log"]


def test_files_and_folders_get_the_rights_and_the_group_that_are_asked_for(tmp_path: Path) -> None:
    group = str(os.getgroups()[0] if os.getgroups() else os.getgid())
    files = Files(
        tmp_path / "new",
        path="{fqn}/x.log",
        file_permissions="640",
        dir_permissions="750",
        group=group,
        max_file_size=2,
        compress="gzip",
    )
    files.start()
    files.files.append(events(["a", "b"], fqn="x"))
    files.save()
    files.files.stop()
    paths = [tmp_path / "new" / "x" / name for name in ("x.log", "x.000001.log.gz")]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o640, 0o640]
    folders = [tmp_path / "new", tmp_path / "new" / "x"]
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o750, 0o750]
    assert {path.stat().st_gid for path in [*paths, *folders]} == {int(group)}
    assert (tmp_path / "new" / ".tailrace").stat().st_mode & 0o777 == 0o700


def test_owners_that_are_not_there_are_named(tmp_path: Path) -> None:
    for more in ({"owner": "nobody-of-that-name"}, {"group": "nobody-of-that-name"}):
        files = Files(tmp_path, **more)
        with pytest.raises(AppenderFailed, match=r"this machine has no .* 'nobody-of-that-name'"):
            files.start()
        files.files.stop()
    with pytest.raises(ValidationError, match="file_permissions"):
        RollingFileSettings(dir="/x", file_permissions="rw")


def test_each_tenant_has_a_quota_of_which_the_oldest_files_go(tmp_path: Path) -> None:
    """Rolled or not, but for files that are written, and none of others."""
    files = Files(
        tmp_path,
        path="{service}/{fqn}.log",
        max_file_size=10,
        quota_bytes=25,
        quota_folders=1,
        compress="none",
        idle_close="10m",
    )
    files.start()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "strange.log").write_text("x" * 1000)
    for fqn in ["a.old", "a.new", "b.one", "a.new", "a.new", "c.big"]:
        files.write("123456789" if fqn != "c.big" else "x" * 100, fqn=fqn)
        files.clock.now += 60_000
        files.save()
        for path in tmp_path.rglob("a.new.*.log"):
            os.utime(path, ns=(0, (NOON_MS + int(path.suffixes[-2][1:]) * 1000) * 1_000_000))
    files.files.flush()
    files.save()
    ours = ["a/a.new.log", "a/a.old.log", "a/strange.log", "b/b.one.log", "c/c.big.log"]
    assert list(files.names()) == ours, "what is open stays, though it is older"
    files.clock.now += 600_000  # all are closed by now
    files.files.flush()
    assert list(files.names()) == ours[:-1]
    state = files.save()
    files.files.stop()
    files.start(state)
    files.write("123456789", fqn="c.big")
    files.save()
    assert "c/c.big.log" in files.names()
    files.files.stop()


@pytest.mark.in_turn(3)
def test_very_many_files_that_are_rolled_at_once_fit_into_a_checkpoint(tmp_path: Path) -> None:
    """And are compressed behind a crash as behind none."""
    files = Files(tmp_path, path="{run}.log", roll_every="1h", compress="gzip", keep_files=1)
    files.start()
    names = [f"run-{number:04}-{'x' * 60}" for number in range(300)]
    for hour in range(2):
        for name in names:
            files.files.append(events([f"{hour}"], run=name))
        files.clock.now += HOUR_MS
        files.files.flush()
        state = files.files.sync()
        assert len(orjson.dumps(state)) < 1000
        files.files.stop()  # as if it was killed before it heard that this was saved
        files.start(state)
    files.files.stop()
    assert sorted(os.listdir(tmp_path)) == [".tailrace", *[f"{n}.000002.log.gz" for n in names]]


def test_a_path_without_an_ending_is_rolled_and_counted(tmp_path: Path) -> None:
    for names in ("sequence", "timestamp", "fixed_window"):
        folder = tmp_path / names
        folder.mkdir()
        files = Files(folder, path="all", max_file_size=4, names=names, keep_files=2)
        files.start()
        for number in range(5):
            files.write(f"{number}00")
            files.clock.now += 1000
            files.save()
        files.files.stop()
        assert sorted(files.names().values()) == ["200\n", "300\n", "400\n"]
