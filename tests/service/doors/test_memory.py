"""Requests that make much of little: a door's memory follows their bytes, whatever their parts."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Final

import pytest

from service.doors.repeats import Repeats
from service.doors.routes import open_doors
from service.doors.settings import DoorSettings
from service.http.body import Bounds
from service.ingest.batch import AppendReceipt, IncomingBatch
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput, TooLarge
from tests.fuzz.hostile import MIB, door_bodies
from tests.service.doors.decoding import NOW, door_request

_MOST: Final = 3 * MIB
"""Of bodies up to 40 KB; lists of their parts would take more."""


async def _stored(batch: IncomingBatch) -> AppendReceipt:
    return AppendReceipt(1, batch.records, False, "durable", 1)


async def _unknown(batch: IncomingBatch, since_ms: int) -> None:
    return None


def _repeats() -> Repeats:
    return Repeats(_stored, _unknown, SystemClock(), DoorSettings())


@pytest.mark.parametrize(("name", "times"), [("records", 4), ("wide records", 4), ("lines", 8)])
def test_a_request_takes_memory_in_proportion_to_its_bytes(name: str, times: int) -> None:
    path, kind, body = door_bodies(times)[name]
    doors = open_doors(DoorSettings(), _repeats())
    [door] = [door for door in doors if door.path_of("POST", path)]
    request = door_request(path, body, {"content-type": kind.decode()})
    with suppress(InvalidInput):  # the parsers are loaded
        door.decode(door_request(path, b"", {"content-type": kind.decode()}), Bounds(MIB), NOW)
    tracemalloc.start()
    try:
        with suppress(TooLarge, InvalidInput):
            door.decode(request, Bounds(64 * MIB, MIB), NOW)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < _MOST


async def test_what_is_remembered_of_a_batch_does_not_grow_with_its_names() -> None:
    """Names of 255 characters of 4 bytes would be 2 KB of each of the remembered batches."""
    repeats, long = _repeats(), "\N{PILE OF POO}" * 255
    tracemalloc.start()
    try:
        for n in range(500):
            batch = IncomingBatch(RunKey(f"{n}{long}", f"{long}{n}"), b"a\n", 1, 1)
            await repeats.append(batch, timed=True)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500 * 1500
