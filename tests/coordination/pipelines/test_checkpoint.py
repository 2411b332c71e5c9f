"""The text of a checkpoint: no flipped bit of it is believed."""

from __future__ import annotations

from tailrace.coordination.pipelines import Checkpoint, EventKey, Reading, decode, encode
from tailrace.logstore.errors import Damaged

WHOLE = Checkpoint(
    {"a": Reading(12, 4711, 1_764_000_000_000), "b": Reading(1, 1)},
    EventKey(1_764_000_000_000_000, "01JD" + "0" * 22, "sales.load", "r1"),
    {"undo": 17, "rolled": ["all.000001.log"]},
    counts={"events": 2400},
    saved_ms=1_764_000_000_123,
)
TEXT = encode(WHOLE).encode()


def test_it_comes_back() -> None:
    assert decode(TEXT.decode()) == WHOLE


def test_a_flipped_bit_is_damage_or_changes_nothing() -> None:
    for bit in range(8 * len(TEXT)):
        body = bytearray(TEXT)
        body[bit // 8] ^= 1 << bit % 8
        try:
            found = decode(body.decode("utf-8", "surrogateescape"))
        except Damaged:
            continue
        assert found == WHOLE, bytes(body)
