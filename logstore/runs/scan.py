"""Scanning: builds the index of a text that is not held in memory, while it streams past.

A text that was not written batch by batch (OpenMetadata's, say) is divided into batches of a
block each: the first line end at or behind 32 KiB ends one. Where blocks begin thus depends
on the text alone, not on the pieces in which it came. Two scans of the same text
under the same first id make the same index, byte for byte.

Memory is that of a piece of text and of the index, about 12 bytes per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash

from logstore import ulid as ulids
from logstore.batch import Indexes, line_ends
from logstore.runs.blocks import BLOCK, Blocks
from logstore.runs.index import ENTRY, Directory, Entries, PositionRange, encode_tail, entry_of
from logstore.runs.manifest import Chunk
from logstore.runs.piece import PIECE_BLOCKS, encode_piece

_CUT_BYTES = 32 << 10
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class Scanned:
    """A chunk's entry without its ETag, and its index."""

    chunk: Chunk
    index: bytes


class TextScan:
    """Takes a text from its beginning. Batch `n` gets the id `first` plus n batch ids.

    All lines are the `writer`'s, whose positions are line numbers.
    """

    def __init__(self, writer: str, first: int) -> None:
        self._writer = writer
        self._first = ulids.batch_of(first)
        self._rows: list[tuple[int, int, int]] = []
        self._bodies: list[bytes] = []
        self._entries: list[Entries] = []
        self._ranges: list[PositionRange] = []
        self._digest = xxhash.xxh3_64()
        self._open_bytes = self._open_lines = 0
        self._last_byte = _NEWLINE
        self._at = 0
        self.bytes = self.lines = self.blocks = 0

    @property
    def ended(self) -> bool:
        """Whether the text so far ends with a line, or is empty."""
        return self._last_byte == _NEWLINE

    def add(self, piece: bytes) -> None:
        """The next bytes of the text."""
        if not piece:
            return
        self._last_byte = piece[-1]
        ends = line_ends(piece)
        at = line = 0
        while (cut := self._cut(ends, at, line)) is not None:
            end = int(ends[cut])
            self._take(piece[at:end], cut + 1 - line)
            self._close_block()
            at, line = end, cut + 1
        self._take(piece[at:], len(ends) - line)

    def end(self, chunk_id: str) -> Scanned:
        """The whole text's chunk. The text must end with a line, and not be empty."""
        assert self.ended, "the caller adds a missing newline"
        if self._open_bytes:
            self._close_block()
        self._close_piece()
        directory = Directory(np.array(self._entries, ENTRY), tuple(self._ranges))
        tail = encode_tail(directory)
        body = b"".join([*self._bodies, tail])
        first, last = directory.extremes()
        chunk = Chunk(
            id=chunk_id,
            kind="chunk",
            bytes=self.bytes,
            lines=self.lines,
            records=self.lines,
            first=first,
            last=last,
            blocks=self.blocks,
            index_bytes=len(body),
            tail_bytes=len(tail),
            writers=directory.writers(),
        )
        return Scanned(chunk, body)

    def _cut(self, ends: Indexes, at: int, line: int) -> int | None:
        """Which of the line ends from `line` on ends the open block."""
        found = int(np.searchsorted(ends, at + _CUT_BYTES - self._open_bytes, "left"))
        found = max(found, line)
        return found if found < len(ends) else None

    def _take(self, text: bytes, lines: int) -> None:
        self._digest.update(text)
        self._open_bytes += len(text)
        self._open_lines += lines

    def _close_block(self) -> None:
        self._rows.append((self._open_bytes, self._open_lines, self._digest.intdigest()))
        self._digest.reset()
        self._open_bytes = self._open_lines = 0
        if len(self._rows) == PIECE_BLOCKS:
            self._close_piece()

    def _close_piece(self) -> None:
        if not self._rows:
            return
        blocks = np.zeros(len(self._rows), BLOCK)
        sizes, lines, digests = zip(*self._rows, strict=True)
        blocks["size"], blocks["lines"], blocks["records"] = sizes, lines, lines
        blocks["digest"] = np.array(digests, np.uint64)
        blocks["first"] = 1
        blocks["offset"] = np.cumsum(blocks["size"]) - blocks["size"] + np.uint64(self.bytes)
        ends = np.cumsum(blocks["lines"], dtype=np.uint64)
        blocks["line"] = blocks["pos"] = ends - blocks["lines"] + np.uint64(self.lines)
        ids = [
            self._first + (number << ulids.LINE_BITS)
            for number in range(self.blocks, self.blocks + len(blocks))
        ]
        blocks["ulid_hi"] = np.array([each >> 64 for each in ids], np.uint64)
        blocks["ulid_lo"] = np.array([each & (1 << 64) - 1 for each in ids], np.uint64)
        self._add_piece(blocks)
        self._rows.clear()

    def _add_piece(self, blocks: Blocks) -> None:
        body = encode_piece(blocks, [self._writer])
        number = len(self._entries)
        self._entries.append(entry_of(blocks, body, self._at))
        end = int(blocks["pos"][-1]) + int(blocks["records"][-1])
        self._ranges.append((number, self._writer, int(blocks["pos"][0]), end))
        self._bodies.append(body)
        self._at += len(body)
        self.blocks += len(blocks)
        self.bytes += int(blocks["size"].sum())
        self.lines += int(blocks["lines"].sum(dtype=np.uint64))
