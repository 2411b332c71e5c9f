"""Makes the map of a row group (`line_map`), if its pages are of the kinds that are read by one.

What the writer did is not taken on trust: messages have to fill each page to the byte, and what the
map gives of one line of a thousand, and of messages at the anchors of the last page, is compared
with what Parquet's own reader gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore import ulid
from logstore.errors import Damaged
from logstore.segments.schema import CARRIED
from logstore.segments.ulids import parse, texts_of
from logstore.table.pages.headers import PLAIN, UnknownPages, pages_of
from logstore.table.pages.line_map import (
    EVERY,
    MOST_LEVELS,
    MOST_NAMES,
    STRETCH,
    LineMap,
    PagePlace,
)
from logstore.table.pages.reader import LENGTH_WIDTH, GroupReader, Read, Scratch

MAPPED: Final = ("ulid", "ts", "fqn", "run_id", "pos", "level", "connector_id", "message")
"""The columns that a map knows of, and `CARRIED`. Attributes are left to Parquet's reader."""
_NAMES: Final = ("fqn", "run_id", "connector_id")  # of a stretch
_TYPES: Final = {"ts": pa.timestamp("us", "UTC"), "pos": pa.int64()}
_NULLABLE: Final = ("level", "connector_id")
_COMPARED: Final = 1_024  # one line of so many
_ULID_WIDTH: Final = 26


def map_of(footer: Any, index: int, rows: pa.Table, read: Read) -> LineMap | None:
    """The map of a row group; None if it has pages of other kinds, or another order in them.

    `rows` is what Parquet's reader gives of the columns `MAPPED`, and of `CARRIED` if the file has
    it.
    """
    if not {*MAPPED} <= {*rows.column_names}:
        return None
    making = _Making(footer, index, rows, read)
    try:
        made = making.made()
        return made if making.is_right(made) else None
    except (Damaged, UnknownPages):
        return None


class _Making:
    """The map of one row group while it is made."""

    def __init__(self, footer: Any, index: int, rows: pa.Table, read: Read) -> None:
        self._schema = footer.schema
        self._group = footer.row_group(index)
        self._numbers = {self._schema.column(n).path: n for n in range(len(self._schema))}
        self._rows = rows
        self._columns = {name: rows.column(name).combine_chunks() for name in MAPPED}
        self._names: dict[str | None, int] = {}
        self._read = read
        self._scratch = Scratch()

    def made(self) -> LineMap:
        """The map. Raises `Damaged`, `UnknownPages`."""
        for name, column in self._columns.items():
            if column.type != _TYPES.get(name, pa.string()):
                raise UnknownPages(f"{name} is of another type")
            if column.null_count and name not in _NULLABLE:
                raise UnknownPages(f"{name} has nulls")
        levels = self._codes("level")  # first: their numbers are small
        if len(self._names) > MOST_LEVELS:
            raise UnknownPages("there are too many levels")
        stretches = self._stretches()
        messages, times = self._places("message"), self._places("ts")
        names, anchors = list(self._names), self._anchors(messages)
        numbers, carried = levels.astype(np.uint8), self._carried()
        return LineMap(messages, times, names, stretches, anchors, numbers, carried)

    def _carried(self) -> NDArray[np.bool_]:
        """Which lines continue others; empty if none does."""
        if CARRIED not in self._rows.column_names:
            return np.empty(0, np.bool_)
        marks: NDArray[np.bool_] = self._rows.column(CARRIED).fill_null(False).to_numpy()
        return marks if marks.any() else marks[:0]

    def is_right(self, made: LineMap) -> bool:
        """Whether the map gives what Parquet's reader gives. Raises `Damaged`."""
        count, reader = self._rows.num_rows, GroupReader(made, self._read, self._scratch)
        rows = sorted({*range(0, count, _COMPARED), count - 1})
        expected = self._rows.select(MAPPED[:-1]).take(pa.array(rows))
        times = expected.column("ts").cast(pa.int64())
        values = expected.set_column(1, "ts", times).to_pylist()
        marks = made.carried[rows] if len(made.carried) else np.zeros(len(rows), np.bool_)
        lines = reader.lines(rows)
        if not np.array_equal(lines["carried"], marks):
            return False
        for line, value in zip(lines, values, strict=True):
            given = {name: made.names[line[name]] for name in (*_NAMES, "level")}
            given |= {name: int(line[name]) for name in ("ts", "pos")}
            if given | {"ulid": ulid.encode(int(line["hi"]) << 64 | int(line["lo"]))} != value:
                return False
        return self._has_messages(reader)

    def _codes(self, column: str) -> NDArray[np.int64]:
        """The number of each row's name; new names get one."""
        coded = self._columns[column].dictionary_encode("encode")
        texts = coded.dictionary.to_pylist()
        numbers = [self._names.setdefault(text, len(self._names)) for text in texts]
        codes: NDArray[np.int64] = np.array(numbers, np.int64)[coded.indices.to_numpy()]
        return codes

    def _stretches(self) -> NDArray[Any]:
        """Where ULID or position does not rise by one, or a name changes."""
        names = {name: self._codes(name) for name in _NAMES}
        if len(self._names) > MOST_NAMES:
            raise UnknownPages("there are too many names")
        texts = _texts(self._columns["ulid"])
        pos = self._columns["pos"].to_numpy()
        high, batch, line = parse(texts)
        rises = (np.diff(line) == 1) & (np.diff(pos) == 1)
        for same in (high, batch, *names.values()):
            rises &= same[1:] == same[:-1]
        firsts = np.flatnonzero(np.concatenate(([True], ~rises)))
        found = np.zeros(len(firsts), STRETCH)
        found["row"], found["pos"] = firsts, pos[firsts]
        found["hi"] = high[firsts]
        found["lo"] = batch[firsts] | line[firsts].astype(np.uint64)
        for name, codes in names.items():
            found[name] = codes[firsts]
        if not np.array_equal(texts_of(found["hi"], found["lo"]), texts[firsts]):
            raise UnknownPages("a ULID is none")
        return found

    def _places(self, name: str) -> Sequence[PagePlace]:
        """The pages of a column, all of which are plain."""
        number = self._numbers[name]
        chunk, levels = self._group.column(number), self._schema.column(number)
        if chunk.compression != "ZSTD" or levels.max_definition_level > 1:
            raise UnknownPages(f"{name} is stored in another way")
        at = chunk.data_page_offset
        data, places = self._read(at, chunk.total_compressed_size), list[PagePlace]()
        for page in pages_of(bytes(data)):
            if page.dictionary or page.encoding != PLAIN:
                raise UnknownPages(f"{name} has pages of encoding {page.encoding}")
            begin = 0
            if levels.max_definition_level:
                stored = data[page.at : page.at + page.stored]
                length = self._scratch.start(stored, LENGTH_WIDTH)
                begin = LENGTH_WIDTH + int.from_bytes(length, "little")
            places.append(PagePlace(at + page.at, page.stored, page.size, page.values, begin))
        return places

    def _anchors(self, pages: Sequence[PagePlace]) -> list[NDArray[np.uint32]]:
        """Where every eighth message begins in its page. Raises `UnknownPages`."""
        widths = pc.binary_length(self._columns["message"]).to_numpy() + LENGTH_WIDTH
        firsts = np.cumsum([0, *(page.rows for page in pages)]).tolist()
        found = []
        for page, (first, behind) in zip(pages, pairwise(firsts), strict=True):
            ends = page.begin + np.cumsum(widths[first:behind], dtype=np.int64)
            if not len(ends) or ends[-1] != page.size:
                raise UnknownPages("messages do not fill their page")
            found.append(np.concatenate(([page.begin], ends[:-1]))[::EVERY].astype(np.uint32))
        if firsts[-1] != len(widths):
            raise UnknownPages("there are other messages")
        return found

    def _has_messages(self, reader: GroupReader) -> bool:
        """Whether messages of the last page lie at its anchors, and the last at its end."""
        count = self._rows.num_rows
        for page in reader.message_pages(count - 1, count):
            rows, messages = page.at([*page.anchors.tolist(), page.end - 1])
            expected = self._columns["message"].take(pa.array(rows)).to_pylist()
            if [message.decode() for message in messages] != expected:
                return False
            if rows[-1] != page.first + page.rows - 1:
                return False
        return True


def _texts(ulids: pa.StringArray) -> NDArray[np.uint8]:
    """The characters of ULIDs, a row for each."""
    if not pc.all(pc.equal(pc.binary_length(ulids), _ULID_WIDTH)).as_py():
        raise UnknownPages("a ULID has another width")
    _, _, data = ulids.buffers()
    begin, size = ulids.offset * _ULID_WIDTH, len(ulids) * _ULID_WIDTH
    return np.frombuffer(data, np.uint8, size, begin).reshape(-1, _ULID_WIDTH)
