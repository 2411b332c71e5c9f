"""Lines of a compressed row group that have a text, by the map of its lines.

Parquet's readers decode all messages to find a few, and of each other column all values up to the
last one. Here pages are decompressed and searched as they are; what else belongs to a line is in
the map, or is taken out of its page (`logstore.table.pages`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from logstore.table.pages.line_map import LineMap
from logstore.table.pages.reader import GroupReader, MessagePage, Read, Scratch
from service.query.found_rows import Found
from service.query.text_rows import places_in_memory

_MOST_LINES: Final = 512  # of a row group: each costs a few calls of Python


@dataclass(frozen=True, slots=True)
class Pages:
    """Maps of row groups of a file, by number; None: it does not read.

    `read` gives bytes of their pages, if they are not in a file of this machine.
    """

    maps: Mapping[int, LineMap | None]
    read: Read | None = None


def lines_with(
    read: Read, lines: LineMap, wanted: Mapping[str, str], texts: Sequence[bytes], scratch: Scratch
) -> Found:
    """The lines of a row group that have one of the texts, and the names that are wanted.

    `wanted` has names by column, `fqn` or `run_id`. Raises `TooMany`, `Damaged`, `OSError`.
    """
    first, behind = lines.span(wanted)
    rows, messages = list[int](), list[bytes]()
    reader = GroupReader(lines, read, scratch)
    for page in reader.message_pages(first, behind):
        here, found = page.at(_places(page, texts, _MOST_LINES - len(rows)))
        rows += here
        messages += found
    records = reader.lines(rows)
    names = {number: name for number, name in enumerate(lines.names) if name is not None}
    return Found(names, rows, records, messages)


@contextmanager
def reading(path: str, *, exactly: bool) -> Iterator[Read]:
    """Reads of a file of this machine. Raises `OSError`.

    `exactly`: the system is not to read ahead.
    """
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        if exactly:
            _read_no_more(number)
        yield lambda at, size: os.pread(number, size, at)


def announce(path: str, lines: LineMap, wanted: Mapping[str, str]) -> None:
    """Has the system read the messages that `lines_with` will look through. Raises `OSError`."""
    pages = [page for _, page, _ in lines.message_pages(*lines.span(wanted))]
    if pages:
        with open(path, "rb", buffering=0) as file:
            number, begin, last = file.fileno(), pages[0].at, pages[-1]
            _read_no_more(number)
            size = last.at + last.stored - begin
            os.posix_fadvise(number, begin, size, os.POSIX_FADV_WILLNEED)


def _read_no_more(number: int) -> None:
    """Has the system read what is asked of a file, and not up to 8 MiB behind it."""
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)


def _places(page: MessagePage, texts: Sequence[bytes], most: int) -> list[int]:
    """Where texts are in the page."""
    found, size = list[int](), page.end - page.begin
    for text in texts:
        here = places_in_memory(page.address + page.begin, size, text, seen=0, most=most)
        found += [page.begin + place for place in here]
    return found
