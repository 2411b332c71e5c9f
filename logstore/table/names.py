"""How the table's data files are named, below the folder of their hour.

    {job}-{bucket:05d}.parquet            what a job made of segments: level 0
    {job}-{bucket:05d}-L{level}.parquet   what a job made of files of the levels below it

The level is how often its lines were written anew, at most, which a rewriting goes by. It is in
the name since delta-rs's add actions take no tags.
"""

from __future__ import annotations

import re
from typing import Final

_LEVEL: Final = re.compile(r"-L([1-9][0-9]*)\.parquet$")


def file_name(job: str, bucket: str, level: int) -> str:
    """The name of a file of the job; `bucket` as the job numbered it."""
    return f"{job}-{bucket}-L{level}.parquet" if level else f"{job}-{bucket}.parquet"


def level_of(path: str) -> int:
    """The level that the path says, 0 for files of any other name."""
    found = _LEVEL.search(path)
    return int(found[1]) if found else 0
