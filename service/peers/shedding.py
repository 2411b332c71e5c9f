"""Load shedding: an overloaded node refuses batches that their clients will send to another one.

A node refuses batches that carry an id or ask for a durability, since their clients send a batch
again until it is stored. Other clients would lose the batch, so theirs are accepted as long as the
node has room. A node sheds only while

- its load is 1 or more, or was so and has not fallen below 0.8 since,
- another node that answers has reported a load below 1, so that clients have an alternative,
- it holds one of the slots in `coordination/shedding.json`. Their number is a third of the number
  of nodes. A slot lasts 15 seconds of the store's time and is renewed every five seconds.

So at most a third of the nodes shed at once, and never the last one: the redirected clients do not
overload the nodes that remain. Without the store no node gets a slot, and no node sheds for longer
than its slot lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from service.runtime.environment import Environment
from service.settings import NodesSettings
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.cas import Document, RetryBudget, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import Damaged, TailraceError, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked

FORMAT: Final = 1
SLOT_MS: Final = 15_000
_LOOK_SECONDS: Final = 1.0
_RENEW_SECONDS: Final = 5.0
_OVER: Final = 1.0
_WELL: Final = 0.8
_NEWEST_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Slots:
    """The end of each slot, in ms of the store's time, by instance."""

    ulid: str
    until_ms: Mapping[str, int]


def encode_slots(slots: Slots) -> bytes:
    """The bytes of the slots."""
    return encode_checked({"format": FORMAT, "ulid": slots.ulid, "until_ms": dict(slots.until_ms)})


def decode_slots(body: bytes) -> Slots:
    """Decodes the slots. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{keys.SHEDDING} has format {value['format']}")
        return Slots(str(value["ulid"]), {str(i): int(t) for i, t in value["until_ms"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{keys.SHEDDING} does not hold slots: {error}") from error


def _decode_or_empty(body: bytes) -> Slots:
    """Decodes the slots; none if damaged, since holders ask again for a slot within seconds."""
    try:
        return decode_slots(body)
    except UnsupportedVersion:
        raise
    except Damaged:
        return Slots("", {})


class SheddingPeers(Protocol):
    """The loads of the other nodes, and reports to them."""

    @property
    def instance(self) -> str:
        """The ULID of this process; empty if it is alone."""
        ...

    def loads(self) -> Collection[float]:
        """The last reported loads of the other nodes that answer."""
        ...

    async def report_load(self, load: float) -> None:
        """Reports this node's load to the others. Raises `TailraceError`."""
        ...


class Shedding:
    """Decides every second whether this node sheds.

    `load` returns the load; 1 is as much as the node can take. Its argument is the delay of the
    loop in seconds, which is the time that a request waits for the processor.
    """

    def __init__(
        self,
        others: SheddingPeers,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        time: StoreTime,
        load: Callable[[float], float],
    ) -> None:
        self._others = others
        self._clock = clock
        self._entropy = entropy
        self._time = time
        self._measure = load
        self._slots = Document(store, keys.SHEDDING, _decode_or_empty, encode_slots)
        self._until_ms = 0
        self._renewed = -_RENEW_SECONDS
        self.load = 0.0

    @property
    def active(self) -> bool:
        """Whether the node sheds now."""
        return self._until_ms > 0 and self._time.at_most_ms() < self._until_ms

    async def run(self) -> None:
        """Decides again and again until cancelled."""
        while True:
            due = self._clock.monotonic() + _LOOK_SECONDS
            await self._clock.sleep(_LOOK_SECONDS)
            await self.look(max(0.0, self._clock.monotonic() - due))

    async def look(self, late_seconds: float) -> None:
        """Measures the load, and takes, renews or releases a slot."""
        self.load = self._measure(late_seconds)
        if not self._others.loads():
            self._until_ms = 0
            return
        wanted = self.load >= (_WELL if self._until_ms else _OVER)
        try:
            await self._others.report_load(self.load)
            if wanted and self._clock.monotonic() - self._renewed >= _RENEW_SECONDS:
                await self._take()
            elif not wanted and self._until_ms:
                await self._give_back()
        except TailraceError:  # the slot ends by itself
            return

    async def _take(self) -> None:
        """Takes or renews a slot, if one is free and another node has a load below 1."""
        own, loads = self._others.instance, self._others.loads()
        most = (1 + len(loads)) // 3
        room = any(load < _OVER for load in loads)
        until = 0

        async def change(found: Slots | None) -> Slots | None:
            nonlocal until
            now = self._time.at_least_ms()
            held = {} if found is None else found.until_ms
            held = {who: end for who, end in held.items() if end > now and who != own}
            until = now + SLOT_MS if room and len(held) < most else 0
            if not until and (found is None or own not in found.until_ms):
                return None
            return self._made(held | ({own: until} if until else {}))

        self._renewed = self._clock.monotonic()
        await swap(self._slots, change, budget=self._budget())
        self._until_ms = until

    async def _give_back(self) -> None:
        own = self._others.instance
        self._until_ms = 0
        self._renewed = -_RENEW_SECONDS

        async def change(found: Slots | None) -> Slots | None:
            if found is None or own not in found.until_ms:
                return None
            return self._made({who: end for who, end in found.until_ms.items() if who != own})

        await swap(self._slots, change, budget=self._budget())

    def _made(self, until_ms: Mapping[str, int]) -> Slots:
        return Slots(ulids.fresh_text(self._clock, self._entropy), until_ms)

    def _budget(self) -> RetryBudget:
        return RetryBudget(self._clock, self._entropy, refusals=5)


def open_shedding(
    fullness: Callable[[], float],
    lag_seconds: Callable[[], float],
    others: SheddingPeers,
    environment: Environment,
    settings: NodesSettings,
) -> Shedding:
    """The shedding of a node: the share of its journal in use, and the lag of its shipper."""
    load = Load(settings, fullness=fullness, lag_seconds=lag_seconds)
    time = StoreTime(environment.clock, environment.newest_date)
    return Shedding(others, environment.store, environment.clock, environment.entropy, time, load)


class Load:
    """The load of a node as a share of its capacity: the largest of three shares."""

    def __init__(
        self,
        settings: NodesSettings,
        *,
        fullness: Callable[[], float],
        lag_seconds: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._fullness = fullness
        self._lag_seconds = lag_seconds
        self._late = 0.0

    def __call__(self, late_seconds: float) -> float:
        """The load after a second in which the loop was late by `late_seconds`."""
        self._late += (late_seconds - self._late) * _NEWEST_SHARE
        most = self._settings
        shares = [
            (self._fullness(), most.shed_journal_share),
            (self._lag_seconds(), most.shed_lag_seconds),
            (self._late, most.shed_delay_seconds),
        ]
        return max([value / limit for value, limit in shares if limit], default=0.0)
