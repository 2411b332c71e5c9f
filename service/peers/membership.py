"""This node among the others on its store: it joins, looks after its entry, and leaves.

A node joins before it takes batches, so that others ask it for its lines from the first one on. If
the store is away just then, it takes batches all the same and joins once the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import OutcomeUnknown, TailraceError, Unavailable
from service.journal.journal import Journal
from service.peers import messages
from service.peers.away import refuse_old_lines
from service.peers.contact import Contacts
from service.peers.feed import LiveFeed
from service.peers.forgotten import returned
from service.peers.others import Others
from service.peers.peers import Gathered, Peers
from service.peers.register import READER, Register
from service.runs.deletions import Deletions
from service.runs.elsewhere import NoOtherNodes, OtherNodes
from service.runtime.identity import Identity, TakenOver
from service.runtime.pulse import Pulse
from service.runtime.seams import Seams
from service.settings import Settings
from service.shipping.lineage import Forked
from service.status.unfinished import UnfinishedLine
from service.tail import Tail

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_AWAY_TURNS = 3
_TOUCH_SECONDS = 2.0
_MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class Joining:
    """What a process says of itself in the register, and the deletions that it keeps up with."""

    node: str
    deletions: Deletions
    parents: Sequence[str] = ()
    base: int = 0
    files: TakenOver = ()
    start: int = 0
    role: str = ""
    shared: Sequence[str] = ()


class Membership:
    """One process among others. Without a way to them (`Seams.network`) it is alone."""

    def __init__(self, seams: Seams, every: Settings) -> None:
        settings = every.nodes
        self._seams = seams
        self._clock = seams.clock
        self._settings = settings
        self._every = every
        self.pulse = Pulse(seams.clock)
        self._read: tuple[Deletions, int] | None = None
        """The deletions that were read whole, and how often the process had stood still then."""
        self._reading = asyncio.Lock()
        self._joining: Joining
        self.register: Register | None = None
        self.peers: Peers | None = None
        if seams.network is not None:
            network, seconds = seams.network, settings.timeout_seconds
            self.register = Register(seams.store, seams.clock, seams.entropy, network)
            self.register.on_removed = self._forget_deletions
            self.peers = Peers(self.register, timeout_seconds=seconds)
        self._joined = False
        self._telling: set[asyncio.Task[Gathered]] = set()

    def tell_unfinished(self, key: RunKey, line: UnfinishedLine) -> None:
        """Tells the nodes that answer what an unfinished line looks like; nobody waits for it."""
        if self.peers is None or not self.peers.entries(readers=True):
            return
        if len(self._telling) >= _MOST_TOLD:
            return  # the next state is told
        body = messages.encode({"fqn": key.fqn, "run": key.run, "line": line.to_json()})
        task = asyncio.ensure_future(self.peers.ask(body, "unfinished", readers=True))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    @property
    def instance(self) -> str:
        """The ULID of this process in the register; empty if it is alone."""
        return "" if self.register is None else self.register.instance

    @property
    def size(self) -> int:
        """Processes in the register as it was read last, with this one."""
        return 1 if self.register is None else 1 + len(self.register.others)

    @property
    def contacts(self) -> Contacts:
        """How this node reaches the others; only of one with a way to them."""
        assert self.register is not None
        return self.register.contacts

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many questions to others came to what."""
        return {} if self.register is None else self.register.contacts.outcomes

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many questions of others were refused, by the reason."""
        return {} if self.register is None else self.register.contacts.refusals

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes with lines that this one does not hear now."""
        return () if self.peers is None else self.peers.silent()

    def loads(self) -> list[float]:
        """The loads of the other nodes that answer, as they told them last."""
        return [] if self.peers is None else self.peers.loads()

    async def tell_load(self, load: float) -> None:
        """Tells the others this node's load. Raises `Unavailable`."""
        if self.register is not None:
            await self.register.tell_load(load)

    @property
    def asks(self) -> bool:
        """Whether it asks other nodes, once there are some."""
        return self.peers is not None

    @property
    def shared(self) -> bool:
        """Whether there are other nodes."""
        return bool(self.peers)

    def others(self, own: str, close_seconds: float, deletions: Deletions) -> OtherNodes:
        """The others, for the run logs of the node `own`."""
        if self.peers is None:
            return NoOtherNodes()
        known = self.peers, deletions, self.current
        return Others(own, *known, self._seams.store, self._clock, close_seconds=close_seconds)

    async def current(self, deletions: Deletions) -> None:
        """Returns at once if this node hears of all deletions, else reads what it may have missed.

        It may have missed some since its start, while it stood still, and while the register could
        not be read. Raises `Unavailable`.
        """
        register = self.register
        if register is None or not self._missed(deletions):
            return
        async with self._reading:
            if self._missed(deletions):
                await self._read_deletions(deletions)
                if self._joined:
                    await register.look()

    def _missed(self, deletions: Deletions) -> bool:
        register, away = self.register, _AWAY_TURNS * self._settings.refresh_seconds
        late = self._joined and register is not None and register.age_seconds > away
        read = self._read
        return late or read is None or read[0] is not deletions or read[1] != self.pulse.stalls()

    async def _read_deletions(self, deletions: Deletions) -> None:
        stalls = self.pulse.stalls()
        await deletions.load()
        self._read = deletions, stalls

    async def try_to_join(self, identity: Identity, journal: Journal, deletions: Deletions) -> None:
        """Joins if the store answers; else `stay` does. Raises `Forked`, `AwayTooLong`."""
        refuse_old_lines(journal, self._every, self._clock)
        fresh = identity.incarnation >= self.instance  # both are ULIDs: this process has made it
        await self._try_to_join(
            Joining(
                identity.node,
                deletions,
                identity.parents,
                identity.base,
                identity.files,
                identity.base if fresh else journal.next_pos,
                shared=identity.shared,
            )
        )

    async def try_to_join_as_reader(self, node: str, deletions: Deletions) -> None:
        """Joins as a node without lines if the store answers; else `stay` does."""
        await self._try_to_join(Joining(node, deletions, role=READER))

    async def _try_to_join(self, joining: Joining) -> None:
        self._joining, self._joined = joining, False
        answers = self._seams.answers
        if answers.silent:
            return
        with suppress(Unavailable, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(answers.seconds):
                await self._join()

    async def stay(self, tail: Tail) -> None:
        """Joins if that is still to be done, then follows the others. Raises `Forked`."""
        if self.register is None or self.peers is None:
            return
        while not self._joined:
            await self._clock.sleep(_RETRY_SECONDS)
            with suppress(Unavailable, OutcomeUnknown):
                await self._join()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.register.run(self._settings.refresh_seconds))
            group.create_task(LiveFeed(self.peers, tail, self._clock).run())
            group.create_task(self._stay_current())
            group.create_task(self._stay_in_touch(self.peers))

    async def leave(self, *, stored: bool) -> None:
        """Ends all connections; if all that the node held is `stored`, its entry goes as well."""
        register = self.register
        if register is None:
            return
        why = "not all that it holds is in the logs of runs"
        if stored:
            why = "the store does not answer"
            with suppress(TailraceError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await register.withdraw()
        if register.own is not None and register.own.holds and self.shared:
            log.warning(
                "%s stays in the register, as %s: other nodes wait for it until it has started and"
                " stopped again. `tailrace leases forget-node %s` lets it go for good",
                register.own.node,
                why,
                register.own.node,
            )
        await register.close()

    def problems(self) -> list[str]:
        """Present problems, as sentences."""
        return [] if self.peers is None else self.peers.problems()

    async def _stay_current(self) -> None:
        while True:
            await self.pulse.beat()
            with suppress(TailraceError):  # whoever reads lines meanwhile hears why
                await self.current(self._joining.deletions)

    async def _stay_in_touch(self, peers: Peers) -> None:
        """Finds out who is not heard, also while nobody reads and nothing is written.

        Deletions at a node that does not hear this one are read from the store meanwhile.
        """
        seconds, read = self._settings.refresh_seconds, self._clock.monotonic()
        while True:
            await self._clock.sleep(min(seconds, _TOUCH_SECONDS))
            await peers.stay_in_touch(_TOUCH_SECONDS)
            if peers.silent() and self._clock.monotonic() - read >= seconds:
                with suppress(TailraceError):  # the register says that the store is away
                    await self._read_deletions(self._joining.deletions)
                read = self._clock.monotonic()

    async def _join(self) -> None:
        if self.register is None:
            return
        own = self._joining
        twin = await self.register.twin(own.node)
        if twin is not None:
            raise Forked(
                f"the node {own.node} runs at {twin.url} already, on a folder of which this is a"
                " copy, or the other way round",
                files=twin.files,
            )
        await self.register.publish(
            *(own.node, own.parents, own.base, own.files, own.start),
            role=own.role,
            shared=own.shared,
        )
        # From here on others tell it of deletions; those before are in the store.
        await self._read_deletions(own.deletions)
        if own.role != READER:
            await self._note_return(own.node, *own.parents)
        self._joined = True

    def _forget_deletions(self) -> None:
        """Others did not tell this node of deletions while its entry was gone."""
        self._read = None

    async def _note_return(self, *nodes: str) -> None:
        seams = self._seams

        def fresh_id() -> str:
            return ulids.fresh_text(seams.clock, seams.entropy)

        for node in nodes:
            now_ms = seams.clock.now_ms()
            back = await returned(seams.store, node, now_ms=now_ms, fresh_id=fresh_id)
            if back is not None:
                log.warning(
                    "the node %s was let go (tailrace leases forget-node) and is back: what its"
                    " journal holds is served and brought into the store",
                    node,
                )
