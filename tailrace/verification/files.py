"""Checks files of the table, each once: whether it exists and is as written, and its skip index.

Each page is compared with its CRC, and the bounds in a file's footer with the values, since readers
skip row groups by them.

A skip index is optional, and a damaged one costs speed alone, since searches then read its file
whole. One that is whole and wrong would hide lines from searches, so each is built again and
compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from compactor.maintenance.skip_index import build
from logstore import keys
from logstore.errors import Damaged, NotFound, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.table.file_check import check_table_file
from logstore.table.skip_index import parse
from logstore.table.snapshot import TableFile
from service.query.database import Database
from service.query.sql import READABLE, literal
from tailrace.verification.fault import Findings

_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 2  # files, of each some row groups are in memory


@dataclass(slots=True)
class TableFiles:
    """The state of the table's files; a file that differs from the log is reported when found."""

    store: ObjectStore
    database: Database
    findings: Findings
    _good: set[str] = field(default_factory=set)
    _bad: set[str] = field(default_factory=set)
    _unchecked: int = 0
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READ_AT_ONCE))

    async def usable(self, files: Iterable[TableFile]) -> list[TableFile]:
        """The files that exist and are not known to be unreadable. Raises `StoreUnavailable`."""
        wanted = list(files)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def look(file: TableFile) -> None:
            async with turns:
                await self._look(file)

        known = self._good | self._bad
        await asyncio.gather(*(look(file) for file in wanted if file.path not in known))
        return [file for file in wanted if file.path not in self._bad]

    def trust(self, files: Iterable[TableFile]) -> None:
        """Takes files that did not change since they were sound as good."""
        self._good.update(file.path for file in files)

    def unreadable(self, files: Sequence[TableFile]) -> bool:
        """Reads each file whole, reports unreadable ones, and returns whether there are any."""
        found = False
        for file in files:
            if file.path in self._bad:
                continue
            try:
                self.database.number(READABLE, {"files": [literal(file.uri)]})
            except Damaged as error:
                self._report(file, str(error))
                found = True
        return found

    def note_unchecked(self) -> None:
        """Says how many files have no page CRCs, which is no fault."""
        if self._unchecked:
            self.findings.note(
                f"{self._unchecked} table files have no page CRCs: an older version wrote them, and"
                " damage in their pages is noticed only if they do not read"
            )

    async def _look(self, file: TableFile) -> None:
        try:
            size = (await self.store.head(f"{keys.TABLE}/{file.path}")).size
            if size != file.size:
                self._report(file, f"{size} bytes where the table's log says {file.size}")
                return
            async with self._reading:
                if not await check_table_file(self.store, file, statistics=True):
                    self._unchecked += 1
        except NotFound:
            self._bad.add(file.path)
            detail = "the table's log names it"
            self.findings.add("table-file-missing", file.path, detail, lines=file.rows)
        except Damaged as error:
            self._report(file, str(error))
        else:
            self._good.add(file.path)
        finally:
            self.findings.count("table files")

    def _report(self, file: TableFile, detail: str) -> None:
        self._bad.add(file.path)
        self.findings.add("table-file-damaged", file.path, detail, lines=file.rows)


_ADVICE = "remove it, the compactor makes another"


async def check_skip_indexes(
    store: ObjectStore, findings: Findings, files: Iterable[TableFile]
) -> None:
    """Compares the indexes that there are of files that read. Raises `StoreUnavailable`."""
    for file in files:
        key = keys.skip_index(file.path)
        try:
            body = (await store.get(key))[1]
            made = await build(store, file)
        except (NotFound, Damaged):
            continue  # an index is optional; what is wrong with a file is said where it is read
        findings.count("skip indexes")
        try:
            index = parse(body, size=file.size)
            index.check()
        except UnsupportedVersion:
            findings.note(f"{key} is of another version, and was not compared")
        except Damaged as error:
            findings.add("skip-index-damaged", key, f"{error}: {_ADVICE}", lines=file.rows)
        else:
            if not index.agrees(parse(made, size=file.size)):
                detail = f"not of its file: {_ADVICE}"
                findings.add("skip-index-wrong", key, detail, lines=file.rows)
