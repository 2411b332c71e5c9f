"""How the table's data files are named, below the folder of their hour.

    {job}-{bucket:05d}-R{layout}.parquet            what a job made of segments: level 0
    {job}-{bucket:05d}-R{layout}-L{level}.parquet   what a job made of files of the levels below it
    {job}-{bucket:05d}.parquet, …-L{level}.parquet   the same by older programs: layout 0

The level is how often its lines were written anew, at most; the layout (`layout.py`) is how a file
is cut into row groups. A rewriting goes by both. They are in the name since delta-rs's add
actions take no tags.
"""

from __future__ import annotations

import re
from typing import Final

from logstore.table.layout import LAYOUT

_LEVEL: Final = re.compile(r"-L([1-9][0-9]*)\.parquet$")
_LAYOUT: Final = re.compile(r"-R([1-9][0-9]*)(?:-L[1-9][0-9]*)?\.parquet$")


def file_name(job: str, bucket: str, level: int) -> str:
    """The name of a file of the job, in today's layout; `bucket` as the job numbered it."""
    name = f"{job}-{bucket}-R{LAYOUT}"
    return f"{name}-L{level}.parquet" if level else f"{name}.parquet"


def level_of(path: str) -> int:
    """The level that the path says, 0 for files of any other name."""
    found = _LEVEL.search(path)
    return int(found[1]) if found else 0


def layout_of(path: str) -> int:
    """The layout that the path says, 0 for files of any other name."""
    found = _LAYOUT.search(path)
    return int(found[1]) if found else 0
