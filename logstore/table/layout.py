"""How the table's data files are named and laid out, whoever writes them.

A file stands below the folder of its hour:

    {job}-{bucket:05d}-R{layout}.parquet            what a job made of segments: level 0
    {job}-{bucket:05d}-R{layout}-L{level}.parquet   what a job made of files of the levels below it
    {job}-{bucket:05d}.parquet, …-L{level}.parquet   the same by older programs: layout 0

The level says how often lines of the file were rewritten, at most. The layout says how the file is
cut into row groups. Rewriting goes by both. They are in the name because delta-rs's add actions
take no tags.

Lines of a file are sorted by (fqn, run_id, ulid), so a row group has a narrow range of that key,
and readers skip groups by their statistics. In layout 1 every row group of a file but the last has
exactly `ROW_GROUP_ROWS` rows. Only where lines are so long that the group would have more than
`ROW_GROUP_BYTES` does it end earlier, so a reader takes the number of rows from the footer. In
layout 0 a group ends at 128 MiB. Files of layout 2 have the column `carried`.
"""

from __future__ import annotations

import re
from typing import Final

LAYOUT: Final = 2
"""Rises with a change that is worth rewriting files for. Older programs wrote 0: no number."""
ROW_GROUP_ROWS: Final = 32_768
"""Of 32,768 to 131,072 the fastest to search."""
ROW_GROUP_BYTES: Final = 16 << 20
"""About, as compressed: 32,768 lines of 2 KB have less. Writers hold a group in memory."""

_MARKED: Final = 2
_LEVEL: Final = re.compile(r"-L([1-9][0-9]*)\.parquet$")
_LAYOUT: Final = re.compile(r"-R([1-9][0-9]*)(?:-L[1-9][0-9]*)?\.parquet$")


def file_name(job: str, bucket: str, level: int) -> str:
    """The name of a file of the job, in today's layout; `bucket` as the job numbered it."""
    name = f"{job}-{bucket}-R{LAYOUT}"
    return f"{name}-L{level}.parquet" if level else f"{name}.parquet"


def level_of(path: str) -> int:
    """The level in the path; 0 for a file of any other name."""
    found = _LEVEL.search(path)
    return int(found[1]) if found else 0


def has_marks(path: str) -> bool:
    """Whether the name says that the file has the column `carried`."""
    return layout_of(path) >= _MARKED


def layout_of(path: str) -> int:
    """The layout in the path; 0 for a file of any other name."""
    found = _LAYOUT.search(path)
    return int(found[1]) if found else 0
