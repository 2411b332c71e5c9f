"""Copies among sorted records, in tables of one piece and of many, and in batches."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.logstore.segments.file_format import KEY_COLUMNS, distinct, keys_of, repeats

KEYS = st.lists(st.tuples(*[st.sampled_from("ab")] * 3), max_size=12)


def records(keys: list[tuple[str, str, str]]) -> pa.Table:
    columns = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
    pairs = zip(KEY_COLUMNS, columns, strict=True)
    found = {name: pa.array(values, pa.string()) for name, values in pairs}
    found["fqn"] = found["fqn"].dictionary_encode()
    return pa.table({**found, "row": pa.array(range(len(keys)))})


@given(KEYS, st.integers(1, 5))
def test_the_first_of_each_key_stays(keys: list[tuple[str, str, str]], rows: int) -> None:
    whole = records(sorted(keys))
    pieces = pa.Table.from_batches(whole.to_batches(max_chunksize=rows), whole.schema)
    for table in (whole, pieces):
        found = distinct(table)
        assert keys_of(found) == sorted(set(keys))
        assert found["row"].to_pylist() == [sorted(keys).index(key) for key in sorted(set(keys))]
        assert len(repeats(table)) == table.num_rows


def test_a_batch_stays_a_batch_and_what_repeats_nothing_is_itself() -> None:
    batch = records([("a", "a", "a"), ("a", "a", "a")]).to_batches()[0]
    assert isinstance(distinct(batch), pa.RecordBatch)
    assert distinct(batch).num_rows == 1
    alone = records([("a", "a", "a"), ("a", "a", "b")])
    assert distinct(alone) is alone
