"""The services: targets, their addresses, the place in use, the token, and one request.

| target | stands for |
| --- | --- |
| `host:port`, `host` | `http://host:port`; the port is 8790 if none is given |
| `http://host:port`, `https://host/path` | each address of the host; the path is one of a proxy |
| `srv+http://name`, `srv+https://name` | each address of each host of its SRV records |

All targets have the same store. A host whose name has several addresses counts as several places.
The `Host` header and the name that a certificate must have are the host's, not the address.

`Pool` chooses the place for a request, and `perform` makes a request once.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from tailrace.forwarder.model import Kind
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import read_token
from tailrace_client import errors
from tailrace_client.errors import Unavailable
from tailrace_client.reading import has_batch
from tailrace_client.run import (
    ATTRIBUTES,
    RECORDS,
    TEXT,
    close_run,
    post_in_form,
    receipt_of,
    run_path,
)
from tailrace_client.service import Answer, Service
from tailrace_client.system import RetryPause

DEFAULT_PORT = 8790
_PORTS = {"http": 80, "https": 443}
_SRV = "srv+"
_HINT = "Use host:port, http://host:port, https://host or srv+http://name."
_LOCAL = "localhost"
_BITS = 32


class DeliveryTarget(NamedTuple):
    """A service as it is named: with `srv`, `host` is the name of SRV records."""

    scheme: str
    host: str
    port: int
    path: str
    srv: bool


class TargetAddress(NamedTuple):
    """One place to connect to; without `ip`, wherever the url's host leads."""

    url: str
    ip: str
    port: int


class ServiceRecord(NamedTuple):
    """One SRV record."""

    priority: int
    weight: int
    host: str
    port: int


class Resolver(Protocol):
    """Looks up names. Raises `OSError` if that is not possible now."""

    def addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host, each once."""
        ...

    def service_records(self, name: str) -> Sequence[ServiceRecord]:
        """The SRV records of a name; none if it has none."""
        ...


def parse_target(text: str) -> DeliveryTarget:
    """Raises `InvalidInput` for a text that is no target."""
    with_scheme = text if "://" in text else f"http://{text}"
    scheme, _, _ = with_scheme.partition("://")
    srv = scheme.startswith(_SRV)
    try:
        parts = urlsplit(with_scheme.removeprefix(_SRV))
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a target: {error}", hint=_HINT) from None
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment:
        raise InvalidInput(f"{text!r} is not a target", hint=_HINT)
    if "@" in parts.netloc:
        raise InvalidInput("a target must not contain a user or password", hint="Use `token_file`.")
    if srv and port is not None:
        raise InvalidInput(
            f"{text!r} has a port", hint="Leave out the port: SRV records contain it."
        )
    if port is None:
        port = _PORTS[parts.scheme] if "://" in text else DEFAULT_PORT
    return DeliveryTarget(parts.scheme, host, port, parts.path.rstrip("/"), srv)


def addresses_of(
    target: DeliveryTarget, resolver: Resolver, dice: Entropy
) -> Iterator[TargetAddress]:
    """Returns the present addresses of a target, in the order in which to try. Raises `OSError`."""
    if not target.srv:
        yield from _of_host(target, target.host, target.port, resolver, dice)
        return
    records = resolver.service_records(target.host)
    if not records:
        raise OSError(f"{target.host} has no SRV records")
    for record in sorted(records, key=lambda one: _drawn(one, dice)):
        yield from _of_host(target, record.host, record.port, resolver, dice)


def _of_host(
    target: DeliveryTarget, host: str, port: int, resolver: Resolver, dice: Entropy
) -> Iterator[TargetAddress]:
    shown = f"[{host}]" if ":" in host else host
    url = f"{target.scheme}://{shown}:{port}{target.path}"
    found = list(resolver.addresses(host))
    if not found:
        raise OSError(f"{host} has no addresses")
    if host == _LOCAL:  # the same machine, by one protocol or the other
        yield TargetAddress(url, "", port)
        return
    for ip in sorted(found, key=lambda _: dice.getrandbits(_BITS)):
        yield TargetAddress(url, ip, port)


def _drawn(record: ServiceRecord, dice: Entropy) -> tuple[int, float]:
    """Lower priorities first; within one, chance in proportion to the weights (RFC 2782)."""
    part = (dice.getrandbits(_BITS) + 1) / (1 << _BITS)
    return record.priority, -math.log(part) / max(record.weight, 0.01)


class SystemResolver:
    """The machine's resolver; SRV records by dnspython, since the standard library has none.

    `nameserver` is a server to ask for SRV records instead of the machine's: address and port.
    """

    def __init__(self, nameserver: tuple[str, int] | None = None) -> None:
        self._nameserver = nameserver

    def addresses(self, host: str) -> Sequence[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def service_records(self, name: str) -> Sequence[ServiceRecord]:
        import dns.exception  # 4 MB, which only SRV needs
        import dns.resolver

        try:
            resolver = dns.resolver.Resolver(configure=self._nameserver is None)
            if self._nameserver is not None:
                resolver.nameservers, resolver.port = [self._nameserver[0]], self._nameserver[1]
            answer = resolver.resolve(name, "SRV")
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, ValueError) as error:
            raise OSError(f"SRV records of {name}: {str(error) or type(error).__name__}") from error
        return [
            ServiceRecord(
                one.priority, one.weight, one.target.to_text(omit_final_dot=True), one.port
            )
            for one in answer
        ]


# The place in use: one of several, until it fails; then the next that may be asked.
#
# The order is drawn once. A place that fails rests for a pause that doubles with each failure, and
# at least as long as it asked for; meanwhile the others are asked. Names are looked up when the
# first request is made, and again after each failure, so that a service that moved is found. While
# names cannot be looked up, the places that were known before stay.
#
# For several threads.


@dataclass(eq=False, slots=True)
class TargetPlace:
    """A service at one address, and how it fared."""

    address: TargetAddress
    service: Service
    backoff: RetryPause
    rests_until: float = 0.0
    trouble: str = ""
    """What was said about it, until it works again."""
    lack: str = ""
    """What was said that it does not have."""


@dataclass(slots=True)
class _Named:
    """A target, and the addresses that were found for it last."""

    target: DeliveryTarget
    addresses: list[TargetAddress] = field(default_factory=list)


class Pool:
    """The places of all targets.

    `connect` makes the service of an address, `backoff` the pauses of a place. `say` takes a
    sentence when a place fails first, and when it works again.
    """

    def __init__(
        self,
        targets: Sequence[DeliveryTarget],
        *,
        connect: Callable[[TargetAddress], Service],
        backoff: Callable[[], RetryPause],
        resolver: Resolver,
        clock: Clock,
        dice: Entropy,
        say: Callable[[str], None],
    ) -> None:
        self._named = [
            _Named(target) for target in sorted(targets, key=lambda _: dice.getrandbits(_BITS))
        ]
        self._connect = connect
        self._new_backoff = backoff
        self._resolver = resolver
        self._clock = clock
        self._dice = dice
        self._say = say
        self._lock = threading.Lock()
        self._places: list[TargetPlace] = []
        self._at = 0
        self._look_up = True
        self._lookup_backoff = backoff()
        self._lookup_rests_until = 0.0
        self._lookup_trouble: dict[str, str] = {}
        self.failovers = 0
        self.lookup_failures = 0

    def pick(self) -> tuple[TargetPlace | None, float]:
        """The place to ask now; or None, and seconds until there may be one."""
        with self._lock:
            if self._look_up:
                self._resolve()
            now = self._clock.monotonic()
            count = len(self._places)
            for step in range(count):
                place = self._places[(self._at + step) % count]
                if place.rests_until <= now:
                    self.failovers += step > 0
                    self._at = (self._at + step) % count
                    return place, 0.0
            if not count:
                self._look_up = True
                return None, max(self._lookup_rests_until - now, 0.0)
            return None, min(place.rests_until for place in self._places) - now

    def worked(self, place: TargetPlace) -> None:
        """The place answered."""
        with self._lock:
            place.backoff.reset()
            place.rests_until = 0.0
            trouble, place.trouble = place.trouble, ""
        if trouble:
            self._say(f"delivery to {_shown(place.address)} works again")

    def failed(self, place: TargetPlace, reason: str, retry_after: float | None = None) -> None:
        """The place did not answer, or asked for a pause of `retry_after` seconds."""
        with self._lock:
            now = self._clock.monotonic()
            if place.rests_until <= now:  # else another thread's request has said so already
                place.rests_until = now + place.backoff.pause(retry_after)
            elif retry_after is not None:
                place.rests_until = max(place.rests_until, now + retry_after)
            self._look_up = True
            known, place.trouble = place.trouble, reason
        if known != reason:
            self._say(f"delivery to {_shown(place.address)} fails: {reason}")

    def problems(self) -> list[str]:
        """The places that fail and the names that cannot be looked up, as sentences."""
        with self._lock:
            fail = [
                f"delivery to {_shown(place.address)} fails: {place.trouble}"
                for place in self._places
                if place.trouble
            ]
            hosts = sorted(self._lookup_trouble.items())
            return fail + [f"{host} cannot be looked up: {reason}" for host, reason in hosts]

    @property
    def delivers(self) -> bool:
        """Whether a place is left that does not fail; also before the first request."""
        with self._lock:
            return not self._places or not all(place.trouble for place in self._places)

    def note(self, place: TargetPlace, lack: str) -> None:
        """Says what the place does not have, once for each place."""
        with self._lock:
            known, place.lack = place.lack, lack
        if known != lack:
            self._say(f"{_shown(place.address)} {lack}")

    def skip(self, place: TargetPlace) -> None:
        """Another place is to be asked next, if there is one; nothing is wrong with this one."""
        with self._lock:
            if self._places and self._places[self._at] is place and len(self._places) > 1:
                self._at = (self._at + 1) % len(self._places)
                self.failovers += 1

    def renew(self) -> None:
        """Makes all services anew, for another token."""
        with self._lock:
            for place in self._places:
                place.service = self._connect(place.address)
                place.rests_until = 0.0

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        with self._lock:
            for place in self._places:
                place.service.close()

    def _resolve(self) -> None:
        """Looks names up again; places that are still there keep their order and their state."""
        now = self._clock.monotonic()
        if now < self._lookup_rests_until:
            return
        self._look_up = False
        for named in self._named:
            try:
                named.addresses = list(addresses_of(named.target, self._resolver, self._dice))
                self._lookup_trouble.pop(named.target.host, None)
            except OSError as error:
                self._not_found(named.target.host, error, now)
        if not self._lookup_trouble:
            self._lookup_backoff.reset()
        wanted = dict.fromkeys(one for named in self._named for one in named.addresses)
        current = self._places[self._at] if self._places else None
        kept = [place for place in self._places if place.address in wanted]
        for place in self._places:
            if place.address not in wanted:
                place.service.close()
        known = {place.address for place in kept}
        new = [
            TargetPlace(address, self._connect(address), self._new_backoff())
            for address in wanted
            if address not in known
        ]
        self._places = [*kept, *new]
        self._at = self._places.index(current) if current in self._places else 0

    def _not_found(self, host: str, error: OSError, now: float) -> None:
        self.lookup_failures += 1
        self._look_up = True
        self._lookup_rests_until = now + self._lookup_backoff.pause()
        reason = str(error.strerror or error)
        if self._lookup_trouble.get(host) != reason:
            self._lookup_trouble[host] = reason
            self._say(f"{host} cannot be looked up: {reason}")


def _shown(address: TargetAddress) -> str:
    return (
        f"{address.url} ({address.ip})"
        if address.ip not in ("", urlsplit(address.url).hostname)
        else address.url
    )


# The token of the services: given, or read from a file that may be replaced during the run.


_FIELD: Final = "token_file"


class Token:
    """`current` is the token; None if there is none. Raises `InvalidInput` for a bad file."""

    def __init__(self, token: str = "", *, file: str = "") -> None:
        self._file = file
        self._lock = threading.Lock()
        self.current = (read_token(file, field=_FIELD) if file else token) or None

    def renew(self) -> bool:
        """Reads the file again; whether it has another token now."""
        if not self._file:
            return False
        with self._lock:
            try:
                found = read_token(self._file, field=_FIELD)
            except InvalidInput:  # it is being replaced: the old one goes on until then
                return False
            before, self.current = self.current, found
            return found != before


# Requests to the delivery, and their verdicts.
#
# A verdict is definite. While the service is away, refuses for now or does not know the token, no
# verdict is given, and the request is made again.
#
#   | kind | the service … | the engine … |
#   | --- | --- | --- |
#   | `acknowledged` | stored the batch; `duplicate`: had it already | moves the checkpoint |
#   | `deleted` | deleted the run, up to this id | drops it; if read since, sends `next_batch` |
#   | `conflict` | has other bytes under this id | stops the file with an alarm; tries later |
#   | `refused` | does not take this body | stops the file with an alarm; tries later |
#   | `renew` | refuses the id's time, and the run lacks the batch | sends it under a new id |
#   | `present`, `missing` | answered whether the run has a batch | as after a crash |
#   | `closed` | closed the run | |


VerdictKind = Literal[
    "acknowledged", "deleted", "conflict", "refused", "renew", "present", "missing", "closed"
]


@dataclass(frozen=True, slots=True)
class Shipment:
    """A batch of a file, to be sent under its id."""

    file: str
    fqn: str
    run: str
    batch: str
    body: bytes
    kind: Kind
    attributes: str = ""
    """`Tailrace-Attributes`, if it is sent."""
    given: bool = False
    """The service gave its id, after a deletion."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a run has a batch."""

    file: str
    fqn: str
    run: str
    batch: str


@dataclass(frozen=True, slots=True)
class CloseRun:
    """A run that is to be closed after all that was submitted for its file."""

    file: str
    fqn: str
    run: str
    outcome: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    """When the run began and ended, if its start was reported."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a request about `batch`, which is empty for the closing of a run.

    `reason` also says what a service that acknowledged lacks. `service_ms` is the service's clock,
    if it refused the id and reported its time. `moment_ms` is the time of the run's deletion by the
    client's `system.steady_ms`, and `next_batch` the id for lines read since; a service of an
    earlier version sends neither.
    """

    kind: VerdictKind
    batch: str = ""
    duplicate: bool = False
    reason: str = ""
    service_ms: int | None = None
    moment_ms: int | None = None
    next_batch: str = ""


Task = Shipment | Question | CloseRun


# One request about a batch or a run, to one service, once.
#
#   | answer | meaning |
#   | --- | --- |
#   | 200, also as a duplicate | `acknowledged` |
#   | 415 to lines with `Tailrace-Attributes` | they go as records, at once |
#   | no answer, 408, 425, 429, 502, 503, 504, 507 | `Again`: this place has to rest |
#   | another 5xx | `Again`: this request has to rest; others may go |
#   | 401, 403, 404, 421, a redirect | `Again`: the token or the address is wrong; it is reported |
#   | another refusal that is not the service's own (a proxy's) | the same |
#   | `batch-too-old`, `batch-from-the-future` | ask the run for it: `acknowledged`, or `renew` |
#   | `batch-from-the-future` to an id from a service | `Again`: the node knows of no deletion |
#   | `run-deleted`, `batch-conflict`, any other refusal | `deleted`, `conflict`, `refused` |


_TYPES = {"text/plain": TEXT, "application/x-ndjson": RECORDS}
_OTHER_ID = (errors.BatchTooOld, errors.BatchFromTheFuture)
_AS_RECORDS = (
    f"does not know {ATTRIBUTES}, or a proxy removes it: lines are sent as records, at a higher"
    f" cost; update the service"
)
_PLACE = frozenset({0, 408, 425, 429, 502, 503, 504, 507})


class Again(Exception):
    """The request has to be made again, at another place or later.

    `of_place`: nothing is asked of this place for a while. `token`: it was refused.
    """

    def __init__(self, error: errors.TailraceError) -> None:
        super().__init__(str(error))
        self.retry_after = error.retry_after
        self.token = isinstance(error, errors.NotAuthorized)
        self.of_place = not isinstance(error, Unavailable) or error.status in _PLACE


def perform(
    task: Task,
    service: Service,
    *,
    durability: str = "",
    encode: Callable[[bytes], tuple[bytes, str]] = lambda body: (body, ""),
) -> Verdict:
    """Makes the request. Raises `Again`.

    `encode` compresses a body and names the `Content-Encoding`. Without `durability`, the service's
    setting says what an acknowledgement means.
    """
    try:
        if isinstance(task, Shipment):
            return _ship(task, service, durability, encode)
        if isinstance(task, Question):
            there = has_batch(service, run_path(task.fqn, task.run), task.batch)
            return Verdict("present" if there else "missing", task.batch)
        return _close(task, service)
    except (Unavailable, errors.NotAuthorized, errors.NotFound, errors.Redirected) as error:
        raise Again(error) from error
    except errors.TailraceError as error:
        if isinstance(task, Question) or (error.status and not error.type):
            raise Again(error) from error
        batch = task.batch if isinstance(task, Shipment) else ""
        return Verdict("refused", batch, reason=str(error))


def _ship(
    task: Shipment, service: Service, durability: str, encode: Callable[[bytes], tuple[bytes, str]]
) -> Verdict:
    path = run_path(task.fqn, task.run)
    batched = {"Tailrace-Batch": task.batch}
    if durability:
        batched["Tailrace-Durability"] = durability

    def post(body: bytes, headers: Mapping[str, str]) -> Answer:
        encoded, encoding = encode(body)
        more = {"Content-Encoding": encoding} if encoding else {}
        return service.request("POST", path, encoded, {**headers, **batched, **more})

    try:
        answer, as_records = post_in_form(post, task.body, _TYPES[task.kind], task.attributes)
        receipt = receipt_of(answer)
    except errors.RunDeleted as error:
        return Verdict(
            "deleted",
            task.batch,
            reason=str(error),
            service_ms=error.service_ms,
            moment_ms=error.moment_ms,
            next_batch=error.next_batch or "",
        )
    except errors.BatchConflict as error:
        return Verdict("conflict", task.batch, reason=str(error))
    except _OTHER_ID as error:
        if task.given and isinstance(error, errors.BatchFromTheFuture):
            raise Again(error) from error
        if has_batch(service, path, task.batch):
            return Verdict("acknowledged", task.batch, duplicate=True)
        return Verdict("renew", task.batch, reason=str(error), service_ms=error.service_ms)
    duplicate = receipt is not None and receipt.duplicate
    return Verdict("acknowledged", task.batch, duplicate, _AS_RECORDS if as_records else "")


def _close(task: CloseRun, service: Service) -> Verdict:
    try:
        close_run(service, task.fqn, task.run, task.outcome, task.started_ms, task.ended_ms)
    except errors.NotFound as error:
        if error.type != "not-found":
            raise
        return Verdict("closed", reason="there is no such run")
    return Verdict("closed")
