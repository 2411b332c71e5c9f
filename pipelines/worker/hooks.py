"""What an appender is told beside its events: deletions, and that time has passed."""

from __future__ import annotations

from pipelines.appenders.contract import Appender, Deletable, Flushable
from pipelines.deletions import Deleted
from pipelines.sources.segments import SegmentSource
from pipelines.worker.thread import OwnThread


class Hooks:
    """Calls `deleted` and `flush` of one appender, if it has them, in its thread."""

    def __init__(self, thread: OwnThread, source: SegmentSource, appender: Appender) -> None:
        self._thread = thread
        self._source = source
        self._appender = appender
        self._told: Deleted | None = None

    async def deletions(self) -> None:
        """Tells it what is deleted, if that is not what it was told last. Raises as `deleted`."""
        known = self._source.deleted
        if isinstance(self._appender, Deletable) and known is not self._told:
            await self._thread.run(self._appender.deleted, known)
            self._told = known

    async def flush(self) -> bool:
        """Lets it do what is due; True: a checkpoint is to be saved. Raises as `flush`."""
        if not isinstance(self._appender, Flushable):
            return False
        return bool(await self._thread.run(self._appender.flush))
