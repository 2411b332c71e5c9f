"""Rolling files: paths, sizes, names, compression, writers."""

from __future__ import annotations

import gzip
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.rolled import RollingFileSettings
from tests.pipelines.events import events


def context(fs: FileSystem, *, parts: int = 1) -> AppenderContext:
    return AppenderContext("p", "files", 0, parts, fs, SystemClock(), lambda: True)


def appender(folder: str, **settings: Any) -> RollingFile:
    return RollingFile(RollingFileSettings(dir=folder, **settings))


def text_of(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path, "read")
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def names(fs: FileSystem, folder: str) -> list[str]:
    return sorted(name for name, is_folder in fs.scan(folder) if not is_folder)


def test_events_go_to_the_files_of_their_pipelines(tmp_path: Any) -> None:
    files, fs = appender(str(tmp_path), path="{service}/{fqn}/{date}.log"), Disk(private=True)
    files.start(context(fs), None)
    files.append(events(["a", "b"], fqn="sales.load"))
    files.append(events(["c"], fqn="x/../y"))
    state = files.sync()
    files.saved()
    files.stop()
    assert state == {"undo": 2, "rolled": []}
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.log")}
    assert found == {
        "sales/sales.load/2023-11-14.log": "a\nb\n",
        "x%2F/x%2F..%2Fy/2023-11-14.log": "c\n",
    }
    assert {p.stat().st_mode & 0o777 for p in tmp_path.rglob("*.log")} == {0o600}


def test_an_older_checkpoint_than_was_saved_is_refused(tmp_path: Path) -> None:
    files, fs, path = appender(str(tmp_path)), Disk(), tmp_path / "a.log"
    files.start(context(fs), None)
    states: list[State | None] = [None]
    for text in ("1", "2"):
        files.append(events([text], fqn="a"))
        states.append(files.sync())
        files.saved()
    files.stop()
    for older in states[:-1]:
        with pytest.raises(AppenderFailed, match="checkpoint 3 was saved for what it has written"):
            appender(str(tmp_path)).start(context(fs), older)
        assert path.read_text() == "1\n2\n"
    # What is not saved may be tried as often as you like.
    for _ in range(3):
        again = appender(str(tmp_path))
        again.start(context(fs), states[-1])
        again.append(events(["3"], fqn="a"))
        again.sync()
        again.stop()
    mark = tmp_path / ".tailrace" / context(fs).name / "saved"
    body = mark.read_bytes()
    for bit in range(8 * len(body)):  # a damaged mark says nothing, and stops nobody
        mark.write_bytes((int.from_bytes(body, "big") ^ 1 << bit).to_bytes(len(body), "big"))
        again = appender(str(tmp_path))
        again.start(context(fs), states[-1])
        again.stop()
    assert path.read_text() == "1\n2\n"


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_somebody_takes_away_is_begun_again(tmp_path: Path, how: str) -> None:
    """What came since the last checkpoint is in the new one, instead of nowhere."""
    files, fs, path = appender(str(tmp_path)), Disk(), tmp_path / "a.log"
    files.start(context(fs), None)
    files.append(events(["1"], fqn="a"))
    state = files.sync()
    files.saved()
    path.rename(tmp_path / "taken")
    if how == "replaced":
        path.write_text("somebody's\n")
    files.append(events(["2"], fqn="a"))
    with pytest.raises(AppenderFailed, match=r"a\.log was removed or replaced"):
        files.sync()
    files.stop()
    again = appender(str(tmp_path))
    again.start(context(fs), state)
    again.append(events(["2"], fqn="a"))
    again.sync()
    again.stop()
    assert path.read_text() == ("2\n" if how == "removed" else "somebody's\n2\n")


def test_twenty_thousand_events_roll_into_a_fixed_window(tmp_path: Any) -> None:
    settings = {
        "path": "{fqn}.log",
        "names": "fixed_window",
        "max_file_size": 24_000,
        "keep_files": 9,
    }
    files, fs = appender(str(tmp_path), **settings), Disk()
    files.start(context(fs), None)
    messages = [f"event {i:05d}" for i in range(20_000)]
    for start in range(0, 20_000, 500):
        files.append(events(messages[start : start + 500], fqn="a"))
    files.sync()
    files.saved()
    files.stop()
    assert names(fs, str(tmp_path)) == sorted(["a.log", *(f"a.{i}.log" for i in range(1, 10))])
    kept = [text_of(fs, f"{tmp_path}/a.{i}.log") for i in range(9, 0, -1)]
    kept.append(text_of(fs, f"{tmp_path}/a.log"))
    assert all(len(text) == 24_000 for text in kept)
    assert b"".join(kept) == "".join(f"{one}\n" for one in messages).encode()


def test_what_was_rolled_is_compressed_when_nobody_goes_back_behind_it(tmp_path: Any) -> None:
    files, fs = appender(str(tmp_path), max_file_size=4, compress="gzip", keep_files=2), Disk()
    files.start(context(fs), None)
    files.append(events(["a", "b", "c", "d", "e", "f", "g"], fqn="a"))
    files.sync()
    assert names(fs, str(tmp_path)) == ["a.000001.log", "a.000002.log", "a.000003.log", "a.log"]
    files.saved()
    files.stop()
    assert names(fs, str(tmp_path)) == ["a.000002.log.gz", "a.000003.log.gz", "a.log"]
    assert gzip.decompress(text_of(fs, f"{tmp_path}/a.000003.log.gz")) == b"e\nf\n"


def test_a_line_that_is_larger_than_a_file_has_one_of_its_own(tmp_path: Any) -> None:
    files, fs = appender(str(tmp_path), max_file_size=3), Disk()
    files.start(context(fs), None)
    files.append(events(["a", "long line", "b"], fqn="a"))
    files.stop()
    assert text_of(fs, f"{tmp_path}/a.000002.log") == b"long line\n"
    assert text_of(fs, f"{tmp_path}/a.log") == b"b\n"


def test_two_writers_of_the_same_files_are_refused(tmp_path: Any) -> None:
    first, second = appender(str(tmp_path)), appender(str(tmp_path))
    first.start(context(Disk()), None)
    with pytest.raises(AppenderFailed, match="another process writes"):
        second.start(context(Disk()), None)
    second.stop()
    first.stop()
    second.start(context(Disk()), None)
    second.stop()


def test_parts_that_would_share_a_file_are_refused(tmp_path: Any) -> None:
    files = appender(str(tmp_path), path="all.log")
    with pytest.raises(AppenderFailed, match="several parts"):
        files.start(context(Disk(), parts=2), None)
    files.stop()


def test_paths_that_differ_and_lead_to_one_file_have_one_writer(tmp_path: Any) -> None:
    """Else each would cut off what the other one wrote."""

    def files(name: str, path: str, state: State | None = None) -> RollingFile:
        made = RollingFile(RollingFileSettings(dir=str(tmp_path), path=path))
        made.start(
            AppenderContext("p", name, 0, 1, Disk(private=True), SystemClock(), lambda: True), state
        )
        return made

    first, second = files("first", "{fqn}.log"), files("second", "{service}.log")
    first.append(events(["1"], fqn="shop"))
    second.append(events(["2"], fqn="other.x"))
    state = second.sync()
    second.saved()
    with pytest.raises(AppenderFailed, match=r"shop\.log is written by p\.first\.0, and cannot"):
        second.append(events(["3"], fqn="shop.x"))
    second.stop()
    first.append(events(["4"], fqn="shop"))
    assert (tmp_path / "shop.log").read_text() == "1\n4\n"
    again = RollingFile(RollingFileSettings(dir=str(tmp_path), path="{service}.log"))
    context = AppenderContext("p", "second", 0, 1, Disk(private=True), SystemClock(), lambda: True)
    with pytest.raises(AppenderFailed, match="cannot have a second writer"):
        again.start(context, state)
    again.stop()
    first.sync()
    first.stop()
    # Who is not at work any more, such as one that has another name now, leaves its files.
    again = files("second", "{service}.log", state)
    again.append(events(["5"], fqn="shop.x"))
    again.sync()
    again.stop()
    assert (tmp_path / "shop.log").read_text() == "1\n4\n5\n"
    assert (tmp_path / "other.log").read_text() == "2\n"


def test_many_files_are_written_where_the_process_may_open_few(tmp_path: Path) -> None:
    """`ulimit -n` bounds how many of 120 are open, and leaves some for others."""
    fs = Disk(private=True)
    used = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(used, 30) * 4 // 3 + 8, limits[1]))
    try:
        files = appender(str(tmp_path), path="{fqn}.log")
        files.start(context(fs), None)
        for number in range(120):
            files.append(events([f"line {number}"], fqn=f"p{number}"))
        files.sync()
        files.saved()
        files.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    found = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert found == {f"p{number}.log": f"line {number}\n" for number in range(120)}
