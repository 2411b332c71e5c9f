"""Plans which files of which hours are rewritten, from the snapshot's statistics alone.

A file that holds lines as they were ingested is **fresh** (level 0), any other is **old**.
Of an hour that is over, these files are rewritten:

1. The fresh files, and the old ones whose range of keys (fqn, run_id, ulid) overlaps one of them,
   if these old ones have **at most half as many bytes**. The first rewriting therefore covers the
   whole hour. Late files wait until they are worth it, and old files that they do not overlap
   stay. The new files have level 1, or the old files' highest.
2. Otherwise the files of one level that are smaller than a quarter of a file, alone, once there
   are sixteen of them; the new files are one level up. Late files that never become worth it,
   because they are small beside their hour, cost readers fifteen files and not thousands.

3. Otherwise the files that an older version laid out, together. The new files have level 1, or
   the old files' highest. An upgrade would make all hours of the table need that at once, so a
   pass rewrites for this reason alone about 1 GiB, the newest hours first: they are read most,
   and the oldest ones expire before their turn.

Fewer than four files are not rewritten by the first rule, unless they have together at least a
quarter of a file. A large fresh file that overlaps no other counts as old.

**Bound**: the ingest writes a byte once. The job in which the byte leaves level 0 writes it again,
and by rule 1 at most half a byte of old files with it: 2.5 bytes in all, and 2 if nothing comes
late. Only in an hour that got late files some sixty times do late bytes cost one more, by rule 2.
That leaves half a byte per byte of the table for the log and its checkpoints, below 3. A new
layout costs one byte more for each that is in the table then: a file that was rewritten says so in
its name, whatever it looks like.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from logstore.table.layout import level_of
from logstore.table.snapshot import TableFile

_WORTH: Final = 2  # fresh bytes for each old one that is written again with them
_FEWEST: Final = 4
_MANY: Final = 16
_LAYOUT_BYTES: Final = 1 << 30  # in a pass: a day of passes each five minutes is 288 GiB
_LAST: Final = "\U0010ffff"  # above every fqn and run in the order of their UTF-8

Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Files of one hour that become files of `level`."""

    files: tuple[TableFile, ...]
    level: int
    layout_only: bool = False

    @property
    def hour(self) -> str:
        """`YYYY-MM-DDTHH`, in UTC."""
        return hour_of(self.files[0])

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(file.size for file in self.files)


def rewritings(
    files: Iterable[TableFile],
    *,
    over_ms: int,
    after_ms: int,
    file_bytes: int,
    layout_bytes: int = _LAYOUT_BYTES,
) -> list[Rewriting]:
    """The rewritings of hours that ended after `after_ms`, up to `over_ms`.

    The oldest first, then those for their layout only, the newest of them first, of about
    `layout_bytes` in all and at least one. The new files have about `file_bytes`.
    """
    hours: dict[int, list[TableFile]] = defaultdict(list)
    for file in files:
        if after_ms < file.end_ms <= over_ms:
            hours[file.end_ms].append(file)
    planned = (rewriting(hours[end], file_bytes=file_bytes) for end in sorted(hours))
    found = [one for one in planned if one is not None]
    outdated = [one for one in reversed(found) if one.layout_only]
    before = accumulate((one.size for one in outdated), initial=0)
    chosen = [one for one, size in zip(outdated, before, strict=False) if size < layout_bytes]
    return [one for one in found if not one.layout_only] + chosen


def rewriting(files: Sequence[TableFile], *, file_bytes: int) -> Rewriting | None:
    """The rewriting of an hour with these files, if it needs one."""
    levels: dict[int, list[TableFile]] = defaultdict(list)
    for file in files:
        levels[level_of(file.path)].append(file)
    fresh = _unsettled(levels.pop(0, []), files, file_bytes)
    return (
        _merged_in(fresh, levels, file_bytes)
        or _piled_up({0: fresh, **levels}, file_bytes)
        or _outdated(files)
    )


def hour_of(file: TableFile) -> str:
    """The file's hour, `YYYY-MM-DDTHH` in UTC."""
    return f"{file.date.isoformat()}T{file.hour:02}"


def key_range(file: TableFile) -> tuple[Key, Key]:
    """The lowest and the highest key that the file may have, by its bounds."""
    (fqn, last_fqn), (run, last_run), (low, high) = map(_known, (file.fqns, file.runs, file.ulids))
    if fqn != last_fqn:  # each fqn has runs of its own
        return (fqn, "", ""), (last_fqn, _LAST, _LAST)
    if run != last_run:
        return (fqn, run, ""), (fqn, last_run, _LAST)
    return (fqn, run, low), (fqn, run, high)


def _known(bounds: tuple[str, str] | None) -> tuple[str, str]:
    return ("", _LAST) if bounds is None else bounds


def _unsettled(
    fresh: Sequence[TableFile], files: Sequence[TableFile], file_bytes: int
) -> list[TableFile]:
    """The fresh files that are small, or overlap another file of the hour."""
    return [
        one
        for one in fresh
        if one.size < file_bytes // 2
        or any(other is not one and _meet(one, other) for other in files)
    ]


def _merged_in(
    fresh: Sequence[TableFile], old: dict[int, list[TableFile]], file_bytes: int
) -> Rewriting | None:
    ranges = _joined([key_range(one) for one in fresh])
    met = [
        (level, one)
        for level, some in sorted(old.items())
        for one in some
        if _meets_one(key_range(one), ranges)
    ]
    size, more = sum(one.size for one in fresh), sum(one.size for _, one in met)
    count = len(fresh) + len(met)
    few = count < _FEWEST and size + more < file_bytes // 4
    if not fresh or count < 2 or few or more * _WORTH > size:
        return None
    return Rewriting((*fresh, *(one for _, one in met)), max([1, *(level for level, _ in met)]))


def _piled_up(levels: dict[int, list[TableFile]], file_bytes: int) -> Rewriting | None:
    for level, some in sorted(levels.items()):
        small = [one for one in some if one.size < file_bytes // 4]
        if len(small) >= _MANY:
            return Rewriting(tuple(small), level + 1)
    return None


def _outdated(files: Sequence[TableFile]) -> Rewriting | None:
    some = tuple(file for file in files if file.outdated)
    if not some:
        return None
    return Rewriting(some, max(1, *(level_of(file.path) for file in some)), layout_only=True)


def _meet(one: TableFile, other: TableFile) -> bool:
    (low, high), (low_too, high_too) = key_range(one), key_range(other)
    return low <= high_too and low_too <= high


def _joined(ranges: list[tuple[Key, Key]]) -> list[tuple[Key, Key]]:
    """The ranges in order, with overlapping ones joined."""
    joined: list[tuple[Key, Key]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _meets_one(span: tuple[Key, Key], ranges: Sequence[tuple[Key, Key]]) -> bool:
    return any(low <= span[1] and span[0] <= high for low, high in ranges)
