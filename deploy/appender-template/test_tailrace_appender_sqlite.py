"""The appender without a pipeline: it gets events, crashes, and gets some again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from tailrace_appender_sqlite import Sqlite, SqliteSettings

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, AppenderMetrics
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tailrace.pipelines.events import EVENTS

CONTEXT = AppenderContext("p", "database", 0, 1, Disk(), SystemClock(), lambda: True)


def events(*messages: str) -> pa.Table:
    """Events with these messages; equal messages are one record."""
    rows = [
        {"ulid": f"{crc32(m.encode()):026d}", "ts": 0, "fqn": "a.b", "run_id": "r", "message": m}
        for m in messages
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def messages(file: Path) -> list[str]:
    with sqlite3.connect(file) as database:
        return sorted(row[0] for row in database.execute("SELECT message FROM records"))


def test_rows_are_counted_for_prometheus(tmp_path: Path) -> None:
    metrics = AppenderMetrics()
    appender = Sqlite(SqliteSettings(file=str(tmp_path / "runs.db")))
    appender.start(replace(CONTEXT, metrics=metrics), None)
    appender.append(events("1", "2"))
    appender.append(events("2", "3"))
    assert metrics.values() == {"rows_written": 3}
    appender.stop()


def test_what_comes_again_after_a_crash_is_there_once(tmp_path: Path) -> None:
    settings = SqliteSettings(file=str(tmp_path / "runs.db"))
    first = Sqlite(settings)
    first.start(CONTEXT, None)
    first.append(events("a", "b"))
    state = first.sync()
    first.append(events("c"))
    first.sync()  # this one is never saved
    first.append(events("d"))
    first.stop()
    second = Sqlite(settings)
    second.start(CONTEXT, state)
    second.append(events("c", "d"))
    second.sync()
    second.stop()
    assert messages(tmp_path / "runs.db") == ["a", "b", "c", "d"]


def test_a_place_that_cannot_be_is_a_failure_that_is_tried_again(tmp_path: Path) -> None:
    appender = Sqlite(SqliteSettings(file=str(tmp_path / "absent" / "runs.db")))
    with pytest.raises(AppenderFailed, match=r"absent/runs\.db: unable to open"):
        appender.start(CONTEXT, None)
    appender.stop()


def test_a_pipelines_file_is_checked() -> None:
    registry = AppenderRegistry()
    assert "sqlite" in registry.names
    right = {"type": "sqlite", "name": "x", "file": "/runs.db"}
    assert parse({"name": "p", "appenders": [right]}, registry).appenders[0].name == "x"
    with pytest.raises(InvalidInput, match=r"unknown key appenders.0.fil"):
        parse({"name": "p", "appenders": [{**right, "fil": 1}]}, registry)
