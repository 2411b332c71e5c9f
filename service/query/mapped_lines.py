"""Lines of a compressed row group that have a text, by the map of its lines.

Parquet's readers decode all messages to find a few, and of each other column all values up to the
last one. Here pages are decompressed and searched as they are; what else belongs to a line is in
the map, or is taken out of its page (`logstore.table.pages`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from logstore.table.pages.line_map import LineMap
from logstore.table.pages.reader import GroupReader, MessagePage, Scratch
from service.query.found_rows import Found
from service.query.text_rows import places_in_memory

_MOST_LINES: Final = 512  # of a row group: each costs a few calls of Python


def lines_with(
    path: str, lines: LineMap, wanted: Mapping[str, str], texts: Sequence[bytes], scratch: Scratch
) -> Found:
    """The lines of a row group that have one of the texts, and the names that are wanted.

    `wanted` has names by column, `fqn` or `run_id`. Raises `TooMany`, `Damaged`, `OSError`.
    """
    first, behind = _span(lines, wanted)
    rows, messages = list[int](), list[bytes]()
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        reader = GroupReader(lines, lambda at, size: os.pread(number, size, at), scratch)
        for page in reader.message_pages(first, behind):
            here, found = page.at(_places(page, texts, _MOST_LINES - len(rows)))
            rows += here
            messages += found
        records = reader.lines(rows)
    names = {number: name for number, name in enumerate(lines.names) if name is not None}
    return Found(names, rows, records, messages)


def _span(lines: LineMap, wanted: Mapping[str, str]) -> tuple[int, int]:
    """The first row with the names, and the one behind the last. There may be others between."""
    stretches = lines.stretches
    ours = np.ones(len(stretches), np.bool_)
    for column, name in wanted.items():
        if name not in lines.names:
            return 0, 0
        ours &= stretches[column] == lines.names.index(name)
    numbers = np.flatnonzero(ours)
    if not len(numbers):
        return 0, 0
    ends = [*stretches["row"][1:].tolist(), lines.rows]
    return int(stretches["row"][numbers[0]]), ends[numbers[-1]]


def _places(page: MessagePage, texts: Sequence[bytes], most: int) -> list[int]:
    """Where texts are in the page."""
    found, size = list[int](), page.end - page.begin
    for text in texts:
        here = places_in_memory(page.address + page.begin, size, text, seen=0, most=most)
        found += [page.begin + place for place in here]
    return found
