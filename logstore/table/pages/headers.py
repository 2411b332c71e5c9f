"""Where the pages of a column lie: the headers before them, in Thrift's compact protocol.

The fields are those of `PageHeader` in parquet-format's `parquet.thrift`; of version 1 of data
pages and of dictionaries, which is all that parquet-mr and Arrow write unless they are told to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from logstore.errors import Damaged

PLAIN: Final = 0
DICTIONARY: Final = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_RLE: Final = 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_DATA_HEADERS: Final = (5, 8)  # of data pages of version 1 and 2
# Thrift's types of fields.
_STOP, _TRUE, _BINARY, _STRUCT = 0, 1, 8, 12
_BOOLEANS, _INTEGERS, _LISTS = (1, 2), (4, 5, 6), (9, 10)
_SKIPPED_BYTES: Final = {3: 1, 7: 8}  # a byte, a double
_LONG_LIST: Final = 15


class UnknownPages(Exception):
    """Pages of a kind that is not read here."""


class Page(NamedTuple):
    """A page: where its body begins in the column's bytes, its size as stored and decompressed.

    It has so many `values`, nulls among them, and their encoding has that number in Parquet.
    """

    dictionary: bool
    at: int
    stored: int
    size: int
    values: int
    encoding: int


class StoredPage(NamedTuple):
    """A page of any kind: where its body begins in the column's bytes, and its size as stored.

    `size` is that of header and body when decompressed, `crc` None if the page has none, and
    `header` the fields of its header by their numbers. `values` are 0 for a dictionary.
    """

    at: int
    stored: int
    size: int
    values: int
    crc: int | None
    header: Mapping[int, Any]


def stored_pages(column: bytes) -> Iterator[StoredPage]:
    """The pages in the bytes of a column of a row group. Raises `Damaged`."""
    begin = 0
    try:
        while begin < len(column):
            header, at = struct_at(column, begin)
            size, stored, crc = header[2], header[3], header.get(4)
            inner = next((header[n] for n in _DATA_HEADERS if n in header), None)
            values = 0 if inner is None else inner[1]
            if min(size, stored, values) < 0 or at + stored > len(column):
                raise Damaged("a page is longer than its column")
            yield StoredPage(at, stored, at - begin + size, values, crc, header)
            begin = at + stored
    except (IndexError, KeyError, TypeError, RecursionError, UnknownPages) as error:
        raise Damaged("the header of a page does not read") from error


def pages_of(column: bytes) -> list[Page]:
    """The pages in the bytes of a column of a row group. Raises `Damaged`, `UnknownPages`."""
    found = list[Page]()
    for one in stored_pages(column):
        kind, size = one.header[1], one.header[2]
        try:
            if kind == _DATA_PAGE:
                inner = one.header[5]
                if inner[3] != _RLE:
                    raise UnknownPages("definition levels of another encoding")
            elif kind == _DICTIONARY_PAGE:
                inner = one.header[7]
            else:
                raise UnknownPages(f"a page of type {kind}")
            page = Page(kind == _DICTIONARY_PAGE, one.at, one.stored, size, inner[1], inner[2])
        except (KeyError, TypeError) as error:
            raise Damaged("the header of a page does not read") from error
        if min(page[1:]) < 0:
            raise Damaged("the header of a page does not read")
        found.append(page)
    return found


def struct_at(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """A structure: its values by the numbers of their fields, and where it ends.

    Raises `IndexError`, `RecursionError`, `UnknownPages` for what is none.
    """
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != _STOP:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            raw, at = _varint(data, at)
            number = _signed(raw)
        kind = head & 15
        if kind in _BOOLEANS:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value of that type, and where it ends; None for a number that nobody needs here."""
    if kind in _INTEGERS:
        raw, at = _varint(data, at)
        return _signed(raw), at
    if kind == _STRUCT:
        return struct_at(data, at)
    if kind == _BINARY:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind in _SKIPPED_BYTES:
        return None, at + _SKIPPED_BYTES[kind]
    if kind not in _LISTS:
        raise UnknownPages(f"a field of Thrift's type {kind}")
    head = data[at]
    count, at = (head >> 4, at + 1) if head >> 4 != _LONG_LIST else _varint(data, at + 1)
    values = []
    for _ in range(count):
        if head & 15 in _BOOLEANS:  # a byte each
            value, at = data[at] == _TRUE, at + 1
        else:
            value, at = _value(data, at, head & 15)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    """The number of a zigzag."""
    return (value >> 1) ^ -(value & 1)
