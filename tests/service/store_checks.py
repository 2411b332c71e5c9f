"""What must hold of a store at any moment, whoever died over it.

Read as another program would: from the objects alone, with no node running.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey, digest, ulid_of
from tailrace.logstore.errors import NotFound
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.segments.reader import SegmentBatches, open_segment, verify_segment
from tests.service.client_model import Clients, batches_in
from tests.simulation.backing import STORE, on_disk
from tests.simulation.powercut import PowerCutFileSystem


@dataclass
class Shipped:
    """A stored segment: its range, and its batches as (run, ULID, first position, text)."""

    seq: int
    first: int
    end: int
    batches: list[tuple[RunKey, int, int, bytes]]


@dataclass
class StoreView:
    """All that a store holds, by kind."""

    segments: dict[str, list[Shipped]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    manifests: dict[RunKey, Manifest] = field(default_factory=dict)
    texts: dict[RunKey, bytes] = field(default_factory=dict)


async def view_of(store: ObjectStore) -> StoreView:
    """Reads everything, verifying each segment and each chunk that a manifest names."""
    view = StoreView()
    async for info in store.list(keys.SEGMENTS):
        parsed = keys.parse_segment(info.key)
        assert parsed is not None, info.key
        node, seq = parsed
        body = (await store.get(info.key))[1]
        view.segments.setdefault(node, []).append(_shipped(body, node, seq))
    for node in view.segments:
        view.marks[node] = (await read_watermark(store, node)).seq
    async for info in store.list(keys.RUNS):
        manifest = decode_manifest((await store.get(info.key))[1])
        view.manifests[manifest.key] = manifest
        view.texts[manifest.key] = await _text_of(store, manifest)
    return view


def _shipped(body: bytes, node: str, seq: int) -> Shipped:
    footer = verify_segment(body)
    assert (footer.node, footer.seq) == (node, seq)
    held = SegmentBatches(open_segment(body))
    batches = []
    for index, row in enumerate(held.rows):
        text = held.text(np.array([index]))
        assert digest(text) == int(row["digest"])
        batches.append((held.runs[row["run"]], ulid_of(row), int(row["pos"]), text))
    return Shipped(seq, footer.ranges[0][0], footer.ranges[-1][1], batches)


async def _text_of(store: ObjectStore, manifest: Manifest) -> bytes:
    text = b""
    for chunk in manifest.chunks:
        if chunk.kind == "logs":
            info, body = await store.get(keys.logs(keys.PREFIX, manifest.key))
            assert info.etag == chunk.etag
        elif chunk.text is not None:
            body = chunk.text
        else:
            body = (await store.get(keys.chunk_text(keys.PREFIX, manifest.key, chunk.id)))[1]
            assert len(body) == chunk.bytes
        part = body[: chunk.bytes]
        assert (len(part), part.count(b"\n")) == (chunk.bytes, chunk.lines)
        text += part
    return text


def check_numbers(view: StoreView) -> None:
    """Sequence numbers and positions have neither holes nor overlaps."""
    for node, segments in view.segments.items():
        ordered = sorted(segments, key=lambda segment: segment.seq)
        assert [s.seq for s in ordered] == list(range(ordered[0].seq, ordered[-1].seq + 1)), node
        for before, after in pairwise(ordered):
            assert before.end <= after.first, f"{node}: {before.seq} and {after.seq} overlap"
        for segment in ordered:
            places = [pos for _, _, pos, _ in segment.batches]
            assert len(places) == len(set(places))
            assert all(segment.first <= pos < segment.end for pos in places)


def check_marks(view: StoreView, clients: Clients) -> None:
    """What a watermark covers stands in the chunks."""
    for node, segments in view.segments.items():
        for segment in segments:
            if segment.seq > view.marks[node]:
                continue
            for key, _, _, text in segment.batches:
                number = batches_in(text)[0]
                if key in clients.deleting or clients.gone(clients.sent[number]):
                    continue
                held = batches_in(view.texts.get(key, b""))
                assert number in held, f"mark {segment.seq} of {node} covers batch {number}: {held}"


def check_chunks(view: StoreView, clients: Clients) -> None:
    """Chunks hold nothing twice, nothing deleted, nothing invented, in order."""
    for key, text in view.texts.items():
        if key in clients.deleting:
            continue
        numbers = batches_in(text)
        assert numbers == sorted(set(numbers)), f"chunks of {key.run}: {numbers}"
        assert text == b"".join([clients.sent[number].text for number in numbers])
        assert not any(clients.gone(clients.sent[number]) for number in numbers)


def check_shipped(view: StoreView, clients: Clients, *, once: bool = True) -> None:
    """All that is owed stands in the segments; `once` if no two nodes may hold copies."""
    found: list[tuple[RunKey, int]] = []
    for segments in view.segments.values():
        for segment in segments:
            for key, ulid, _, text in segment.batches:
                sent = clients.sent[batches_in(text)[0]]
                assert (sent.key, sent.text) == (key, text)
                assert sent.ulid in (None, ulid)
                found.append((key, sent.number))
    assert not once or len(found) == len(set(found)), f"shipped twice: {sorted(found)}"
    for key in clients.runs():
        lost = {(key, number) for number in clients.owed(key)} - set(found)
        assert not lost, f"not in any segment: {lost}"


async def check_leftovers(store: ObjectStore, fs: PowerCutFileSystem) -> None:
    """After a sweep: no chunk that nothing names, no partial text of a closed run.

    No node says that it holds lines: all of them were stopped, and had none.
    """
    assert [info.key async for info in store.list(keys.all_active(keys.PREFIX))] == []
    async for info in store.list(keys.PREFIX + "/"):
        parts = info.key.split("/")
        key = RunKey(parts[1], parts[2])
        try:
            manifest = decode_manifest((await store.get(keys.run_manifest(key)))[1])
        except NotFound as error:
            raise AssertionError(f"{info.key} of a run that never was") from error
        if parts[3] == "chunks":
            named = {chunk.id for chunk in manifest.chunks}
            assert parts[4].split(".")[0] in named, f"{info.key}: nothing names it"
        elif parts[3] == "partial.txt":
            assert manifest.state == "open", f"{info.key} of a run that is {manifest.state}"
    if on_disk():
        left = [name for name, _ in fs.scan(f"{STORE}/.tmp")]
        assert not left, f"temporary files: {left}"
