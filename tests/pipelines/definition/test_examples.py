"""The pipelines that are shipped as examples: they are right, and one of them is CDAP's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import AppenderContext
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import beside, read, read_folder
from tests.pipelines.events import BASE_MS, events

FOLDER = Path(__file__).parents[3] / "deploy" / "pipelines"


def test_every_example_is_right() -> None:
    folder = beside(read_folder(str(FOLDER), AppenderRegistry()))
    found = {one.name: one for one in folder.pipelines}
    assert folder.wrong == {}
    assert {"audit", "by-application"} <= set(found)
    for path in FOLDER.glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["name"] in found


def test_each_application_has_its_audit_metrics_and_debug_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS", str(tmp_path))
    config = read(str(FOLDER / "by-application.yaml"), AppenderRegistry())

    def lines(logger: str, level: str, *messages: str, at: int) -> pa.Table:
        attributes = {"logger": logger, "thread": "main"}
        more: dict[str, Any] = {"fqn": "shop.load", "level": level, "at_ms": BASE_MS + at}
        return events(messages, attributes=attributes, **more)

    table = pa.concat_tables(
        [
            lines("audit.users", "INFO", "anna signed in", at=0),
            lines("metrics", "INFO", "rows=5", at=1),
            lines("com.acme.Loader", "DEBUG", "reading", at=2),
        ]
    )
    for one in config.appenders:
        appender = one.make()
        appender.start(
            AppenderContext(config.name, one.name, 0, 1, Disk(), SystemClock(), lambda: True), None
        )
        appender.append(one.part.filter.of(table))
        appender.sync()
        appender.stop()
    found = {path.name: path.read_text() for path in (tmp_path / "shop").iterdir()}
    assert found["audit.log"] == "2023-11-14 22:13:20,000 INFO  audit.users anna signed in\n"
    assert found["metrics.log"].endswith('msg="rows=5" logger=metrics thread=main\n')
    assert [line.split(" - ")[1] for line in found["debug.log"].splitlines()] == [
        "anna signed in",
        "rows=5",
        "reading",
    ]
