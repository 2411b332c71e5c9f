"""What every node has, whether it takes lines or only reads: its world, and its place in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable

from logstore.segments.writer import EncodedSegment
from service.peers.membership import Membership
from service.runs.records import Details
from service.runs.repair.rebuild import Records
from service.runs.run_logs import RunLogs
from service.runs.settings import Tuning
from service.runtime.clock_skew import ClockSkew
from service.runtime.identity import DataFolder, Identity
from service.runtime.insist import insist
from service.runtime.seams import Seams
from service.settings import Settings
from service.shipping.confirmations import Confirmations
from service.shipping.watermarks import Watermarks
from service.status.opening import open_status
from service.tail import Tail


class NodeBase:
    """A node that is not started. `failed` is done when it cannot go on and the process should end.

    Without a configured name its folder keeps its name, and a new folder gets `default_name`.
    """

    _folder: DataFolder
    identity: Identity
    run_logs: RunLogs
    tail: Tail

    def __init__(
        self,
        seams: Seams,
        settings: Settings,
        *,
        default_name: str,
        table_mark: Callable[[str], int],
        tuning: Tuning | None = None,
    ) -> None:
        self.seams = seams
        self.store = seams.store
        self.clock_skew = ClockSkew(seams.newest_date)
        self._settings = settings
        self._tuning = tuning or Tuning()
        self._default_name = default_name
        self._data = os.path.abspath(settings.data)
        self.marks = Watermarks(seams.store, seams.clock, seams.entropy, seams.offload, table_mark)
        self.status = open_status(self, seams, settings)
        self.records: Records | None = None
        self.details: Details | None = None
        self.copied: Callable[[], Iterable[str]] = lambda: ()
        """Gives the paths of table files of which this process has copies."""
        self.stored: Callable[[str, EncodedSegment], None] = lambda *_: None
        """Is told of each segment of this node that is in the store, and its key."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.members = Membership(seams, settings)
        self.status.unfinished.tell = self.members.tell_unfinished
        self.confirmations = Confirmations()
        self._started = asyncio.Event()
        self._stopping = False
        self._waiting: str | None = None

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes with lines that this one does not hear now."""
        return self.members.cut_off_from

    async def _insist(self, step: Callable[[], Awaitable[None]], waiting: str) -> None:
        """Does the step until it succeeds; meanwhile the node's problems say why it waits."""

        def told(why: str | None) -> None:
            self._waiting = why

        await insist(step, self.seams.clock, told, waiting)
