"""Records that wait, against a plain list of what was given."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from service.query.live_cursor import (
    PIECE_BYTES,
    MatchedRecords,
    Overflowed,
    Reorder,
    StreamCursor,
    behind_all,
)
from service.query.request import RecordKey
from tailrace.logstore import ulid
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tests.seeds import seeds, some

NODE = "node-01"
Row = tuple[str, str, str, int]


def table(rows: list[Row]) -> pa.Table:
    names = ("ulid", "fqn", "run_id", "pos")
    values = [{**dict(zip(names, row, strict=True)), "message": "line"} for row in rows]
    return pa.Table.from_pylist(values, RECORD_SCHEMA)


def keys_of(pieces: list[MatchedRecords]) -> list[RecordKey]:
    return [
        RecordKey(row["ulid"], row["fqn"], row["run_id"])
        for piece in pieces
        for row in piece.batch.to_pylist()
    ]


def said(arrived: dict[RecordKey, int], cursor: StreamCursor) -> set[RecordKey]:
    """What was given, as the cursor says."""
    return {k for k, p in arrived.items() if p < cursor.seen[NODE] and k <= cursor.last}


@pytest.mark.parametrize("seed", some(seeds(20), 4, "reorder"))
def test_cursors_say_what_was_given(seed: int) -> None:
    dice = random.Random(seed)
    reorder = Reorder(StreamCursor({NODE: 0}, behind_all(1000)), 1 << 20)
    arrived: dict[RecordKey, int] = {}
    given: list[RecordKey] = []
    pos, clock = 0, 1000
    for _ in range(60):
        rows: list[Row] = []
        for _ in range(dice.randrange(6)):
            at = max(clock + dice.randrange(-400, 400), 1)
            key = RecordKey(ulid.encode(at), f"p{dice.randrange(2)}", f"r{dice.randrange(2)}")
            if key not in arrived:
                rows.append((*key, pos))
                arrived[key] = pos
                pos += 1
        last = reorder.cursor.last
        late = reorder.add(NODE, table(rows), pos)
        assert [arrived[key] for key in keys_of(late)] == sorted(
            arrived[RecordKey(*row[:3])] for row in rows if RecordKey(*row[:3]) <= last
        )
        clock += dice.randrange(150)
        due = reorder.release(clock)
        assert keys_of(due) == sorted(keys_of(due))
        for piece in [*late, *due]:
            assert set(given) == said(arrived, piece.before)
            given += keys_of([piece])
            assert set(given) == said(arrived, piece.after)
        assert set(given) == said(arrived, reorder.cursor)
    assert len(given) == len(set(given))
    assert len(given) > 50


def test_a_record_that_waits_twice_is_given_once() -> None:
    reorder = Reorder(StreamCursor({NODE: 0}, behind_all(10)), 1 << 20)
    twice = [(ulid.encode(20), "p", "r", 0), (ulid.encode(20), "p", "other", 1)]
    reorder.wait(table(twice))
    assert reorder.add(NODE, table(twice), 2) == []
    assert len(keys_of(reorder.release(20))) == 2


def test_what_was_let_go_is_to_be_read_from_storage() -> None:
    reorder = Reorder(StreamCursor({NODE: 0}, behind_all(10)), 4_000)
    rows: list[Row] = [(ulid.encode(100 + n), "p", "r", n) for n in range(400)]
    reorder.add(NODE, table(rows), 400)
    kept = keys_of(reorder.release(110))
    assert kept == [RecordKey(ulid.encode(100 + n), "p", "r") for n in range(11)]
    with pytest.raises(Overflowed):
        reorder.release(499)
    assert reorder.cursor == StreamCursor({NODE: 400}, behind_all(499))


def test_long_records_make_small_pieces() -> None:
    rows = table([(ulid.encode(100 + n), "p", "r", n) for n in range(64)])
    at = rows.schema.get_field_index("message")
    long = rows.set_column(at, RECORD_SCHEMA.field("message"), pa.array(["x" * PIECE_BYTES] * 64))
    reorder = Reorder(StreamCursor({NODE: 0}, behind_all(10)), 1 << 30)
    reorder.add(NODE, long, 64)
    found = reorder.release(500)
    assert [piece.batch.num_rows for piece in found] == [1] * 64
    assert found[-1].after == reorder.cursor
