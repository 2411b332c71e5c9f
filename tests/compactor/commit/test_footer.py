"""The footer of a file in a store, by its last bytes: a small one, and one that is longer."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.commit.footer import fetch_tail, opened
from logstore.errors import Damaged, PreconditionFailed
from tests.compactor.lake import Lake


def parquet(groups: int) -> bytes:
    """A file with so many row groups, about 200 bytes each in its footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": range(groups)}), sink, row_group_size=1)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("groups", [1, 2_000])
def test_a_footer_is_that_of_the_whole_file(lake: Lake, groups: int) -> None:
    body = parquet(groups)
    lake.put_bytes("x/file", body)
    tail = lake.run(fetch_tail(lake.store, "x/file", len(body)))
    assert opened(tail, "x/file").metadata.equals(pq.read_metadata(pa.BufferReader(body)))


def test_a_file_that_is_shorter_than_it_should_be_is_damaged(lake: Lake) -> None:
    body = parquet(2_000)
    assert int.from_bytes(body[-8:-4], "little") > 64 << 10
    lake.put_bytes("x/cut", body[: len(body) // 2] + body[-8:])
    with pytest.raises(Damaged):
        lake.run(fetch_tail(lake.store, "x/cut", len(body)))


def test_it_is_of_the_version_that_was_seen(lake: Lake) -> None:
    body = parquet(1)
    lake.put_bytes("x/file", body)
    etag = lake.run(lake.store.head("x/file")).etag
    lake.run(fetch_tail(lake.store, "x/file", len(body), if_match=etag))
    lake.put_bytes("x/file", parquet(2))
    with pytest.raises(PreconditionFailed):
        lake.run(fetch_tail(lake.store, "x/file", len(body), if_match=etag))
