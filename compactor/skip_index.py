"""Makes the skip indexes of table files (`tailrace.logstore.table.skip_index`), after the commits.

Each pass makes the missing indexes of files in the newest version, the newest hour first. So a file
gets one like a new file does, even if an older release or a killed driver wrote it without one, or
somebody removed its index. An index of an earlier version stays until its file has one of this
version, since nodes of that version use it. Waiting segments go first: if some wait, the rest is
left to the next pass, and so are files beyond 1 GiB.

The driver's machine makes them from the stored files. Executors have no Python, and a merge does
not wait for an index, which costs a quarter of its processor time (decision 083). Files below
`compaction.index_min_bytes` have none: reading all of such a file costs no more than its index.

Two drivers that make the same index write the same bytes. An index is removed with its file
(`cleanup.py`), or by this module if its file was removed in another way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.context import Compactor, Hurry, never
from compactor.report import PassReport
from compactor.rewrite import describe, lost_files
from tailrace.logstore import keys
from tailrace.logstore.colours import as_seen, is_coloured
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.parquet import SparseFile, byte_range, chunks_of, fetch_tail, opened
from tailrace.logstore.segments.file_format import CARRIED
from tailrace.logstore.table.line_map import MAPPED, Read, map_of
from tailrace.logstore.table.skip_index import Builder
from tailrace.logstore.table.snapshot import TableFile

log = logging.getLogger("tailrace.compactor")
PASS_BYTES: Final = 1 << 30
"""Bytes of files that one pass indexes, else an upgrade keeps one pass busy with all of them."""
_FETCHED_BYTES: Final = 32 << 20  # of row groups, in a request
_MESSAGE: Final = "message"
_ATTRIBUTES: Final = "attributes"
_READ: Final = [*MAPPED, _ATTRIBUTES, CARRIED]


async def index_files(
    compactor: Compactor,
    report: PassReport,
    hurry: Hurry = never,
    *,
    pass_bytes: int = PASS_BYTES,
) -> None:
    """Makes the skip indexes that are missing, and removes those without a file.

    After each file it calls `hurry`; if that returns True, or files of `pass_bytes` together are
    indexed, the rest is left to the next pass.
    Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    with report.timed("index", compactor.clock):
        files = {keys.skip_index(file.path): file for file in (await compactor.newest()).files}
        there = {info.key async for info in compactor.store.list(keys.SKIP_INDEXES)}
        waiting = {keys.indexed_file(key) for key in files.keys() - there}
        lone = {key for key in there - files.keys() if keys.indexed_file(key) not in waiting}
        await _remove_lone(compactor.store, lone, {keys.indexed_file(key) for key in files})
        wanted = _wanted(compactor, {key: files[key] for key in files.keys() - there})
        left, size = len(wanted), 0
        for key, file in wanted:
            await _index(compactor, report, key, file)
            left, size = left - 1, size + file.size
            if left and (size >= pass_bytes or await hurry()):
                log.info("%d skip indexes are left for the next pass", left)
                return


def _wanted(compactor: Compactor, files: Mapping[str, TableFile]) -> list[tuple[str, TableFile]]:
    """The files that are large enough for an index, the newest hour first."""
    least = compactor.limits.index_min_bytes
    if least is None:
        return []
    large = [(key, file) for key, file in files.items() if file.size >= least]
    return sorted(large, key=lambda one: (-one[1].start_ms, one[0]))


async def _index(compactor: Compactor, report: PassReport, key: str, file: TableFile) -> None:
    try:
        body = await build(compactor.store, file)
    except NotFound:
        for lost in await lost_files(compactor.store, [file]):
            report.alarm(describe(lost))
    except Damaged as error:
        report.alarm(f"{file.path} gets no skip index, because it cannot be read: {error}")
    else:
        await compactor.store.put(key, body)
        compactor.reached("file indexed")
        report.files_indexed += 1


async def _remove_lone(store: ObjectStore, lone: set[str], indexed: set[str]) -> None:
    """Removes the indexes among `lone` whose file has another one or does not exist any more."""
    gone = []
    for key in sorted(lone):
        file = keys.indexed_file(key)
        if file not in indexed:
            try:
                await store.head(file)
            except NotFound:
                pass
            else:
                continue
        gone.append(key)
    await store.delete(gone)


async def build(store: ObjectStore, file: TableFile) -> bytes:
    """The skip index of a table file, as it is stored.

    Raises `NotFound`, `Damaged`, `StoreUnavailable`.
    """
    key = f"{keys.TABLE}/{file.path}"
    start, tail = (await fetch_tail(store, key, file.size)).first()
    footer = await asyncio.to_thread(opened, SparseFile(file.size, start, tail), key)
    builder = Builder(file.size, footer.num_row_groups)
    for groups in _together(footer.metadata):
        low, high = _byte_range_of(footer.metadata, groups)
        sparse = SparseFile(file.size, start, tail)
        sparse.add(low, (await store.get(key, offset=low, size=high - low))[1])
        await asyncio.to_thread(_add, builder, opened(sparse, key), groups, sparse.range_at)
    return await asyncio.to_thread(builder.finish)


def _add(builder: Builder, parquet: pq.ParquetFile, groups: range, stored: Read) -> None:
    for index in groups:
        try:
            read = parquet.read_row_group(index, columns=_READ, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"row group {index} cannot be read: {error}") from error
        text = b"".join(_text(chunk) for chunk in read.column(_MESSAGE).chunks)
        bare = read.column(_ATTRIBUTES).null_count == read.num_rows
        # Attributes are decoded whole, so lines with attributes need no map.
        lines = map_of(parquet.metadata, index, read, stored) if bare else None
        seen = as_seen(read.column(_MESSAGE)).chunks if is_coloured(text) else ()
        shown = b"".join(map(_text, seen))
        builder.add(read.num_rows, text, bare=bare, lines=lines, seen=shown)


def _text(strings: pa.StringArray) -> bytes:
    """The bytes of all strings, one after another."""
    _, offsets, data = strings.buffers()
    if data is None:
        return b""
    bounds = np.frombuffer(offsets, np.int32)
    return bytes(memoryview(data)[bounds[strings.offset] : bounds[strings.offset + len(strings)]])


def _together(footer: Any) -> Iterator[range]:
    """Row groups in order, in ranges that one request fetches."""
    first = 0
    for index in range(footer.num_row_groups):
        low, high = _byte_range_of(footer, range(first, index + 1))
        if high - low > _FETCHED_BYTES and index > first:
            yield range(first, index)
            first = index
    if first < footer.num_row_groups:
        yield range(first, footer.num_row_groups)


def _byte_range_of(footer: Any, groups: range) -> tuple[int, int]:
    """The range of the file that contains the needed columns of the row groups."""
    ranges = [
        byte_range(chunk, chunk)
        for index in (groups[0], groups[-1])
        for path, chunk in chunks_of(footer, index).items()
        if path.split(".")[0] in _READ
    ]
    return min(low for low, _ in ranges), max(high for _, high in ranges)
