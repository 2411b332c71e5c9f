"""Parts of batches behind the chunks: the same lines as whole, at the price of what is read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.run_log import snapshot as large_batch
from service.run_log.chunks import Chunks
from service.run_log.cursors import cursor_at, line_of, unseen
from service.run_log.lines import read_lines
from service.run_log.read_text import download
from service.run_log.snapshot import LineIndexes, RunSnapshot, Snapshots
from tailrace.logstore.batch import Batches, RecordMeta, RunKey, line_ends
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.position import Cursor
from tailrace.logstore.runs.manifest import Manifest
from tests.batches import Entry, MemoryBatches, make_batches
from tests.logstore.segments.corpora import many_batches
from tests.service.runs.world import FakePin

KEY = RunKey("svc.a", "1")
T = TypeVar("T")


@pytest.fixture(autouse=True, scope="module")
def short_steps() -> Iterator[None]:
    """Of a few bytes, so that a small text has many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large_batch, "_STEP_BYTES", 16)
        yield


def snapshot_of(batches: Batches, end: int) -> RunSnapshot:
    pin = FakePin(make_batches(batches.node, []), 0, 0, end)
    every = np.arange(len(batches.rows))
    return RunSnapshot(Manifest(KEY), cast("Chunks", None), pin, [(batches, every)], LineIndexes())


def whole(batches: MemoryBatches) -> bytes:
    return batches.text(np.arange(len(batches.rows)))


def longest_record(batches: MemoryBatches) -> tuple[int, int]:
    """The most bytes and lines that a record of the batches has."""
    texts = [b""]
    for index in range(len(batches.rows)):
        text, meta = batches.text(np.array([index])), batches.meta(index)
        ends = meta.ends if meta else line_ends(text).tolist()
        texts += [text[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    return max(map(len, texts)), max(text.count(b"\n") for text in texts)


@settings(deadline=None, max_examples=60)
@given(many_batches(repeat=False), st.integers(1, 7), st.integers(1, 90), st.booleans())
async def test_pages_are_the_text_whatever_their_size(
    batches: MemoryBatches, limit: int, room: int, whole_cursor: bool
) -> None:
    end = int(batches.rows["records"].sum()) + 1000
    text, (most_bytes, most_lines) = whole(batches), longest_record(batches)
    pages, cursor = b"", Cursor({}, complete=whole_cursor)
    for _ in range(text.count(b"\n")):
        snapshot = snapshot_of(batches, end)  # each page is read from another
        start = (await unseen(snapshot, cursor))[0][0]
        assert start == await line_of(snapshot, cursor) == pages.count(b"\n")
        found = await read_lines(snapshot, start, start + limit, room)
        lines = found.text.count(b"\n")
        assert 0 < lines == found.end - start <= max(limit, most_lines)
        assert len(found.text) <= max(room, most_bytes)
        pages += found.text
        cursor = replace(await cursor_at(snapshot, found.end), complete=whole_cursor)
        if pages == text:
            break
    assert pages == text
    assert await unseen(snapshot_of(batches, end), cursor) == [] or not text


@settings(deadline=None, max_examples=60)
@given(many_batches(repeat=False), st.data())
async def test_any_line_of_a_batch_is_where_it_was(
    batches: MemoryBatches, data: st.DataObject
) -> None:
    lines = whole(batches).splitlines(keepends=True) if b"\r" not in whole(batches) else None
    lines = [part + b"\n" for part in whole(batches).split(b"\n")[:-1]] if lines is None else lines
    start = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    found = await read_lines(snapshot_of(batches, 1 << 40), start, end, 1 << 30)
    assert found.text == b"".join(lines[start : found.end])
    assert found.end >= end or found.end == start or _ends_a_record(batches, found.end)


def _ends_a_record(batches: MemoryBatches, line: int) -> bool:
    at = 0
    for index in range(len(batches.rows)):
        text, meta = batches.text(np.array([index])), batches.meta(index)
        ends = meta.ends if meta else line_ends(text).tolist()
        if line in [at + text[:stop].count(b"\n") for stop in ends]:
            return True
        at += text.count(b"\n")
    return False


@dataclass
class Counting:
    """Batches that count the bytes that are read of them."""

    base: MemoryBatches
    read: int = 0
    metas: int = 0
    node: str = field(init=False)

    def __post_init__(self) -> None:
        self.node, self.rows = self.base.node, self.base.rows
        self.runs, self.connectors = self.base.runs, self.base.connectors

    def text(self, indexes: large_batch.Ints) -> bytes:
        text = self.base.text(indexes)
        self.read += len(text)
        return text

    def slice(self, index: int, low: int, high: int) -> bytes:
        text = self.base.slice(index, low, high)
        self.read += len(text)
        return text

    def meta(self, index: int) -> RecordMeta | None:
        self.metas += 1
        return self.base.meta(index)

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        return self.base.constant_attributes(index)


def _large(record: bytes, count: int, *, meta: bool) -> Entry:
    if not meta:
        return KEY, 7 << 80, record * count
    ends = [len(record) * (k + 1) for k in range(count)]
    none = [None] * count
    return KEY, 7 << 80, record * count, None, RecordMeta(ends, none, none, none)


@pytest.mark.parametrize(
    "entry",
    [_large(b"x" * 99 + b"\n", 40_000, meta=False), _large(b"x\n" * 50, 40_000, meta=True)],
    ids=["lines", "records that hold newlines"],
)
async def test_pages_of_a_large_batch_do_not_read_it_again_and_again(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_batch, "_STEP_BYTES", 4 << 10)
    batches = Counting(make_batches("node-1", [entry]))
    size = len(entry[2])
    snapshot = snapshot_of(batches, 1 << 40)
    start, pieces = 0, 0
    while start < snapshot.lines:
        found = await read_lines(snapshot, start, snapshot.lines, 64 << 10)
        assert len(found.text) <= 64 << 10
        start, pieces = found.end, pieces + 1
        assert (await cursor_at(snapshot, start)).positions
    assert pieces > size >> 17
    assert batches.read < 3 * size
    assert batches.metas <= 1


@dataclass
class OneSnapshot:
    """Gives every reader the same snapshot."""

    snapshot: RunSnapshot

    async def with_one(self, _key: RunKey, read: Callable[[RunSnapshot], Awaitable[T]]) -> T:
        return await read(self.snapshot)


async def test_a_download_of_a_large_batch_reads_each_byte_once() -> None:
    entry = _large(b"x" * 99 + b"\n", 40_000, meta=False)
    batches = Counting(make_batches("node-1", [entry]))
    snapshots = cast("Snapshots", OneSnapshot(snapshot_of(batches, 1 << 40)))
    assert [piece async for piece in download(snapshots, KEY, 2_000_098, 3)] == [b"x\nx"]
    assert batches.read == 3
    pieces = [piece async for piece in download(snapshots, KEY, 0, None)]
    assert b"".join(pieces) == entry[2]
    assert len(pieces) > 1
    assert batches.read == 3 + len(entry[2])


@pytest.mark.parametrize(
    ("fitting", "made"),
    [(3.0, (True, True, True, False, True, False, False, True)),
     (2.9, (True, True, True, True, True, False, False, True)),
     (0.1, (True, True, True, True, True, False, True, True))],
)  # fmt: skip
def test_the_indexes_that_were_used_last_are_kept(
    monkeypatch: pytest.MonkeyPatch, fitting: float, made: tuple[bool, ...]
) -> None:
    rows = [(KEY, at + 1 << 80, b"%d\n" % at * 1000) for at in range(4)]
    batches = Counting(make_batches("node-1", rows))
    one = LineIndexes().of(batches, 0)
    size = one.bytes.nbytes + one.lines.nbytes + large_batch._ENTRY_BYTES
    monkeypatch.setattr(large_batch, "_KEPT_BYTES", int(fitting * size))
    indexes = LineIndexes()

    def is_made(at: int) -> bool:
        before = batches.read
        indexes.of(batches, at)
        return batches.read > before

    assert tuple(is_made(at) for at in (0, 1, 2, 0, 3, 3, 0, 1)) == made


async def test_a_line_longer_than_a_piece_comes_alone_and_whole() -> None:
    text = b"short\n" + b"y" * (300 << 10) + b"\n" + b"short\n"
    snapshot = snapshot_of(make_batches("node-1", [(KEY, 7 << 80, text)]), 3)
    assert (await read_lines(snapshot, 1, 3, 64 << 10)).text == text[6:-6]
    assert (await read_lines(snapshot, 0, 3, 64 << 10)).text == b"short\n"


async def test_a_text_cut_short_is_said_and_not_given_for_whole() -> None:
    batches = make_batches("node-1", [(KEY, 7 << 80, b"x" * 99 + b"\n")])
    short = replace(batches, content=batches.content[:50])
    with pytest.raises(Unavailable, match="shorter than when it was written"):
        await read_lines(snapshot_of(short, 1), 0, 1, 10)


@dataclass(frozen=True, slots=True)
class FromThreads(MemoryBatches):
    """Notes by which thread texts are read, and how much each reads."""

    read_by: Counter[int] = field(default_factory=Counter)

    def slice(self, index: int, low: int, high: int) -> bytes:
        found = MemoryBatches.slice(self, index, low, high)
        self.read_by[threading.get_ident()] += len(found)
        return found


@pytest.mark.parametrize("of_records", [False, True])
async def test_the_first_read_in_a_large_batch_scans_it_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, of_records: bool
) -> None:
    monkeypatch.setattr(large_batch, "_STEP_BYTES", 64 << 10)
    text = (b"x" * 98 + b"\n\n") * 20_000
    ends = list(range(100, len(text) + 1, 100))
    none = [None] * len(ends)
    meta = RecordMeta(ends, none, none, [{}] * len(ends)) if of_records else None
    made = make_batches("node-1", [(KEY, 7 << 80, text, None, meta)])
    batches = FromThreads(made.node, made.rows, made.runs, made.connectors, text, made.metas)
    snapshot = snapshot_of(batches, len(ends) * 2)
    assert (await read_lines(snapshot, 30_000, 30_002, 1000)).text == text[:100]
    assert batches.read_by[threading.get_ident()] < 200_000
    assert sum(batches.read_by.values()) >= len(text)
