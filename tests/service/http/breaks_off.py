"""Runs whose texts cannot be read on from their middle."""

from __future__ import annotations

from collections.abc import AsyncIterator

from service.run_log.read_text import LogSize
from tailrace.logstore.batch import RunKey
from tests.service.http.memory_node import MemoryRunLogs


class BreaksOff(MemoryRunLogs):
    """Each download raises `error` behind its first piece."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def download(
        self,
        key: RunKey,
        *,
        offset: int = 0,
        size: int | None = None,
        measured: LogSize | None = None,
    ) -> AsyncIterator[bytes]:
        async for piece in super().download(key, offset=offset, size=size, measured=measured):
            yield piece
            raise self._error
