"""Which objects of a rolling object are too old, too many or too large together.

Objects are the appender's if their names are such as its path gives. The one with the highest
number of a path is kept whatever their count and bytes are, since it may be open in another part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from logstore.objects.store import ObjectInfo
from logstore.patterns import LinearRegex
from pipelines.appenders.rolling.paths import PathTemplate

_NUMBERED: Final = re.compile(r"(.+)\.([0-9]{6,})(\.[^./]*?)??(?:\.gz|\.zst)?")


def old_objects(
    objects: Iterable[ObjectInfo],
    template: PathTemplate,
    *,
    prefix: str,
    now_ms: int,
    keep_objects: int,
    keep_bytes: int,
    keep_for: float,
    opened: Collection[str],
) -> list[str]:
    """The keys below `prefix` that are to be removed; none of `opened`.

    `keep_for` is in seconds; 0 of a limit: it is not looked at.
    """
    fixed = re.split(r"\{[^{}]*\}", template.template)
    ours = LinearRegex("[^/]+".join(map(re.escape, fixed)))
    by_path: dict[str, list[tuple[int, ObjectInfo]]] = {}
    for one in objects:
        match = _NUMBERED.fullmatch(one.key[len(prefix) :])
        if match is not None and ours.fullmatch(match[1] + (match[3] or "")):
            found = by_path.setdefault(match[1] + (match[3] or ""), [])
            found.append((int(match[2]), one))
    gone: list[str] = []
    for numbered in by_path.values():
        count = total = 0
        for place, (_, one) in enumerate(sorted(numbered, key=lambda n: n[0], reverse=True)):
            if one.key in opened:
                continue
            too_old = keep_for and now_ms - one.modified_ms > keep_for * 1000
            count, total = count + 1, total + one.size
            too_many = keep_objects and count > keep_objects
            too_large = keep_bytes and total > keep_bytes
            if too_old or (place and (too_many or too_large)):
                gone.append(one.key)
    return gone
