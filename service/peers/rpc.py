"""Asks one node one question over HTTP; each error names the outcome.

- The node **answers**: bytes.
- It is **silent** (`PeerSilent`): no connection, no answer in time, or an answer that breaks off.
  It may have done the requested work.
- It **refuses** (`PeerRefused`): it has another secret, is another process than the one asked, does
  not know the question, or cannot answer now. It did not do the requested work.

**HTTP.** A question is `POST {url}/internal/{verb}` over pooled connections. The shared secret, or
the certificate that it presents, proves that the asker is a node. If a node refuses the secret
during a rotation, it is asked with the previous one. Its next question uses that one first.

**Messages.** A question or an answer is a head of JSON, followed by parts of bytes:

    length of the head, u32 | head | the parts, one after another

The head has `format` 1, `parts` (the lengths of the parts) and the fields of the question. A reader
of a higher format, or of bytes that make no sense, raises `PeerRefused`.

**Contacts.** Every question goes through `Contacts`, which remembers its outcome:

| outcome | the other node | counts as |
| --- | --- | --- |
| `answered` | answered | heard |
| `declined` | answered that it cannot do this now | heard |
| `unknown-question` | is of an older version, and does not know the question | heard |
| `unreadable` | is of a newer version, and gave an answer that this node cannot read | heard |
| `wrong-secret` | has another `nodes.secret` | refusing |
| `another-process` | is another process than the register says | refusing |
| `timed-out` | gave no answer in time: it is frozen, overloaded, or cut off | silent |
| `unreachable` | could not be connected to, or broke off | silent |
| `failed` | answered with an error of its own | silent |

A node that is silent or refuses counts as unheard: readers name it, and `/health/ready` and the log
give the reason until it answers again. A question without an answer in time does not end a refusal:
a busy node refuses late. Questions that a node cannot read or does not know are problems as well,
as long as that node runs. All outcomes are counted. For the other direction, `Contacts.refused`
records a question that this node refused.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.retry import Backoff

if TYPE_CHECKING:
    import aiohttp


class AskOutcome(StrEnum):
    """The outcome of a question; the docstring of the module explains each."""

    ANSWERED = "answered"
    DECLINED = "declined"
    UNKNOWN_QUESTION = "unknown-question"
    UNREADABLE = "unreadable"
    NOT_ADMITTED = "wrong-secret"
    ANOTHER_PROCESS = "another-process"
    TIMED_OUT = "timed-out"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


class PeerSilent(Unavailable):
    """A node gave no answer."""

    def __init__(self, message: str, outcome: AskOutcome = AskOutcome.UNREACHABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


class PeerRefused(Unavailable):
    """A node refused the question."""

    def __init__(self, message: str, outcome: AskOutcome = AskOutcome.DECLINED) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The address of a process of a node; `instance` is the ULID that it took at its start."""

    node: str
    instance: str
    url: str


class Transport(Protocol):
    """Sends questions to other nodes."""

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> bytes:
        """Returns the answer to a question. Raises `PeerSilent`, `PeerRefused`."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Network:
    """The transport to other nodes, and the URL under which they reach this one."""

    url: str
    transport: Transport


PATH: Final = "/internal/"
INSTANCE: Final = "tailrace-instance"
ASKER: Final = "tailrace-asker"
"""The header with the URL at which the asking node is asked."""
_PER_NODE = 64
_OK = 200
_SHOWN = 300
_ENDED = 500
_OUTCOMES: Final = {401: AskOutcome.NOT_ADMITTED, 403: AskOutcome.NOT_ADMITTED}
_KINDS: Final[Mapping[str, AskOutcome]] = {
    "another-process": AskOutcome.ANOTHER_PROCESS,
    "not-found": AskOutcome.UNKNOWN_QUESTION,
}


class HttpTransport:
    """The HTTP client of one node. Create it inside the running loop, and `close` it."""

    def __init__(
        self,
        secret: str,
        tls: ssl.SSLContext | None = None,
        *,
        previous_secret: str = "",
        own_url: str = "",
    ) -> None:
        """`tls` has its certificate and the trusted ones; None for the defaults of TLS."""
        self._secrets = [one for one in (secret, previous_secret) if one]
        self._taken: dict[str, str] = {}
        """For each node that refused the secret, which one it took."""
        self._headers = {ASKER: own_url} if own_url else {}
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> bytes:
        """Returns the body of a reply with status 200. Raises `PeerSilent`, `PeerRefused`."""
        if not address.url:
            raise PeerSilent(f"{address.node} has left no address")
        if self._closed:
            raise PeerSilent(f"{address.node} is not asked any more: this node is stopping")
        import aiohttp  # only here: a tenth of a start, and most nodes are alone on their store

        where = f"{address.node} at {address.url}"
        try:
            async with asyncio.timeout(seconds):
                status, answer = await self._ask(address, verb, body)
        except TimeoutError as error:
            why = f"{where} is silent: no answer within {seconds:g} s"
            raise PeerSilent(why, AskOutcome.TIMED_OUT) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise PeerSilent(f"{where} is silent: {why}") from error
        if status == _OK:
            return answer
        said = answer[:_SHOWN].decode(errors="replace")
        sentence = f"{where} answered {status}: {said}"
        if status >= _ENDED:
            raise PeerSilent(sentence, AskOutcome.FAILED)
        raise PeerRefused(sentence, _outcome(status, answer))

    async def _ask(self, address: NodeAddress, verb: str, body: bytes) -> tuple[int, bytes]:
        """Returns status and body of the reply to the first secret that is accepted."""
        first = self._taken.get(address.url)
        secrets = sorted(self._secrets, key=lambda one: one != first) or [""]
        status, answer = 0, b""
        for secret in secrets:
            headers = {INSTANCE: address.instance}
            if secret:
                headers["authorization"] = f"Bearer {secret}"
            async with self._open().post(
                f"{address.url}{PATH}{verb}", data=body, headers=headers, allow_redirects=False
            ) as reply:
                status, answer = reply.status, await reply.read()
            if status not in _OUTCOMES:
                if len(secrets) > 1:
                    self._taken[address.url] = secret
                break
        return status, answer

    async def close(self) -> None:
        """Ends all connections; no more questions are sent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=_PER_NODE, ssl=self._tls),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),  # each question has a deadline
                auto_decompress=False,
            )
        return self._session


def _outcome(status: int, answer: bytes) -> AskOutcome:
    """The reason of a refusal, from the status and the problem document of the reply."""
    if status in _OUTCOMES:
        return _OUTCOMES[status]
    problem: Any = None
    with suppress(ValueError):
        problem = orjson.loads(answer)
    kind = str(problem.get("type", "")) if isinstance(problem, dict) else ""
    return _KINDS.get(kind.rpartition("/")[2].rpartition(":")[2], AskOutcome.DECLINED)


FORMAT = 1
_LENGTH = struct.Struct("<I")


class Message(NamedTuple):
    """A question or an answer."""

    head: Mapping[str, Any]
    parts: Sequence[bytes] = ()


def encode(head: Mapping[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """The bytes of a message."""
    value = orjson.dumps({**head, "format": FORMAT, "parts": [len(part) for part in parts]})
    return b"".join([_LENGTH.pack(len(value)), value, *parts])


def decode(body: bytes) -> Message:
    """Decodes a message. Raises `PeerRefused`."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        head = orjson.loads(body[_LENGTH.size : at])
        if head["format"] > FORMAT:
            raise PeerRefused(
                f"a message of format {head['format']}: this node is older", AskOutcome.UNREADABLE
            )
        parts = []
        for size in head["parts"]:
            parts.append(body[at : at + size])
            at += size
        if at != len(body):
            raise ValueError(f"{len(body)} bytes instead of {at}")
        return Message(head, parts)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise PeerRefused(f"not a message between nodes: {error}", AskOutcome.UNREADABLE) from error


_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0
_REFUSAL_SECONDS: Final = 60.0
_MOST_REFUSALS: Final = 16
_HEARD: Final = frozenset(
    {AskOutcome.ANSWERED, AskOutcome.DECLINED, AskOutcome.UNKNOWN_QUESTION, AskOutcome.UNREADABLE}
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
    """A silent or refusing node; readers do not ask it until `until`."""

    outcome: AskOutcome
    why: str
    pauses: Backoff
    until: float = 0.0


@dataclass(slots=True)
class _Asker:
    """An asker with another secret: its host, and the times of its first and last refusal."""

    host: str
    first: float
    last: float


class Contacts:
    """Sends all questions to other nodes, and remembers their outcomes by process (`instance`)."""

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

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> Message:
        """Returns the answer of a node. Raises `PeerSilent`, `PeerRefused`."""
        self._asked[address.instance] = self._clock.monotonic()
        try:
            answer = decode(await self._transport.ask(address, verb, body, seconds))
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
            self._unheard[instance] = unheard = _Unheard(
                outcome, why, Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
            )
            self.on_change()
        elif now < unheard.until and unheard.outcome is outcome:
            return  # another question in flight had the same outcome
        if not (unheard.outcome in _REFUSING and outcome is AskOutcome.TIMED_OUT):
            unheard.outcome, unheard.why = outcome, why
        unheard.until = now + unheard.pauses.next()

    @property
    def any_unheard(self) -> bool:
        """Whether any process is silent or refuses."""
        return bool(self._unheard)

    def is_unheard(self, instance: str) -> bool:
        """Whether the last question to the process has no answer."""
        return instance in self._unheard

    def pausing(self, instance: str) -> str | None:
        """The reason why readers do not ask the process again yet; None if they do."""
        unheard = self._unheard.get(instance)
        if unheard is None or self._clock.monotonic() >= unheard.until:
            return None
        return unheard.why

    def asked_within(self, instance: str, seconds: float) -> bool:
        """Whether the process was asked within the last `seconds`."""
        asked = self._asked.get(instance)
        return asked is not None and self._clock.monotonic() - asked < seconds

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """Drops the state of processes that are no longer in the register."""
        there = set(instances)
        for known in (self._unheard, self._unread, self._asked):
            for gone in [instance for instance in known if instance not in there]:
                del known[gone]

    # --- questions of others -----------------------------------------------------------

    def refused(self, asker: str, host: str, reason: str) -> None:
        """Records a refused question; `asker` is the URL that the other side sent."""
        self.refusals[reason] += 1
        if reason != AskOutcome.NOT_ADMITTED:
            return
        now = self._clock.monotonic()
        before = self._refused.pop(asker or host, None)
        self._refused[asker or host] = _Asker(host, before.first if before else now, now)
        while len(self._refused) > _MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]

    def admitted(self, asker: str) -> None:
        """Records that a question of this asker was admitted."""
        if self._refused:
            self._refused.pop(asker, None)

    # --- what is wrong -----------------------------------------------------------------

    def problems(
        self, holders: Iterable[NodeAddress], others: Iterable[NodeAddress], age: float
    ) -> list[str]:
        """Sentences about nodes that are silent, refuse, or have another version.

        A sentence stays the same as long as its problem lasts. `age` is the number of seconds since
        the register was read. An asker that was first refused after that read may be a node that
        the register does not name yet.
        """
        holding = list(holders)
        found = [
            self._sentence(address) for address in holding if self.is_unheard(address.instance)
        ]
        for address in holding:
            verb, outcome = self._unread.get(address.instance, ("", AskOutcome.ANSWERED))
            if outcome is AskOutcome.UNKNOWN_QUESTION:
                found.append(
                    f"the node {address.node} is of an older version: the question"
                    f" {verb} is unknown"
                )
            elif outcome is AskOutcome.UNREADABLE:
                found.append(f"answers of the node {address.node} to {verb} cannot be read here")
        return found + self._refusal_sentences(others, self._clock.monotonic() - age)

    def _sentence(self, address: NodeAddress) -> str:
        said = _SAID[self._unheard[address.instance].outcome]
        where = f" ({address.url})" if address.url else ""
        return f"the node {address.node} {said}; its newest lines are missing{where}"

    def _refusal_sentences(self, others: Iterable[NodeAddress], read_at: float) -> list[str]:
        since = self._clock.monotonic() - _REFUSAL_SECONDS
        self._refused = {url: asker for url, asker in self._refused.items() if asker.last >= since}
        names = {address.url: f"the node {address.node}" for address in others if address.url}
        return [
            f"{names.get(url, 'somebody')} at {asker.host} asks this node with another"
            " nodes.secret, and is refused"
            for url, asker in self._refused.items()
            if url in names or asker.first < read_at
        ]
