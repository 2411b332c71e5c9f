"""The audit log: actions, their senders, and refusals, as JSON lines that are synced.

    {"time":"2026-11-23T18:00:00.000Z","event":"admin","who":"anna","key":"proxy","peer":"10.1.2.3",
     "method":"DELETE","path":"/api/…","fqn":"shop.orders","run":"nightly-7","request":"01…"}
    {"time":…,"event":"answered","status":200,"request":"01…"}
    {"time":…,"event":"refused","status":403,…}
    {"time":…,"event":"refusals-left-out","count":1234}
    {"time":…,"event":"rules","what":"loaded"}
    {"time":…,"event":"lines-lost","count":3}
    {"time":…,"event":"torn-line-cut","bytes":57}

An administrative call or a deletion begins when its line is on the disk: if the line cannot be
written, it is refused with 503. Refusals are written later, at most `REFUSALS` a second; the number
of omitted ones is a line of its own. The file is opened for each group of lines, so it may be
renamed at any time.

A crash or a full disk may leave half a line, on which no request relied. It is cut off before the
next line, which reports the cut. The next line that can be written counts the lines that could not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import orjson

from tailrace.logstore.clock import Clock, rfc3339
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.filesystem import File, FileSystem

REFUSALS: Final = 10
"""Refusals that are written in a second."""
_LONGEST: Final = 1000
_TAIL_BYTES: Final = 4 << 10  # more than most lines have, and read before each group
_WHOLE: Final = frozenset({"fqn", "run"})  # names have their own limit


class AuditLog:
    """Writes to `path`; one thread writes and syncs all lines that wait."""

    def __init__(self, path: str, fs: FileSystem, clock: Clock) -> None:
        self.problem = ""
        self._path = path
        self._fs = fs
        self._clock = clock
        self._lines: list[bytes] = []
        self._writing: asyncio.Future[None] | None = None
        self._again = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._second = -1.0
        self._refusals = self._left_out = self._lost = 0

    async def write(self, event: str, **fields: Any) -> None:
        """Writes the line and waits until it is on the disk. Raises `Unavailable` if that fails."""
        self._add(event, fields)
        await asyncio.shield(self._flush())
        if self.problem:
            raise Unavailable(
                f"the audit log cannot be written: {self.problem}",
                hint="Nothing was done. Check access.audit_log.",
            )

    def note(self, event: str, **fields: Any) -> None:
        """Writes the line later."""
        self._add(event, fields)
        self._flush()

    def refused(self, **fields: Any) -> None:
        """Records a refusal, unless this second has too many."""
        second = self._clock.monotonic() // 1
        if second != self._second:
            self._second, self._refusals = second, 0
            if self._left_out:
                self.note("refusals-left-out", count=self._left_out)
                self._left_out = 0
        self._refusals += 1
        if self._refusals > REFUSALS:
            self._left_out += 1
        else:
            self.note("refused", **fields)

    async def close(self) -> None:
        """Writes the waiting lines, and ends the thread."""
        if self._left_out:
            self._add("refusals-left-out", {"count": self._left_out})
            self._left_out = 0
        while self._lines or (self._writing and not self._writing.done()):
            await self._flush()
            if self.problem:
                break
        self._thread.shutdown(wait=False)

    def _add(self, event: str, fields: Mapping[str, Any]) -> None:
        self._lines.append(self._line(event, fields))

    def _line(self, event: str, fields: Mapping[str, Any]) -> bytes:
        stamp = rfc3339(self._clock.now_ms())
        shown = {
            k: v.encode("utf-8", "replace").decode()[: None if k in _WHOLE else _LONGEST]
            if isinstance(v, str)
            else v
            for k, v in fields.items()
        }
        return orjson.dumps({"time": stamp, "event": event, **shown}) + b"\n"

    def _flush(self) -> asyncio.Future[None]:
        """Returns a future, done when all waiting lines are written or `problem` says why not."""
        self._again = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_all())
        return self._writing

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._again:
            self._again = False
            lines, self._lines = self._lines, []
            if not lines:
                continue
            lost = [self._line("lines-lost", {"count": self._lost})] if self._lost else []
            try:
                await loop.run_in_executor(self._thread, self._append, [*lost, *lines])
            except OSError as error:
                self.problem = error.strerror or type(error).__name__
                self._lost += len(lines)
            else:
                self.problem = ""
                self._lost = 0

    def _append(self, lines: list[bytes]) -> None:
        file = self._fs.open(self._path, "append")
        try:
            size = file.size()
            new, end = size == 0, _end_of_lines(file, size)
            if end < size:
                file.truncate(end)
                lines = [self._line("torn-line-cut", {"bytes": size - end}), *lines]
            try:
                file.write(lines)
                file.sync()
            except OSError:
                with suppress(OSError):  # else the next one cuts
                    file.truncate(end)
                raise
        finally:
            file.close()
        if new:
            self._fs.sync_folder(os.path.dirname(self._path))


def _end_of_lines(file: File, size: int) -> int:
    """The offset where the last whole line ends."""
    at = size
    while at > 0:
        first = max(at - _TAIL_BYTES, 0)
        newline = file.pread(at - first, first).rfind(b"\n")
        if newline >= 0:
            return first + newline + 1
        at = first
    return 0
