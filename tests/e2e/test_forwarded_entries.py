"""What the forwarder makes of lines is what a real service has: times, levels, attributes, text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.programs import records
from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import FQN, ForwarderProcess


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path_factory.mktemp("service") / "node")
    started.start()
    yield started
    started.stop()


def forwarded(
    service: ServiceProcess, folder: Path, data: bytes, count: int, **config: Any
) -> list[dict[str, Any]]:
    """The records of a run that was made of one file."""
    run = folder.name
    forwarder = ForwarderProcess(folder, service.url, run=run, **config)
    (forwarder.logs / "a.log").write_bytes(data)
    forwarder.start()
    forwarder.until(lambda: len(records(service.url, run, FQN)) >= count)
    assert forwarder.stop() == 0
    found = records(service.url, run, FQN)
    assert len(found) == count
    return found


def test_containers_lines(service: ServiceProcess, tmp_path: Path) -> None:
    data = (
        b"2023-06-22T10:27:25.813799277Z stdout P one \n"
        b"2023-06-22T10:27:26.000000000Z stdout F line\n"
        b"2023-06-22T10:27:27.500000000Z stderr F java.lang.Error: x\n"
        b"2023-06-22T10:27:27.600000000Z stderr F \tat a.B.c(B.java:1)\n"
    )
    found = forwarded(
        service,
        tmp_path,
        data,
        2,
        operators=[{"type": "container"}],
        multiline={"builtin": ["java"]},
        attributes={"zone": "é"},
    )
    assert [(r["message"], r["ts"], r["attributes"]) for r in found] == [
        ("one line", "2023-06-22T10:27:25.813799Z", {"zone": "é", "log.iostream": "stdout"}),
        (
            "java.lang.Error: x\n\tat a.B.c(B.java:1)",
            "2023-06-22T10:27:27.500000Z",
            {"zone": "é", "log.iostream": "stderr"},
        ),
    ]


def test_json_and_bytes_that_are_no_text(service: ServiceProcess, tmp_path: Path) -> None:
    data = b'{"t": 1136214245.5, "l": "warning", "n": [1, {"a": 2}]}\nno \xff json\x00\n'
    stamp = {"parse_from": "attributes.t", "layout_type": "epoch", "layout": "s.ms"}
    parser = {"type": "json_parser", "timestamp": stamp, "severity": {"parse_from": "attributes.l"}}
    found = forwarded(service, tmp_path, data, 2, operators=[parser])
    first, second = found
    assert (first["ts"], first["level"]) == ("2006-01-02T15:04:05.500000Z", "WARN")
    assert first["attributes"] == {"t": "1136214245.5", "l": "warning", "n": '[1,{"a":2}]'}
    assert second["message"] == "no \ufffd json\x00"


def test_attributes_are_stored_letter_by_letter(service: ServiceProcess, tmp_path: Path) -> None:
    """Those of all lines, which go beside the text, and those of a record, which go as ndjson."""
    names = ["a b", 'q"\\', "ü/🚀", "dotted.name", "e"]
    values = ['"quoted" \\ and \\n', "tab\tline\nend\r", "\u2028 \x7f \x00 é 🚀", "{}", ""]
    shared = {name: f"{value}." for name, value in zip(names, values, strict=True)}
    own = {f"own {name}": value for name, value in zip(names, values, strict=True)}
    lines = [json.dumps(own), json.dumps({**own, "own e": "x" * 8000}), "no json"]
    data = "".join(f"{line}\n" for line in lines).encode()
    text, ndjson = tmp_path / "text", tmp_path / "ndjson"
    found = forwarded(service, text, data, 3, attributes=shared)
    assert [(r["message"], r["attributes"]) for r in found] == [(line, shared) for line in lines]
    parser = {"type": "json_parser"}
    found = forwarded(service, ndjson, data, 3, attributes=shared, operators=[parser])
    assert [r["message"] for r in found] == lines
    assert [r["attributes"] for r in found] == [
        {**shared, **own},
        {**shared, **own, "own e": "x" * 8000},
        shared,
    ]


def test_long_entries_and_an_unfinished_one(service: ServiceProcess, tmp_path: Path) -> None:
    data = b"x" * 2500 + b"\n\n  half"
    found = forwarded(service, tmp_path, data, 5, max_log_size=1000, unfinished_wait="100ms")
    assert [len(r["message"]) for r in found] == [1000, 1000, 500, 0, 4]
    parts = [(r.get("attributes") or {}).get("log.record.part") for r in found]
    assert parts == [None, "2", "3", None, None]
