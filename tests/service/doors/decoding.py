"""Records as a door decodes them, and as a node got them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.doors.door import Door, DoorRequest
from service.http.body import Bounds
from service.journal.format import decode_meta
from tailrace.logstore.batch import RunKey
from tests.service.http.conftest import Served

NOW = 1_800_000_000_000_000
"""2027-01-15, in microseconds."""

Found = dict[RunKey, list[dict[str, Any]]]


def door_request(path: str, body: bytes, headers: Mapping[str, str]) -> DoorRequest:
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    return DoorRequest("POST", path, {}, encoded.get, body)


def decoded(door: Door, path: str, body: bytes, **headers: str) -> Found:
    """The records of a request, by run."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = door_request(path, body, named)
    inflate, bounds = door.inflater(request), Bounds(64 << 20)
    if inflate is not None:
        request.body = inflate(body, bounds, "body")
    records = door.decode(request, bounds, NOW)
    assert records.refused == []
    return records_of((run.key, run.text, run.meta) for run in records.runs)


def only(found: Found) -> dict[str, Any]:
    """The only record."""
    [[record]] = found.values()
    return record


def stored(served: Served) -> Found:
    """The records of each run, as the node got them."""
    return records_of((batch.key, batch.text, batch.meta) for batch in served.node.batches)


def records_of(batches: Iterable[tuple[RunKey, bytes, bytes]]) -> Found:
    """The records of batches, each of which is key, text and metadata."""
    found: Found = {}
    for key, text, encoded in batches:
        meta, start = decode_meta(encoded), 0
        for number, end in enumerate(meta.ends):
            found.setdefault(key, []).append(
                {
                    "text": text[start:end].decode(),
                    "ts": meta.ts[number],
                    "level": meta.levels[number],
                    "attributes": meta.attributes[number] or {},
                }
            )
            start = end
        assert start == len(text)
    return found
