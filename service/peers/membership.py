"""This node among the others on its store: it joins, renews its entry, notifies others, and leaves.

A node joins before it accepts batches, so others ask it for its lines from the first one on. If the
store is away at that moment, the node accepts batches all the same and joins once the store is
back.

`MemberPeers` sends the questions of run logs to the other nodes:

| question | asks | answer |
| --- | --- | --- |
| `runs` | `{"fqn"}`, null for all | `{"runs"}`: `[fqn, run, highest ULID]`, see below |
| `highest` | `{"fqn", "run"}`, `run` null for all runs of the pipeline | `{"highest"}`: a ULID |
| `deleted` | `{"fqn", "run", "t", "age_ms"}` | nothing, once the deletion is in its journal |
| `close` | `{"fqn", "run", "asker"}` | `{"state", "asking"}`, see below |
| `ended` | `{"fqn", "run"}` | nothing |

`runs` has the runs with lines that are in no chunk. The `state` of a run is `closed`, `closing`, or
`none` if the node has no lines of it; `asking` says whether the node closes the run itself and asks
others.

A node that missed notifications for a while, because it stalled or had no connection to the
store, reads the deletions and the register again before it shows a line.

`LiveFeed` notifies the live streams of this node. While runs have readers on this node, it asks
each other node (`wait`) which of these runs have new lines; that node answers as soon as some have.
Readers of such a run then read storage, which has the lines of all nodes, from their cursors on. A
lost answer does no harm: the next one names all runs with lines at or above the end position of the
last answer.

If a node becomes silent, answers again or disappears, all readers read storage: they report the
silent nodes and get the lines that they missed. A silent node is asked once a second.

| `wait` asks | `{"runs": [[fqn, run, position], …], "seconds", "taken"}`; -1 asks for all lines |
| --- | --- |
| answer | `{"runs": [number, …], "end", "taken"}`: runs with new lines, and the next position |

`taken` counts how often the asked node took over lines of a lost one. If it differs from the number
in the question, all runs count as changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from service.journal.journal import Journal
from service.peers import rpc
from service.peers.register import (
    READER,
    Gathered,
    LetGo,
    NodeEntry,
    Peers,
    Register,
    Registrations,
    refuse_old_lines,
    returned,
)
from service.peers.remote_lines import ask_for_lines
from service.peers.rpc import Contacts, PeerRefused, PeerSilent
from service.run_log.backlog import (
    NOWHERE,
    Acknowledgements,
    Deletions,
    Elsewhere,
    NoOtherNodes,
    RunLogPeers,
    RunsElsewhere,
)
from service.runtime.concurrency import ChangeSignal
from service.runtime.environment import Environment
from service.runtime.health import StallDetector
from service.runtime.identity import NodeIdentity, TakenOver
from service.settings import Settings
from service.shipping.watermarks import Forked
from service.status.status import UnfinishedLine
from service.tail import ALL_RUNS, Tail
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, OutcomeUnknown, TailraceError, Unavailable
from tailrace.logstore.objects.store import ObjectStore

_NOTIFY_SECONDS = 5.0


class MemberPeers:
    """Asks and notifies the other nodes for the run logs of the node `own`."""

    def __init__(
        self,
        own: str,
        peers: Peers,
        deletions: Deletions,
        current: Callable[[Deletions], Awaitable[None]],
        store: ObjectStore,
        clock: Clock,
        *,
        close_seconds: float,
    ) -> None:
        """`current` returns once this node knows all deletions that others wrote to the store."""
        self._own = own
        self._peers = peers
        self._deletions = deletions
        self._current = current
        self._clock = clock
        self._let_go = LetGo(store, clock)
        self._registrations = Registrations(store)
        self._close_seconds = close_seconds + _NOTIFY_SECONDS

    def __bool__(self) -> bool:
        return True  # nodes may have joined that this one has not seen yet

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:
        """Lines of the run beyond the chunks. Raises `Unavailable`, unless they are `held`.

        Each answer includes the deletion of the run, as far as its node knows it.
        """
        if held:
            if not self._peers:
                return replace(NOWHERE, alone=False)
            note = self._deletions.note
            return await ask_for_lines(key, self._own, self._peers, note, held=True)
        await self._current(self._deletions)
        found = NOWHERE
        if self._peers:
            found = await ask_for_lines(key, self._own, self._peers, self._deletions.note)
        return replace(found, left=self._registrations.forks, alone=False)

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Runs with lines beyond the chunks, of a pipeline or of all.

        Raises `Unavailable`, unless they are `held`.
        """
        if not held:
            await self._current(self._deletions)
        if not self._peers:
            return RunsElsewhere()
        gathered = await self._peers.ask(rpc.encode({"fqn": fqn}), "runs")
        found: dict[RunKey, int] = {}
        for answer in gathered.answers.values():
            for name, run, ulid in answer.head.get("runs", ()):
                key = RunKey(str(name), str(run))
                found[key] = max(found.get(key, 0), ulids.decode(ulid))
        return RunsElsewhere(list(found.items()), tuple(sorted(gathered.silent)))

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:
        """Returns the highest ULID that they know, and the nodes without an answer.

        A node that was decommissioned a moment ago counts as one without an answer: it may hold ids
        of the near future. Raises `Unavailable`.
        """
        body = rpc.encode({"fqn": fqn, "run": run})
        gathered = await self._peers.everyone(body, "highest")
        highest, silent = 0, set(gathered.silent)
        for entry in self._peers.entries():
            answer = gathered.answers.get(entry.instance)
            try:
                if answer is not None:
                    highest = max(highest, int(ulids.parse(answer.head["highest"])))
            except (InvalidInput, KeyError):
                silent.add(entry.node)
        silent.update(await self._let_go.lately())
        return highest, tuple(sorted(silent))

    async def deleted(self, fqn: str, run: str | None, t: int) -> Acknowledgements:
        """Notifies them of a deletion. Raises `Unavailable`."""
        age_ms = self._deletions.age_of(fqn, run, t, self._clock.now_ms())
        body = rpc.encode({"fqn": fqn, "run": run, "t": ulids.encode(t), "age_ms": age_ms})
        gathered = await self._peers.everyone(body, "deleted", _NOTIFY_SECONDS, readers=True)
        return Acknowledgements(tuple(sorted(gathered.silent)))

    async def close(self, key: RunKey) -> Acknowledgements:
        """Asks them to close the run. Raises `Unavailable`."""
        body = rpc.encode({"fqn": key.fqn, "run": key.run, "asker": self._own})
        gathered = await self._peers.everyone(body, "close", self._close_seconds)
        states = {answer.head.get("state") for answer in gathered.answers.values()}
        working = bool(states - {"closed", "none"})
        idle = [
            entry.node
            for entry in self._peers.entries()
            if (answer := gathered.answers.get(entry.instance)) and not answer.head.get("asking")
        ]
        let_go = await self._let_go.nodes()
        return Acknowledgements(tuple(sorted(gathered.silent)), working, let_go, tuple(idle))

    async def ended(self, key: RunKey) -> None:
        """Notifies the nodes that answer of the closed run."""
        await self._peers.ask(_run(key), "ended", readers=True)


def _run(key: RunKey) -> bytes:
    return rpc.encode({"fqn": key.fqn, "run": key.run})


_WAIT_SECONDS = 20.0
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_RUNS = 5000


class LiveFeed:
    """Follows all other nodes for the runs that have readers in `tail`."""

    def __init__(self, peers: Peers, tail: Tail, clock: Clock) -> None:
        self._peers = peers
        self._tail = tail
        self._clock = clock
        self._changes = ChangeSignal()
        self._taken: dict[str, int] = {}

    async def run(self) -> None:
        """Follows them until cancelled."""
        self._tail.changed = self._changes.notify
        self._peers.register.on_change(self._changes.notify)
        self._peers.on_change = self._reread
        following: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                changed = self._changes.next
                there = self._peers.register.holders
                gone = [instance for instance in following if instance not in there]
                for instance in gone:
                    following.pop(instance).cancel()
                    self._taken.pop(instance, None)
                if gone:
                    self._tail.missed_all()
                for instance, entry in there.items():
                    if instance not in following:
                        following[instance] = asyncio.ensure_future(self._follow(entry))
                await changed.wait()
        finally:
            for task in following.values():
                task.cancel()

    def _reread(self) -> None:
        """Makes all readers read storage after a node became silent or answers again."""
        self._tail.missed_all()
        self._changes.notify()

    async def _follow(self, entry: NodeEntry) -> None:
        seen: dict[RunKey, int] = {}
        failed = False
        while True:
            if failed or self._peers.is_silent(entry):
                await self._clock.sleep(_PAUSE_SECONDS)
            changed = self._changes.next
            watched = [key for key in self._tail.watched if key != ALL_RUNS][:_MOST_RUNS]
            seen = {key: seen.get(key, -1) for key in watched}
            if not seen and not self._peers.is_silent(entry):
                await changed.wait()
                continue
            asking = asyncio.ensure_future(self._ask(entry, seen))
            changing = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changing.cancel()
                if not asking.done():
                    asking.cancel()
            failed = asking.done() and not asking.cancelled() and not asking.result()

    async def _ask(self, entry: NodeEntry, seen: dict[RunKey, int]) -> bool:
        """Asks once, advances `seen` and wakes readers. Returns whether the node answered."""
        runs = [[*key, start] for key, start in seen.items()]
        # A silent node answers at once, so that it is noticed even without new lines.
        seconds = 0.0 if self._peers.is_silent(entry) else _WAIT_SECONDS
        taken = self._taken.get(entry.instance)
        body = rpc.encode({"runs": runs, "seconds": seconds, "taken": taken})
        try:
            answer = await self._peers.one(entry, body, "wait", seconds + _GRACE_SECONDS)
            keys = list(seen)
            changed = [keys[number] for number in answer.head["runs"]]
            seen |= dict.fromkeys(keys, int(answer.head["end"]))
            self._taken[entry.instance] = int(answer.head.get("taken", 0))
        except (PeerSilent, PeerRefused, KeyError, IndexError, TypeError):
            return False
        for key in changed:
            self._tail.missed(key)
        return True


log = logging.getLogger(__name__)

_LEAVE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_AWAY_TURNS = 3
_TOUCH_SECONDS = 2.0
_MOST_NOTIFIED = 100


@dataclass(frozen=True, slots=True)
class Joining:
    """The data of a process for its entry in the register, and the deletions that it follows."""

    node: str
    deletions: Deletions
    parents: Sequence[str] = ()
    base: int = 0
    files: TakenOver = ()
    start: int = 0
    role: str = ""
    shared: Sequence[str] = ()


class Membership:
    """One process among others. Without a network (`Environment.network`) it is alone."""

    def __init__(self, environment: Environment, every: Settings) -> None:
        settings = every.nodes
        self._environment = environment
        self._clock = environment.clock
        self._settings = settings
        self._every = every
        self.stall_detector = StallDetector(environment.clock)
        self._read: tuple[Deletions, int] | None = None
        """The deletions that were read whole, and how often the process had stood still then."""
        self._reading = asyncio.Lock()
        self._joining: Joining
        self.register: Register | None = None
        self.peers: Peers | None = None
        if environment.network is not None:
            network, seconds = environment.network, settings.timeout_seconds
            self.register = Register(
                environment.store, environment.clock, environment.entropy, network
            )
            self.register.on_removed = self._forget_deletions
            self.peers = Peers(self.register, timeout_seconds=seconds)
        self._joined = False
        self._telling: set[asyncio.Task[Gathered]] = set()

    def report_unfinished(self, key: RunKey, line: UnfinishedLine) -> None:
        """Sends the state of an unfinished line to the nodes that answer, without waiting."""
        if self.peers is None or not self.peers.entries(readers=True):
            return
        if len(self._telling) >= _MOST_NOTIFIED:
            return  # the next state is sent
        body = rpc.encode({"fqn": key.fqn, "run": key.run, "line": line.to_json()})
        task = asyncio.ensure_future(self.peers.ask(body, "unfinished", readers=True))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    @property
    def instance(self) -> str:
        """The ULID of this process in the register; empty if it is alone."""
        return "" if self.register is None else self.register.instance

    @property
    def size(self) -> int:
        """The number of processes in the register when it was read last, with this one."""
        return 1 if self.register is None else 1 + len(self.register.others)

    @property
    def contacts(self) -> Contacts:
        """The connections to the others; only for a node with a network."""
        assert self.register is not None
        return self.register.contacts

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The number of questions to others by outcome."""
        return {} if self.register is None else self.register.contacts.outcomes

    @property
    def refusals(self) -> Mapping[str, int]:
        """The number of refused questions of others by reason."""
        return {} if self.register is None else self.register.contacts.refusals

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes with lines that do not answer this one now."""
        return () if self.peers is None else self.peers.silent()

    def loads(self) -> list[float]:
        """The last reported loads of the other nodes that answer."""
        return [] if self.peers is None else self.peers.loads()

    async def report_load(self, load: float) -> None:
        """Reports this node's load to the others. Raises `Unavailable`."""
        if self.register is not None:
            await self.register.report_load(load)

    @property
    def asks(self) -> bool:
        """Whether it asks other nodes as soon as some exist."""
        return self.peers is not None

    @property
    def shared(self) -> bool:
        """Whether other nodes exist."""
        return bool(self.peers)

    def others(self, own: str, close_seconds: float, deletions: Deletions) -> RunLogPeers:
        """The others, for the run logs of the node `own`."""
        if self.peers is None:
            return NoOtherNodes()
        known = self.peers, deletions, self.current
        return MemberPeers(
            own, *known, self._environment.store, self._clock, close_seconds=close_seconds
        )

    async def current(self, deletions: Deletions) -> None:
        """Reads deletions that this node may have missed; returns at once if it missed none.

        It may have missed some since its start, while it stalled, and while the register
        could not be read. Raises `Unavailable`.
        """
        register = self.register
        if register is None or not self._missed(deletions):
            return

        async def read() -> None:
            async with self._reading:
                if self._missed(deletions):
                    await self._read_deletions(deletions)
                    if self._joined:
                        await register.look()

        await self._environment.answers.in_turn("the deletions", read)

    def _missed(self, deletions: Deletions) -> bool:
        register, away = self.register, _AWAY_TURNS * self._settings.refresh_seconds
        late = self._joined and register is not None and register.age_seconds > away
        read = self._read
        return (
            late
            or read is None
            or read[0] is not deletions
            or read[1] != self.stall_detector.stalls()
        )

    async def _read_deletions(self, deletions: Deletions) -> None:
        stalls = self.stall_detector.stalls()
        await deletions.load()
        self._read = deletions, stalls

    async def try_to_join(
        self, identity: NodeIdentity, journal: Journal, deletions: Deletions
    ) -> None:
        """Joins if the store answers; otherwise `stay` joins. Raises `Forked`, `AwayTooLong`."""
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
        """Joins as a node without lines if the store answers; otherwise `stay` joins."""
        await self._try_to_join(Joining(node, deletions, role=READER))

    async def _try_to_join(self, joining: Joining) -> None:
        self._joining, self._joined = joining, False
        answers = self._environment.answers
        if answers.silent:
            return
        with suppress(Unavailable, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(answers.seconds):
                await self._join()

    async def stay(self, tail: Tail) -> None:
        """Joins if it has not joined yet, then follows the others. Raises `Forked`."""
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
        """Ends all connections. If all lines of the node are `stored`, removes its entry."""
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
                "%s stays in the register, as %s: other nodes wait for it until it has started"
                " and stopped again. `tailrace leases forget-node %s` removes it for good",
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
            await self.stall_detector.beat()
            with suppress(TailraceError):  # readers of lines get the error themselves
                await self.current(self._joining.deletions)

    async def _stay_in_touch(self, peers: Peers) -> None:
        """Finds nodes that do not answer, also while the service is idle.

        Meanwhile the deletions of a node that cannot reach this one are read from the store.
        """
        seconds, read = self._settings.refresh_seconds, self._clock.monotonic()
        while True:
            await self._clock.sleep(min(seconds, _TOUCH_SECONDS))
            await peers.stay_in_touch(_TOUCH_SECONDS)
            if peers.silent() and self._clock.monotonic() - read >= seconds:
                with suppress(TailraceError):  # the register reports that the store is away
                    await self._read_deletions(self._joining.deletions)
                read = self._clock.monotonic()

    async def _join(self) -> None:
        if self.register is None:
            return
        own = self._joining
        twin = await self.register.twin(own.node)
        if twin is not None:
            raise Forked(
                f"the node {own.node} runs at {twin.url} already:"
                " one of the two folders is a copy of the other",
                files=twin.files,
            )
        await self.register.publish(
            *(own.node, own.parents, own.base, own.files, own.start),
            role=own.role,
            shared=own.shared,
        )
        # From now on others notify it of deletions; earlier deletions are in the store.
        await self._read_deletions(own.deletions)
        if own.role != READER:
            await self._note_return(own.node, *own.parents)
        self._joined = True

    def _forget_deletions(self) -> None:
        """Marks deletions as unknown: others sent none while the entry of this node was gone."""
        self._read = None

    async def _note_return(self, *nodes: str) -> None:
        environment = self._environment

        def fresh_id() -> str:
            return ulids.fresh_text(environment.clock, environment.entropy)

        for node in nodes:
            now_ms = environment.clock.now_ms()
            back = await returned(environment.store, node, now_ms=now_ms, fresh_id=fresh_id)
            if back is not None:
                log.warning(
                    "the node %s was let go (tailrace leases forget-node) and is back: the lines"
                    " of its journal are served and stored",
                    node,
                )
