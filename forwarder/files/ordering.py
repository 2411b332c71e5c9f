"""`ordering_criteria`: files sorted by what their paths say, of which the first few are read.

Each criterion sorts stably, one after the other, so the last one counts most. A file whose path
does not match, or whose part is not the number or time that it should be, is left out and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from forwarder.config.source import OrderingCriteria, SortBy
from forwarder.files.finder import Found

Report = Callable[[str], None]


class Ordering:
    """Sorts and cuts a list of files. `report` hears of each file that is left out, once."""

    def __init__(self, criteria: OrderingCriteria, report: Report) -> None:
        self._criteria = criteria
        self._report = report
        self._reported: set[str] = set()

    def __call__(self, found: list[Found]) -> list[Found]:
        """The files to read, in the order of the criteria."""
        groups: dict[str, list[Found]] = {}
        for file in found:
            groups.setdefault(self._group(file), []).append(file)
        return [file for group in groups.values() for file in self._first(group)]

    def _group(self, file: Found) -> str:
        by = self._criteria.group_by
        match = by.search(file.path) if by is not None else None
        if by is None or match is None:
            return ""
        return (match[1] if by.groups else match[0]) or ""

    def _first(self, files: list[Found]) -> list[Found]:
        for by in self._criteria.sort_by:
            keyed = [(key, file) for file in files if (key := self._key(by, file)) is not None]
            keyed.sort(key=lambda each: each[0], reverse=not by.ascending)
            files = [file for _, file in keyed]
        return files[: self._criteria.top_n or None]

    def _key(self, by: SortBy, file: Found) -> tuple[float, str] | None:
        if by.sort_type == "mtime":
            return file.mtime_ns, ""
        assert self._criteria.regex is not None
        match = self._criteria.regex.search(file.path)
        text = match[by.regex_key] if match is not None else None
        if text is None:
            self._left_out(file, f"does not match {self._criteria.regex.pattern!r}")
            return None
        try:
            return _value(by, text)
        except ValueError:
            self._left_out(file, f"has {text!r} where {by.sort_type} is expected")
            return None

    def _left_out(self, file: Found, why: str) -> None:
        if file.path not in self._reported:
            self._reported.add(file.path)
            self._report(f"{file.path} is not read: its path {why}")


def _value(by: SortBy, text: str) -> tuple[float, str]:
    if by.sort_type == "numeric":
        if re.fullmatch(r"[-+]?[0-9]+", text) is None:
            raise ValueError(text)
        return int(text), ""
    if by.sort_type == "timestamp":
        moment = datetime.strptime(text, by.layout)  # noqa: DTZ007 -- the next line says the zone
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(by.location))
        return moment.timestamp(), ""
    return 0, text
