"""Messages decoded side by side are read as a parser reads them, and so are their faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from service.doors import loki, otlp
from service.doors.door import Door
from service.doors.loki import LokiDoor
from service.doors.otlp import OtlpDoor
from service.doors.records import RunRule
from service.doors.settings import DoorSettings
from service.doors.wire import BYTES, FIXED64, VARINT, decode_columns
from service.http.body import Bounds
from tailrace.logstore.errors import TailraceError
from tests.seeds import seeds
from tests.service.doors.decoding import NOW, door_request
from tests.service.doors.test_loki import as_json, as_protobuf

_NANOSECONDS: Final = 1_700_000_000_000_000_000
_TEXTS: Final = ("", "one", "Straße 🎉", "a\nb\n", "x" * 300, "\N{NO-BREAK SPACE}")


def _time(dice: random.Random) -> int:
    times = (0, _NANOSECONDS, _NANOSECONDS + 1, _NANOSECONDS + 86_400 * 10**9, 1 << 63, 999)
    return dice.choice(times) if dice.random() < 0.2 else _NANOSECONDS + dice.randrange(1 << 40)


def _otlp(dice: random.Random) -> bytes:
    """A request in which most records are alike, and a few are anything."""
    request = ExportLogsServiceRequest()
    odd = dice.random() < 0.5
    for _ in range(dice.randrange(1, 3)):
        outer = request.resource_logs.add()
        for name in dice.sample(("service.name", "host", "time_unix_nano", "a"), 2):
            outer.resource.attributes.add(key=name).value.string_value = dice.choice(_TEXTS)
        group = outer.scope_logs.add()
        group.scope.name = dice.choice(_TEXTS)
        for _ in range(dice.randrange(0, 40)):
            record = group.log_records.add(
                time_unix_nano=_time(dice) if odd else _NANOSECONDS + 5,
                severity_number=dice.choice((0, 1, 9, 10, 24, -1 if odd else 0)),
                severity_text=dice.choice(("", "INFO", "warn", "Ünknown")),
            )
            record.body.string_value = dice.choice(_TEXTS)
            if dice.random() < 0.5:
                record.observed_time_unix_nano = _time(dice) or 1
                record.trace_id, record.span_id = dice.randbytes(16), dice.randbytes(8)
                record.flags, record.dropped_attributes_count = dice.choice(((1, 0), (0, 7)))
            for name in dice.sample(("a", "b", "tailrace.run.id", "host"), dice.randrange(0, 3)):
                value = record.attributes.add(key=name).value
                value.string_value = dice.choice(_TEXTS)
                if odd and dice.random() < 0.2:
                    value.kvlist_value.values.add(key="c").value.int_value = 7
            if odd and dice.random() < 0.05:
                record.body.double_value = 1.5
    return bytes(request.SerializeToString())


def _loki_streams(dice: random.Random) -> list[Any]:
    odd = dice.random() < 0.5
    return [
        (
            {name: dice.choice(_TEXTS) for name in dice.sample(("job", "level", "a"), number)},
            [
                (
                    abs(_time(dice)) % (1 << 62) if odd else _NANOSECONDS + number,
                    dice.choice(_TEXTS),
                    {"trace": "x"} if odd and dice.random() < 0.1 else {},
                )
                for number in range(dice.randrange(0, 30))
            ],
        )
        for number in range(dice.randrange(1, 3))
    ]


Made = Callable[[random.Random], bytes]
CASES: Final[dict[str, tuple[Door, str, str, Made]]] = {
    "otlp": (OtlpDoor(RunRule(DoorSettings())), "/v1/logs", "application/x-protobuf", _otlp),
    "loki": (
        LokiDoor(RunRule(DoorSettings())),
        "/loki/api/v1/push",
        "application/x-protobuf",
        lambda dice: _unpacked(as_protobuf(*_loki_streams(dice))),
    ),
    "loki, JSON": (
        LokiDoor(RunRule(DoorSettings())),
        "/loki/api/v1/push",
        "application/json",
        lambda dice: as_json(*_loki_streams(dice)),
    ),
}


def _unpacked(body: bytes) -> bytes:
    from cramjam import snappy

    return bytes(snappy.decompress_raw(body))


def _read(case: str, body: bytes) -> tuple[Any, ...]:
    """All that a door finds in a body, or the kind of its error."""
    door, path, kind, _ = CASES[case]
    try:
        found = door.decode(door_request(path, body, {"content-type": kind}), Bounds(64 << 20), NOW)
    except TailraceError as error:
        return type(error), str(error)
    runs = [
        (run.key, run.text, run.meta, run.lines, [*run.places], run.timed) for run in found.runs
    ]
    refused = [(str(each.error), [*each.places]) for each in found.refused]
    return sorted(runs), sorted(refused), found.count, found.replaced


def _broken(dice: random.Random, body: bytes) -> bytes:
    """The body with one fault: a byte that changed, was lost or was added, or a cut."""
    if not body:
        return b"\x0a"
    at = dice.randrange(len(body))
    return dice.choice(
        (
            body[:at] + bytes((dice.randrange(256),)) + body[at + 1 :],
            body[:at] + body[at + 1 :],
            body[:at] + b"\x12\x00" + body[at:],
            body[:at],
        )
    )


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("case", CASES)
def test_columns_are_read_as_a_parser_reads_them(
    case: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    bodies = [CASES[case][3](dice) for _ in range(30)]
    bodies += [_broken(dice, dice.choice(bodies)) for _ in range(200)]
    quick = [_read(case, body) for body in bodies]
    for module in (otlp, loki):
        monkeypatch.setattr(module, "_read_columns", lambda *_: False)
    monkeypatch.setattr(loki, "_read_plain", lambda *_: False)
    for body, found in zip(bodies, quick, strict=True):
        assert found == _read(case, body)


def test_most_records_are_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the parser's objects, which take ten times as long."""

    def refused(*_: object) -> None:
        raise AssertionError("a record was parsed alone")

    monkeypatch.setattr(otlp, "_read_record", refused)
    monkeypatch.setattr(loki, "_read_entry", refused)
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add().scope_logs.add()
    for number in range(5000):
        record = group.log_records.add(
            time_unix_nano=_NANOSECONDS + number,
            observed_time_unix_nano=_NANOSECONDS + 3 * number,
            severity_number=9,
            trace_id=bytes(range(16)),
        )
        record.body.string_value = f"line {number}"
        record.attributes.add(key="n").value.string_value = str(number)
    runs, _, count, _ = _read("otlp", bytes(request.SerializeToString()))
    assert (len(runs), count) == (1, 5000)
    body = _unpacked(
        as_protobuf(({"job": "a"}, [(_NANOSECONDS + n, f"line {n}", {}) for n in range(5000)]))
    )
    runs, _, count, _ = _read("loki", body)
    assert (len(runs), count) == (1, 5000)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",  # no size
        b"\x0a\x05abc",  # longer than the message
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fa",  # longer than anything
        b"\x0b",  # a group
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a negative number
        b"\x02\x00",  # no number
        b"\x82\x01\x00",  # a number of two bytes
        b"\x11\xff\xff\xff\xff\xff\xff\xff\xff",  # 2**64 - 1
        b"\x11\x01\x02",  # cut
        b"\x0a\x01a\x0a\x01b",  # twice
        b"\x10\x01",  # another type
        b"\x18\x01" * 100,  # many fields
    ],
)
def test_other_messages_are_left_to_a_parser(body: bytes) -> None:
    whole = b"\x0a\x03abc\x11" + bytes(8)
    data = whole + body + whole
    starts = [0, len(whole), len(whole) + len(body)]
    kinds = {1: BYTES, 2: FIXED64, 3: VARINT}
    assert decode_columns(data, starts[:1], starts[1:2], kinds) is not None
    assert decode_columns(data, starts, [*starts[1:], len(data)], kinds) is None
