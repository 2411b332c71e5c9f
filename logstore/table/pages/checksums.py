"""Checks the pages of table files against their CRCs, without decoding them.

Each page has the CRC-32 of its body in its header; parquet-mr and `verify --repair` write it. A
header has none of its own. So the headers are also compared with the footer: the pages of a column
have as many values, and take as many bytes when decompressed, as the footer says.

If no page of a row group has a CRC, an older program wrote the file: it is **unchecked**, which is
no damage. If some pages have one, all must.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final

from logstore.errors import Damaged
from logstore.table.pages.headers import StoredPage, stored_pages
from logstore.table.pages.reader import Read

_CRC_MASK: Final = 0xFFFF_FFFF  # Thrift has only signed integers


class DamagedPages(Damaged):
    """A column of a row group is not as it was written."""


def check_row_group(footer: Any, index: int, read: Read) -> bool:
    """Checks all pages of a row group; returns False if they have no CRCs.

    `footer` is pyarrow's, and `read` gives bytes of the file. Raises `DamagedPages` with column and
    row group, and what `read` raises.
    """
    group = footer.row_group(index)
    with_crc, without = 0, 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        try:
            crcs = [page.crc is not None for page in _checked(chunk, read)]
        except Damaged as error:
            raise _named(index, chunk, str(error)) from error
        with_crc, without = with_crc + sum(crcs), without + len(crcs) - sum(crcs)
        if with_crc and without:
            raise _named(index, chunk, "a page has lost its CRC")
    return without == 0


def check_row_groups(footer: Any, read: Read, indexes: Iterable[int] | None = None) -> bool:
    """Checks these row groups, or all; returns False if one has no CRCs. Raises as above."""
    chosen = range(footer.num_row_groups) if indexes is None else indexes
    found = [check_row_group(footer, index, read) for index in chosen]
    return all(found)


def row_group_range(footer: Any, index: int) -> tuple[int, int]:
    """Where the bytes of a row group begin and end in the file."""
    group = footer.row_group(index)
    ranges = [_range(group.column(number)) for number in range(group.num_columns)]
    return min(begin for begin, _ in ranges), max(begin + size for begin, size in ranges)


def _range(chunk: Any) -> tuple[int, int]:
    begin = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        begin = min(begin, chunk.dictionary_page_offset)
    return begin, chunk.total_compressed_size


def _checked(chunk: Any, read: Read) -> list[StoredPage]:
    """The pages of a column of a row group. Raises `Damaged`."""
    begin, size = _range(chunk)
    if begin < 0 or size < 0:
        raise Damaged("the footer does not read")
    data = bytes(read(begin, size))
    if len(data) != size:
        raise Damaged(f"the file ends at byte {begin + len(data)}")
    pages, view = list(stored_pages(data)), memoryview(data)
    for page in pages:
        body = view[page.at : page.at + page.stored]
        if page.crc is not None and zlib.crc32(body) != page.crc & _CRC_MASK:
            raise Damaged(f"the page at byte {begin + page.at} does not match its CRC")
    if sum(page.values for page in pages) != chunk.num_values:
        raise Damaged(f"its pages have not the {chunk.num_values} values of the footer")
    if sum(page.size for page in pages) != chunk.total_uncompressed_size:
        raise Damaged(f"its pages are not the {chunk.total_uncompressed_size} bytes of the footer")
    return pages


def _named(index: int, chunk: Any, reason: str) -> DamagedPages:
    return DamagedPages(f"row group {index}, column {chunk.path_in_schema}: {reason}")
