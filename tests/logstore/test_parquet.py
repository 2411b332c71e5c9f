"""The footer of a file in a store, by its last bytes: a small one, and one that is longer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import Damaged, PreconditionFailed
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.parquet import fetch_tail, opened


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path), Disk(), SystemClock(), system_entropy())


def parquet(groups: int) -> bytes:
    """A file with so many row groups, about 200 bytes each in its footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": range(groups)}), sink, row_group_size=1)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("groups", [1, 2_000])
async def test_a_footer_is_that_of_the_whole_file(store: LocalStore, groups: int) -> None:
    body = parquet(groups)
    await store.put("x/file", body)
    tail = await fetch_tail(store, "x/file", len(body))
    assert opened(tail, "x/file").metadata.equals(pq.read_metadata(pa.BufferReader(body)))


async def test_a_file_that_is_shorter_than_it_should_be_is_damaged(store: LocalStore) -> None:
    body = parquet(2_000)
    assert int.from_bytes(body[-8:-4], "little") > 64 << 10
    await store.put("x/cut", body[: len(body) // 2] + body[-8:])
    with pytest.raises(Damaged):
        await fetch_tail(store, "x/cut", len(body))


async def test_it_is_of_the_version_that_was_seen(store: LocalStore) -> None:
    body = parquet(1)
    await store.put("x/file", body)
    etag = (await store.head("x/file")).etag
    await fetch_tail(store, "x/file", len(body), if_match=etag)
    await store.put("x/file", parquet(2))
    with pytest.raises(PreconditionFailed):
        await fetch_tail(store, "x/file", len(body), if_match=etag)
