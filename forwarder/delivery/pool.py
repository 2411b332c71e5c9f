"""Which of several places is used now: one, until it fails; then the next that may be asked.

The order is drawn once. Whoever fails rests for a pause that doubles with each failure, and at
least as long as it asked for; meanwhile the others are asked. Names are looked up when the
first request is made, and again after each failure, so that a service that moved is found. While
names cannot be looked up, the places that were known before stay.

For several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from forwarder.delivery.targets import Address, Resolver, Target, addresses_of
from logstore.clock import Clock, Entropy
from tailrace_client.retry import Backoff
from tailrace_client.service import Service

_BITS = 32


@dataclass(eq=False, slots=True)
class Place:
    """A service at one address, and how it fared."""

    address: Address
    service: Service
    backoff: Backoff
    rests_until: float = 0.0
    trouble: str = ""
    """What was said about it, until it works again."""
    lack: str = ""
    """What was said that it does not have."""


@dataclass(slots=True)
class _Named:
    """A target, and the addresses that were found for it last."""

    target: Target
    addresses: list[Address] = field(default_factory=list)


class Pool:
    """The places of all targets.

    `connect` makes the service of an address, `backoff` the pauses of a place. `say` takes a
    sentence when a place fails first, and when it works again.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        connect: Callable[[Address], Service],
        backoff: Callable[[], Backoff],
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
        self._places: list[Place] = []
        self._at = 0
        self._look_up = True
        self._lookup_backoff = backoff()
        self._lookup_rests_until = 0.0
        self._lookup_trouble: dict[str, str] = {}
        self.failovers = 0
        self.lookup_failures = 0

    def pick(self) -> tuple[Place | None, float]:
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

    def worked(self, place: Place) -> None:
        """The place answered."""
        with self._lock:
            place.backoff.reset()
            place.rests_until = 0.0
            trouble, place.trouble = place.trouble, ""
        if trouble:
            self._say(f"delivery to {_shown(place.address)} works again")

    def failed(self, place: Place, reason: str, retry_after: float | None = None) -> None:
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

    def note(self, place: Place, lack: str) -> None:
        """Says what the place does not have, once for each place."""
        with self._lock:
            known, place.lack = place.lack, lack
        if known != lack:
            self._say(f"{_shown(place.address)} {lack}")

    def skip(self, place: Place) -> None:
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
            Place(address, self._connect(address), self._new_backoff())
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


def _shown(address: Address) -> str:
    return (
        f"{address.url} ({address.ip})"
        if address.ip not in ("", urlsplit(address.url).hostname)
        else address.url
    )
