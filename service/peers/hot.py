"""Lines of one run that other nodes hold and that are in no chunk yet.

The question `hot` is answered with the rows of all such batches, and with their texts as far as they
are small. `text` brings further texts. A node answers what it pins at that moment, and it is asked
before the manifest is read: lines that it flushes meanwhile are in both, and the manifest tells.

| `hot` asks | `{"fqn", "run"}`, and `"held": true` for what is in the journal, without the store |
| --- | --- |
| it answers | `{"deleted", "sources": [{"node", "end", "connectors", "files", "texts"}, …]}`: the ULID up to which it knows the run as deleted, and for each source two parts: the rows (`logstore.batch.BATCH`), and the texts and metadata of its first `texts` rows. With `held` a source has `flushed`, too: its lines below this position are in chunks. Earlier versions do not say it |
| `text` asks | `{"fqn", "run", "node", "first", "end"}`: rows of a source by position |
| it answers | `{"positions": […]}` and one part: their texts and metadata, one row after another |
"""  # noqa: E501

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logstore import ulid as ulids
from logstore.batch import BATCH, CONSTANT_ATTRIBUTES, Indexes, RecordMeta, Rows, RunKey
from logstore.errors import InvalidInput
from logstore.position import Position
from service.journal.format import (
    decode_attributes,
    decode_meta,
    encode_attributes,
    encode_meta,
)
from service.peers import messages
from service.peers.messages import Message
from service.peers.peers import Peers
from service.peers.register import Entry
from service.peers.transport import PeerRefused, PeerSilent
from service.runs.chunks import Moved
from service.runs.elsewhere import Elsewhere, Fork, Unfetched
from service.runs.held import Held
from service.runs.selection import Source

_AT_ONCE_BYTES = 1 << 20
_STEP_BYTES = 4 << 20
_TEXT_SECONDS = 30.0
Files = Sequence[tuple[str, int]]
"""Journal files and their first positions, in order."""


@dataclass(slots=True)
class RemoteBatches:
    """Batches of another node: rows, and the texts that were fetched, by row."""

    node: str
    rows: Rows
    runs: Sequence[RunKey]
    connectors: Sequence[str | None]
    entry: Entry
    peers: Peers
    texts: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def text(self, indexes: Indexes) -> bytes:
        return b"".join([self._held(index)[0] for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        return self._held(int(index))[0][low:high]

    def meta(self, index: int) -> RecordMeta | None:
        if not self.rows["meta"][index] or self.rows["flags"][index] & CONSTANT_ATTRIBUTES:
            return None
        return decode_meta(self._held(int(index))[1])

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        if not self.rows["flags"][index] & CONSTANT_ATTRIBUTES:
            return None
        return decode_attributes(self._held(int(index))[1])

    def _held(self, index: int) -> tuple[bytes, bytes]:
        held = self.texts.get(index)
        if held is None:
            raise Unfetched(lambda: self._fetch(index))
        return held

    async def _fetch(self, index: int) -> None:
        """Brings the texts from this row on, up to about 4 MiB. Raises `Moved`."""
        end = index + fitting(self.rows[index:], _STEP_BYTES)
        first, last = int(self.rows["pos"][index]), int(self.rows["pos"][end - 1])
        head = {"fqn": self.runs[0].fqn, "run": self.runs[0].run, "node": self.node}
        body = messages.encode({**head, "first": first, "end": last + 1})
        try:
            answer = await self.peers.one(self.entry, body, "text", _TEXT_SECONDS)
            placed = _texts(self.rows, answer.head["positions"], answer.parts[0])
        except (PeerSilent, PeerRefused) as error:
            raise Moved(str(error)) from error
        if index not in placed:
            raise Moved(f"{self.node} does not hold a batch any more")
        self.texts |= placed


def fitting(rows: Rows, size: int) -> int:
    """How many of the first rows have about so many bytes of text and metadata; one at least."""
    ends = np.cumsum(rows["size"].astype(np.int64) + rows["meta"])
    return max(int(np.searchsorted(ends, size, "right")), min(len(rows), 1))


def _texts(rows: Rows, positions: Sequence[int], body: bytes) -> dict[int, tuple[bytes, bytes]]:
    """Texts and metadata by row, of the rows with these positions."""
    found, at = {}, 0
    for pos in positions:
        index = int(np.searchsorted(rows["pos"], pos))
        if index == len(rows) or int(rows["pos"][index]) != pos:
            raise PeerRefused(f"an answer with position {pos}, which was not asked for")
        middle = at + int(rows["size"][index])
        end = middle + int(rows["meta"][index])
        found[index] = (body[at:middle], body[middle:end])
        at = end
    if at != len(body):
        raise PeerRefused(f"{len(body)} bytes of text instead of {at}")
    return found


async def ask_for_lines(
    key: RunKey,
    own: str,
    peers: Peers,
    note_deletion: Callable[[str, str | None, int], None],
    *,
    held: bool = False,
) -> Elsewhere:
    """What the other nodes than `own` hold of a run, and who did not say."""
    asked = {"fqn": key.fqn, "run": key.run} | ({"held": True} if held else {})
    gathered = await peers.ask(messages.encode(asked), "hot")
    sources: list[Source] = []
    files: dict[str, Files] = {}
    flushed: dict[str, int] = {}
    silent = dict(gathered.silent)
    entries = peers.entries()
    for entry in entries:
        answer = gathered.answers.get(entry.instance)
        if answer is None:
            continue
        try:
            found = decode_sources(key, answer, entry, peers)
            deleted = int(ulids.parse(answer.head["deleted"]))
        except (PeerRefused, InvalidInput, KeyError) as error:
            silent[entry.node] = str(error)
            continue
        if deleted:
            note_deletion(*key, deleted)
        for source, its_files, its_flushed in found:
            if source.node != own:
                sources.append(source)
                files[source.node] = its_files
                flushed[source.node] = its_flushed
    mine = peers.register.own
    every = entries if mine is None else [*entries, mine]
    forks = [Fork(e.node, e.parents, e.base, e.files, e.shared) for e in every if e.files]

    def position(node: str, pos: int) -> Position | None:
        return file_of(files[node], pos) if node in files else None

    silent_nodes = tuple(sorted(silent))
    return Elsewhere(sources, silent_nodes, forks, position, alone=False, flushed=flushed)


def file_of(files: Files, pos: int) -> Position:
    """The place of a line in one of these files."""
    at = bisect_right(files, pos, key=lambda file: file[1]) - 1
    return Position(files[at][0] if at >= 0 else "", pos)


def encode_sources(found: Sequence[Held], *, horizon: str) -> bytes:
    """The answer to `hot`: rows of sources, and small texts."""
    heads: list[dict[str, Any]] = []
    parts: list[bytes] = []
    left = _AT_ONCE_BYTES
    for source, indexes, files, flushed in found:
        rows = source.batches.rows[indexes].copy()
        rows["run"] = 0
        metas = _metas(source, indexes, rows)
        count = 0
        if len(rows):
            ends = np.cumsum(rows["size"].astype(np.int64) + rows["meta"])
            count = int(np.searchsorted(ends, left, "right"))
        texts = _joined(source, indexes[:count], metas)
        left -= len(texts)
        heads.append(
            {
                "node": source.node,
                "end": source.end,
                "connectors": list(source.batches.connectors),
                "files": [list(file) for file in files],
                "texts": count,
                **({"flushed": flushed} if flushed else {}),
            }
        )
        parts += [rows.tobytes(), texts]
    return messages.encode({"sources": heads, "deleted": horizon}, parts)


def encode_texts(source: Source | None, indexes: Indexes) -> bytes:
    """The answer to `text`: these rows of a source."""
    if source is None or len(indexes) == 0:
        return messages.encode({"positions": []}, [b""])
    rows = source.batches.rows[indexes].copy()
    texts = _joined(source, indexes, _metas(source, indexes, rows))
    return messages.encode({"positions": rows["pos"].tolist()}, [texts])


def _metas(source: Source, indexes: Indexes, rows: Rows) -> list[bytes]:
    """The encoded metadata of each row; `rows` gets their lengths."""
    found = []
    for number, index in enumerate(indexes.tolist()):
        body = b""
        if rows["meta"][number]:
            attributes = source.batches.constant_attributes(index)
            meta = source.batches.meta(index) if attributes is None else None
            body = encode_meta(meta) if attributes is None else encode_attributes(attributes)
        rows["meta"][number] = len(body)
        found.append(body)
    return found


def _joined(source: Source, indexes: Indexes, metas: Sequence[bytes]) -> bytes:
    if not any(metas[: len(indexes)]):
        return source.batches.text(indexes) if len(indexes) else b""
    pieces: list[bytes] = []
    for number, index in enumerate(indexes.tolist()):
        pieces += [source.batches.text(np.array([index])), metas[number]]
    return b"".join(pieces)


def decode_sources(
    key: RunKey, answer: Message, entry: Entry, peers: Peers
) -> list[tuple[Source, Files, int]]:
    """The sources in an answer to `hot`. Raises `PeerRefused`."""
    found: list[tuple[Source, Files, int]] = []
    try:
        for number, head in enumerate(answer.head["sources"]):
            rows = np.frombuffer(answer.parts[2 * number], BATCH)
            connectors = [None if name is None else str(name) for name in head["connectors"]]
            batches = RemoteBatches(str(head["node"]), rows, [key], connectors, entry, peers)
            texts = answer.parts[2 * number + 1]
            batches.texts = _texts(rows, rows["pos"][: head["texts"]].tolist(), texts)
            files = [(str(file), int(first)) for file, first in head["files"]]
            source = Source(batches, int(head["end"]))
            found.append((source, files, int(head.get("flushed", 0))))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise PeerRefused(f"not an answer with lines: {error}") from error
    return found
