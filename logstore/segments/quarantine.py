"""Quarantined segments: their bytes are damaged, and every reader treats them as empty.

    segments/.aside/{node}/{seq}           JSON with `reason` and the ULID `version`
    segments/.aside/{node}/{seq}.given-up  its lines were given up: JSON with `at` and `version`

The segment stays at its key. Its lines are **left out** until somebody decides: an intact copy at
the key and `tailrace verify --repair` bring them back, `tailrace verify --give-up` gives them up.
Until then every pass of the compactor has an alarm, and no search is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from logstore import keys
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, InvalidInput, NotFound, PreconditionFailed
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.swap import write_until_known


class QuarantinedSegment(NamedTuple):
    """A segment with a quarantine marker."""

    node: str
    seq: int
    given_up: bool


def encode_marker(reason: str, version: str) -> bytes:
    """The bytes of a quarantine marker."""
    return encode_checked({"reason": reason, "version": version})


def decode_marker(body: bytes) -> str:
    """The reason that a quarantine marker holds. Raises `Damaged`."""
    try:
        return str(decode_checked(body)["reason"])
    except (ValueError, KeyError) as error:
        raise Damaged(f"not a quarantine marker: {error}") from error


def encode_give_up(at: str, version: str) -> bytes:
    """The bytes of a marker that gives up a segment's lines."""
    return encode_checked({"at": at, "version": version})


def decode_give_up(body: bytes) -> str:
    """When a segment's lines were given up, in RFC 3339. Raises `Damaged`."""
    try:
        return str(decode_checked(body)["at"])
    except (ValueError, KeyError) as error:
        raise Damaged(f"not a marker of a segment that was given up: {error}") from error


async def quarantined_segments(store: ObjectStore) -> dict[str, set[int]]:
    """The numbers of quarantined segments by node. Raises `StoreUnavailable`."""
    found: dict[str, set[int]] = {}
    for one in await list_quarantined(store):
        found.setdefault(one.node, set()).add(one.seq)
    return found


async def list_quarantined(store: ObjectStore) -> list[QuarantinedSegment]:
    """All quarantined segments, by node and number. Raises `StoreUnavailable`."""
    listed = {info.key async for info in store.list(keys.QUARANTINE)}
    left_out = set(left_out_markers(listed))
    found = []
    for key in sorted(listed):
        component, _, seq = key.removeprefix(keys.QUARANTINE).partition("/")
        node = decode(component)
        if node is not None and seq.isdecimal():
            found.append(QuarantinedSegment(node, int(seq), key not in left_out))
    return found


def left_out_markers(listed: Iterable[str]) -> list[str]:
    """Of all keys below `segments/.aside/`, the markers of segments that nobody gave up."""
    there = set(listed)
    return sorted(
        key
        for key in there
        if not key.endswith(keys.GIVEN_UP_SUFFIX) and f"{key}{keys.GIVEN_UP_SUFFIX}" not in there
    )


async def read_reason(store: ObjectStore, node: str, seq: int) -> str:
    """Why the segment is quarantined. Raises `StoreUnavailable`."""
    try:
        body = (await store.get(keys.quarantine_marker(node, seq)))[1]
    except NotFound:
        return "the marker is gone"
    try:
        return decode_marker(body)
    except Damaged:
        return "the marker does not say why"


async def quarantine(store: ObjectStore, node: str, seq: int, *, reason: str, version: str) -> None:
    """Marks the segment; an older marker keeps its reason.

    Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    await _put_once(store, keys.quarantine_marker(node, seq), encode_marker(reason, version))


async def check_quarantined(store: ObjectStore, key: str) -> tuple[str, int]:
    """Node and number of the quarantined segment at `key`.

    Raises `InvalidInput` if it is none, `StoreUnavailable`.
    """
    segment = keys.parse_segment(key)
    if segment is None:
        raise InvalidInput(
            f"{key} is not the key of a segment",
            hint="Name it as the alarm does: segments/NODE/NUMBER.parquet.",
        )
    try:
        await store.head(keys.quarantine_marker(*segment))
    except NotFound as error:
        raise InvalidInput(
            f"{key} is not quarantined", hint="Run `tailrace verify`: it lists what is damaged."
        ) from error
    return segment


async def give_up(store: ObjectStore, key: str, *, at: str, version: str) -> None:
    """Gives up the lines of the quarantined segment at `key`; `at` is the time in RFC 3339.

    Raises as `check_quarantined`, and `OutcomeUnknown`.
    """
    node, seq = await check_quarantined(store, key)
    await _put_once(store, keys.give_up_marker(node, seq), encode_give_up(at, version))


async def release(store: ObjectStore, segments: Iterable[tuple[str, int]]) -> None:
    """Removes the markers of segments. Raises `StoreUnavailable`."""
    markers = [
        key(node, seq)
        for node, seq in segments
        for key in (keys.give_up_marker, keys.quarantine_marker)  # the one that says less first
    ]
    if markers:
        await store.delete(markers)


async def _put_once(store: ObjectStore, key: str, body: bytes) -> None:
    with suppress(PreconditionFailed):  # there is one: an older one, or ours after a lost answer
        await write_until_known(lambda: store.put(key, body, if_absent=True))
