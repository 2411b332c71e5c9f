"""The reference has every key, and the configurations in `deploy/forwarder/` can be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs import forwarder_reference
from tailrace.forwarder.config.load import read
from tailrace.forwarder.config.source import FileSource, Forwarder
from tailrace.forwarder.entries.packer import EntryPacker
from tailrace.forwarder.model import EntryCursor, FileFacts
from tailrace.forwarder.naming import Namer
from tests.forwarder.entries.packing import HUGE, records

ROOT = Path(__file__).parents[3]
LINES = {
    "host": ("/var/log/app/shop/orders.log", "line"),
    "kubernetes": (
        "/var/log/pods/shop_orders-1_aa-01/main/3.log",
        "2023-06-22T10:27:25.813799277Z stdout F line",
    ),
    "airflow": (
        "/opt/airflow/logs/dag_id=etl/run_id=m/task_id=load/attempt=1.log",
        "[2026-01-02T03:04:05.678+0000] {taskinstance.py:1} WARNING - slow",
    ),
}
NAMES = {
    "host": ("node-1.orders", "01A"),
    "kubernetes": ("shop.orders-1.main", "aa-01/3"),
    "airflow": ("etl.load", "m/attempt=1"),
}
LEVELS = {"host": None, "kubernetes": None, "airflow": "WARN"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/forwarder").iterdir()), ids=lambda p: p.stem
)
def test_the_configurations_that_are_shipped_can_be_used(path: Path) -> None:
    source = read(str(path)).sources[0]
    name, line = LINES[path.stem]
    assert Namer(source, host="node-1").name(name, "01A") == NAMES[path.stem]
    data = f"{line}\n".encode()
    packed = EntryPacker(source).pack(data, EntryCursor(), FileFacts(name), final=True, most=HUGE)
    found = records(packed)
    assert [record.get("level") for record in found] == [LEVELS[path.stem]]
    assert packed is not None
    assert packed.failed == 0


AIRFLOW_2 = """\
[2026-01-02T03:04:05.678+0000] {taskinstance.py:1937} ERROR - Task failed with exception
Traceback (most recent call last):
  File "/opt/dags/shop.py", line 7, in load
    total = {"a": 1}["total"]
KeyError: 'total'
[2026-01-02T03:04:06.000+0000] {local_task_job_runner.py:234} CRITICAL - out of disk
"""
AIRFLOW_3 = """\
{"timestamp":"2026-01-02T03:04:05.254813Z","level":"info","event":"loaded","lineno":179}
{"timestamp":"2026-01-02T03:04:05.5Z","level":"warning","event":"ERROR pages\\nare slow"}
{"timestamp":"2026-01-02T03:04:06.000001Z","level":"error","event":"Task failed",\
"logger":"task","error_detail":[{"exc_type":"KeyError","frames":[{"lineno":7}]}]}
{"timestamp":"2026-01-02T03:04:07.000000Z","level":"critical","event":"out of disk"}
{"timestamp":"2026-01-02T03:04:08.000000Z","level":"info","note":"no event"}
"""


def of_airflow(text: str) -> list[dict[str, Any]]:
    packer = EntryPacker(read(str(ROOT / "deploy/forwarder/airflow.yaml")).sources[0])
    name = FileFacts(LINES["airflow"][0])
    packed = packer.pack(text.encode(), EntryCursor(), name, final=True, most=HUGE)
    assert packed is not None
    assert packed.failed == 0
    return records(packed)


def test_a_task_log_of_airflow_2_is_text() -> None:
    failed, critical = of_airflow(AIRFLOW_2)
    assert (failed["level"], critical["level"]) == ("ERROR", "FATAL")
    assert failed["message"].endswith("KeyError: 'total'")
    assert failed["ts"] == 1767323045.678


def test_a_task_log_of_airflow_3_is_lines_of_json() -> None:
    loaded, slow, failed, critical, other = of_airflow(AIRFLOW_3)
    levels = [record.get("level") for record in (loaded, slow, failed, critical, other)]
    assert levels == ["INFO", "WARN", "ERROR", "FATAL", "INFO"]
    assert loaded["message"] == "loaded"
    assert loaded["ts"] == 1767323045.254813
    assert slow["message"] == "ERROR pages\nare slow"
    assert failed["message"] == "Task failed"
    assert failed["attributes"]["logger"] == "task"
    assert failed["attributes"]["error_detail"][0]["exc_type"] == "KeyError"
    assert "event" not in failed["attributes"]
    assert other["message"].endswith('"note":"no event"}')


def test_every_key_of_opentelemetrys_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "forwarder-reference.md").read_text()
    keys = forwarder_reference.OPENTELEMETRY - {"type"}
    missing = [
        key for key in keys if not re.search(rf"^\| `[\w.\[\]]*\b{key}` \|", page, re.MULTILINE)
    ]
    assert missing == []


def test_every_key_is_read_or_said_to_have_no_effect() -> None:
    code = "".join(
        path.read_text()
        for folder in ("forwarder", "tailrace")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "config"
    )
    unread = {
        name: field.description
        for model in (FileSource, Forwarder)
        for name, field in model.model_fields.items()
        if f".{name}" not in code
    }
    assert unread
    assert [name for name, text in unread.items() if "accepted" not in str(text)] == []
