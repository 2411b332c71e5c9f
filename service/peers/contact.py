"""Asking other nodes: every question goes through `Contacts`, and what came of it stays there.

| outcome | the other node | counts as |
| --- | --- | --- |
| `answered` | answered | heard |
| `declined` | answered that it cannot do this now | heard |
| `unknown-question` | is of an older version, and does not know the question | heard |
| `unreadable` | answered what this node cannot read: it is of a newer version | heard |
| `wrong-secret` | has another `nodes.secret` | refusing |
| `another-process` | is another process than the register says | refusing |
| `timed-out` | gave no answer in time: it is frozen, overloaded, or behind a cut | silent |
| `unreachable` | could not be connected to, or broke off | silent |
| `failed` | answered with an error of its own | silent |

A node that is silent or refuses counts as not heard: readers name it, and `/health/ready` and the
log say why until it answers again. A question without an answer in time does not end a refusal: a
busy node refuses late. Questions that a node cannot read, or does not know, are
problems as well, as long as that node runs. All outcomes are counted.

The same for the other direction: `refused` takes note of a question that this node refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from logstore.clock import Clock
from service.peers import messages
from service.peers.messages import Message
from service.peers.transport import Address, AskOutcome, PeerRefused, PeerSilent, Transport

_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0
_REFUSAL_SECONDS: Final = 60.0
_MOST_REFUSALS: Final = 16
_HEARD: Final = frozenset(
    {
        AskOutcome.ANSWERED,
        AskOutcome.DECLINED,
        AskOutcome.UNKNOWN_QUESTION,
        AskOutcome.UNREADABLE,
    }
)
_REFUSING: Final = frozenset({AskOutcome.NOT_ADMITTED, AskOutcome.ANOTHER_PROCESS})
_LASTING: Final = frozenset({AskOutcome.UNKNOWN_QUESTION, AskOutcome.UNREADABLE})
_SAID: Final = {
    AskOutcome.NOT_ADMITTED: "refuses this node, whose nodes.secret is not its own",
    AskOutcome.ANOTHER_PROCESS: "is silent: another process answers in its place",
    AskOutcome.TIMED_OUT: "is silent: it gives no answer in time",
    AskOutcome.UNREACHABLE: "is silent: it cannot be reached",
    AskOutcome.FAILED: "is silent: it answers with errors",
}


@dataclass(slots=True)
class _Unheard:
    """A node that is not heard: since its last question, and until when readers do not ask it."""

    outcome: AskOutcome
    why: str
    until: float = 0.0
    pause_seconds: float = 0.0


@dataclass(slots=True)
class _Asker:
    """Whoever asks with another secret: its host, and when it was refused first and last."""

    host: str
    first: float
    last: float


class Contacts:
    """The one way to ask other nodes, and what came of it, by process (`instance`)."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._unheard: dict[str, _Unheard] = {}
        self._unread: dict[str, tuple[str, AskOutcome]] = {}
        self._asked: dict[str, float] = {}
        self._refused: dict[str, _Asker] = {}
        self.outcomes: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        """Questions that this node refused, by the reason."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a node is not heard any more, and when it is heard again."""

    async def ask(self, address: Address, verb: str, body: bytes, seconds: float) -> Message:
        """The answer of a node. Raises `PeerSilent`, `PeerRefused`."""
        self._asked[address.instance] = self._clock.monotonic()
        try:
            answer = messages.decode(await self._transport.ask(address, verb, body, seconds))
        except (PeerSilent, PeerRefused) as error:
            self._note(address.instance, error.outcome, str(error), verb)
            raise
        self._note(address.instance, AskOutcome.ANSWERED, "", verb)
        return answer

    def _note(self, instance: str, outcome: AskOutcome, why: str, verb: str) -> None:
        self.outcomes[outcome] += 1
        if outcome in _LASTING:
            self._unread[instance] = (verb, outcome)
        unheard = self._unheard.get(instance)
        if outcome in _HEARD:
            if self._unheard.pop(instance, None) is not None:
                self.on_change()
            return
        now = self._clock.monotonic()
        if unheard is None:
            self._unheard[instance] = unheard = _Unheard(outcome, why)
            self.on_change()
        elif now < unheard.until and unheard.outcome is outcome:
            return  # another question in flight met the same
        if not (unheard.outcome in _REFUSING and outcome is AskOutcome.TIMED_OUT):
            unheard.outcome, unheard.why = outcome, why
        unheard.pause_seconds = min(
            max(unheard.pause_seconds * 2, _FIRST_PAUSE_SECONDS), _MAX_PAUSE_SECONDS
        )
        unheard.until = now + unheard.pause_seconds

    @property
    def any_unheard(self) -> bool:
        """Whether some process is not heard."""
        return bool(self._unheard)

    def is_unheard(self, instance: str) -> bool:
        """Whether the last question that the process was asked has no answer."""
        return instance in self._unheard

    def pausing(self, instance: str) -> str | None:
        """Why readers do not ask the process again yet; None if they do."""
        unheard = self._unheard.get(instance)
        if unheard is None or self._clock.monotonic() >= unheard.until:
            return None
        return unheard.why

    def asked_within(self, instance: str, seconds: float) -> bool:
        """Whether the process was asked something a moment ago."""
        asked = self._asked.get(instance)
        return asked is not None and self._clock.monotonic() - asked < seconds

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """Drops what is known of processes that are not in the register any more."""
        there = set(instances)
        for known in (self._unheard, self._unread, self._asked):
            for gone in [instance for instance in known if instance not in there]:
                del known[gone]

    # --- questions of others -----------------------------------------------------------

    def refused(self, asker: str, host: str, reason: str) -> None:
        """Takes note that a question was refused; `asker` is the URL that the other side named."""
        self.refusals[reason] += 1
        if reason != AskOutcome.NOT_ADMITTED:
            return
        now = self._clock.monotonic()
        before = self._refused.pop(asker or host, None)
        self._refused[asker or host] = _Asker(host, before.first if before else now, now)
        while len(self._refused) > _MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]

    def admitted(self, asker: str) -> None:
        """Takes note that a question of this node was let in."""
        if self._refused:
            self._refused.pop(asker, None)

    # --- what is wrong -----------------------------------------------------------------

    def problems(
        self, holders: Iterable[Address], others: Iterable[Address], age: float
    ) -> list[str]:
        """Nodes that are not heard or not understood, as sentences that stay while that is so.

        `age`: so many seconds ago the register was read. Whoever was refused first since then may
        be a node that it does not name yet.
        """
        holding = list(holders)
        found = [
            self._sentence(address) for address in holding if self.is_unheard(address.instance)
        ]
        for address in holding:
            verb, outcome = self._unread.get(address.instance, ("", AskOutcome.ANSWERED))
            if outcome is AskOutcome.UNKNOWN_QUESTION:
                found.append(f"the node {address.node} is of an older version: no question {verb}")
            elif outcome is AskOutcome.UNREADABLE:
                found.append(f"answers of the node {address.node} to {verb} cannot be read here")
        return found + self._refusal_sentences(others, self._clock.monotonic() - age)

    def _sentence(self, address: Address) -> str:
        said = _SAID[self._unheard[address.instance].outcome]
        where = f" ({address.url})" if address.url else ""
        return f"the node {address.node} {said}; its newest lines are not shown{where}"

    def _refusal_sentences(self, others: Iterable[Address], read_at: float) -> list[str]:
        since = self._clock.monotonic() - _REFUSAL_SECONDS
        self._refused = {url: asker for url, asker in self._refused.items() if asker.last >= since}
        names = {address.url: f"the node {address.node}" for address in others if address.url}
        return [
            f"{names.get(url, 'somebody')} at {asker.host} asks this node with another"
            " nodes.secret, and is refused"
            for url, asker in self._refused.items()
            if url in names or asker.first < read_at
        ]
