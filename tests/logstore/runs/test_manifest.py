"""Manifests, marks and deletions: round trips, newer formats, races and lost answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import orjson
import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import (
    Deletion,
    decode_deletion,
    deletion_at,
    encode_deletion,
    names_in,
)
from tailrace.logstore.runs.manifest import (
    Chunk,
    Manifest,
    Manifests,
    Partial,
    PendingSeal,
    decode_manifest,
    encode_manifest,
)
from tailrace.logstore.runs.report import raise_watermark, read_watermark
from tailrace.logstore.state import decode_checked, encode_checked
from tests.edited import edited
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem

RUN = RunKey("pipeline", "r/u n")
CHUNK = Chunk("01C", "chunk", 10, 2, 2, 1 << 100, 2 << 100, 1, 50, 30, {"n": (3, 5)})
FULL = Manifest(
    RUN,
    state="closing",
    generation=5 << 90,
    epoch=2,
    owner="n",
    chunks=(replace(CHUNK, kind="logs", etag="e"), CHUNK),
    writers={"n": 5},
    closes={"n": 5},
    partial=Partial(10, 2, 7),
    closing=PendingSeal("put", 20, ("a", "b")),
    first_ms=1,
    last_ms=2,
    flushed_ms=3,
    abandoned=True,
    version="v",
    others={"later": [1]},
)


def make_store() -> ObjectStore:
    return open_store(PowerCutFileSystem(), SystemClock(), Random(1))


def test_round_trip_keeps_what_it_does_not_know() -> None:
    assert decode_manifest(encode_manifest(FULL)) == FULL
    assert orjson.loads(encode_manifest(FULL))["later"] == [1]


def test_a_newer_format_is_not_guessed_at() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_manifest(edited(encode_manifest(FULL), format=4))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"format":1}', b"\xff"])
def test_other_bytes_are_damage(body: bytes) -> None:
    with pytest.raises(Damaged):
        decode_manifest(body)


def test_settled_is_what_came_before_the_close() -> None:
    assert FULL.settled()
    assert not replace(FULL, closes={"n": 4}).settled()
    assert not replace(FULL, closes={}).settled()


def test_an_older_version_cannot_close_what_somebody_still_asks_about() -> None:
    """It keeps the key that it does not know, and writes the state that its own node knows."""
    asking = replace(FULL, closing=None, asking=("m", "n"))
    assert asking.state_of_close() == "closing"
    value = orjson.loads(encode_manifest(asking))
    assert value["asking"] == ["m", "n"]
    read = decode_manifest(edited(encode_manifest(asking), state="closed"))
    assert read == asking
    assert replace(read, asking=(), chunks=()).state_of_close() == "closed"
    assert "asking" not in orjson.loads(encode_manifest(FULL))


def test_a_deletion_empties_and_keeps_positions() -> None:
    gone = FULL.deleted_through(2 << 100)
    assert (gone.state, gone.chunks, gone.writers) == ("deleted", (), {"n": 5})
    assert gone.deleted_through(1) is gone


def test_a_deletion_keeps_chunks_that_were_written_for_later_lines() -> None:
    later = replace(CHUNK, id="02C", first=3 << 100, last=4 << 100)
    both = replace(FULL, chunks=(*FULL.chunks, later))
    kept = both.deleted_through(2 << 100)
    assert (kept.state, kept.chunks, kept.closes) == ("open", (later,), FULL.closes)
    assert (kept.closing, kept.partial, kept.generation) == (None, None, 2 << 100)
    assert (kept.first_ms, kept.last_ms) == (3 << 20, 4 << 20)
    only = replace(FULL, state="closed", closing=None, chunks=(later,))
    assert only.deleted_through(2 << 100) == replace(only, generation=2 << 100)


def test_a_chunk_straddles_a_deletion_that_takes_some_of_its_lines() -> None:
    assert FULL.straddling((1 << 100) - 1) == ()
    assert FULL.straddling(1 << 100) == FULL.chunks
    assert FULL.straddling((2 << 100) - 1) == FULL.chunks
    assert FULL.straddling(2 << 100) == ()


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("fault", [None, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
async def test_racing_updates_are_all_kept(fault: Fault | None) -> None:
    clock, random = SystemClock(), Random(2)
    faults = {} if fault is None else {4: fault, 9: fault}
    schedule = Schedule(faults, applies=lambda call: call.startswith("put"))
    store = FaultyStore(make_store(), schedule)
    manifests = Manifests(store, clock, random)

    async def add(name: str) -> None:
        def change(manifest: Manifest) -> Manifest | None:
            if name in manifest.writers:
                return None
            return replace(manifest, writers={**manifest.writers, name: 1})

        await manifests.update(RUN, change)

    await asyncio.gather(*[add(f"node {n}") for n in range(8)])
    assert len((await manifests.get(RUN)).manifest.writers) == 8


@pytest.mark.usefixtures("every_store")
async def test_every_write_has_its_own_version() -> None:
    manifests = Manifests(make_store(), SystemClock(), Random(3))
    first = await manifests.swap(await manifests.get(RUN), Manifest(RUN))
    second = await manifests.swap(first, Manifest(RUN))
    assert first.etag != second.etag


@pytest.mark.usefixtures("every_store")
async def test_watermarks_only_rise() -> None:
    store = make_store()
    fresh = iter("abcdef").__next__
    assert (await read_watermark(store, "n")).seq == 0
    await raise_watermark(store, "n", fresh_id=fresh, seq=5, pos=50)
    await raise_watermark(store, "n", fresh_id=fresh, seq=4, pos=40, low=2)
    mark = await read_watermark(store, "n")
    assert (mark.seq, mark.pos, mark.low) == (5, 50, 2)


@pytest.mark.parametrize("fqn", ["f", "a.b c/ä", ".f", "~", "a~b", "%", "x" * 300])
@pytest.mark.parametrize("run", ["r", ".pipeline", "r~" + "0" * 26, "/", "é" * 90, None])
def test_a_key_says_what_its_record_says_or_nothing(fqn: str, run: str | None) -> None:
    deletion = Deletion(fqn, run, 7 << 100)
    said = deletion_at(deletion.key)
    cut = len(fqn) > 200 or len(run or "") >= 90
    assert said == (None if run is None or cut else deletion)


@pytest.mark.parametrize(
    "name",
    [
        *("f/r", "f/r~", "f/r~1", "f/~" + "0" * 26, "r~" + "0" * 26, "f/r~" + "Z" * 26, "f/r/s~0"),
        "f/" + "r" * 159 + "~" + "0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_a_key_of_another_kind_says_nothing(name: str) -> None:
    """The record is read: those of earlier versions are at the run's name alone."""
    assert deletion_at(keys.DELETED + name) is None


def test_deletions_round_trip() -> None:
    for deletion in (Deletion("f", "r", 1 << 99, "v"), Deletion("f", None, 1, "v")):
        assert decode_deletion(encode_deletion(deletion)) == deletion
        assert deletion.key.startswith(keys.DELETED)
    later = Deletion("f", "r", 2 << 99, "v")
    assert later.key > Deletion("f", "r", 1 << 99, "v").key
    with pytest.raises(Damaged):
        decode_deletion(b"{}")


@pytest.mark.parametrize(
    "run", ["r", "a/b", "~", "r~01ARZ3NDEKTSV4RRFFQ69G5FAV", "ü" * 60, "r" * 201, "x" * 400]
)
def test_a_key_says_whose_lines_a_deletion_takes_at_most(run: str) -> None:
    """A name that is cut is never taken for another one: then it is the pipeline's."""
    deletion = Deletion("a.b", run, 7 << 80)
    fqn, named = names_in(deletion.key)
    assert fqn == "a.b"
    assert named in (run, None)
    assert named == run or len(encode(run)) > 160
    assert names_in(keys.deleted_pipeline("a.b")) == ("a.b", None)
    assert names_in(keys.deleted_pipeline("a" * 300)) == (None, None)


def test_a_deletion_of_a_newer_format_is_none_of_ours() -> None:
    body = encode_checked(decode_checked(encode_deletion(Deletion("a", None, 7))) | {"format": 2})
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_deletion(body)
