"""One place is used until it fails, then the next; names are looked up again after a failure."""

from __future__ import annotations

from random import Random

from tailrace.forwarder.delivery.targets import Pool, TargetAddress, TargetPlace, parse_target
from tailrace_client.service import Service
from tailrace_client.system import RetryPause
from tests.forwarder.delivery.test_targets import Names


class Clock:
    """Moved by hand; nobody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


class Rig:
    """A pool with names, a clock and what was said. Pauses are 1, 2, 4, 8, 8… seconds."""

    def __init__(self, names: Names, *targets: str, seed: int = 1) -> None:
        self.names = names
        self.clock = Clock()
        self.said: list[str] = []
        self.connected: list[TargetAddress] = []
        self.pool = Pool(
            [parse_target(target) for target in targets],
            connect=self._connect,
            backoff=lambda: RetryPause(2.0, 16.0, lambda _: 0),
            resolver=names,
            clock=self.clock,
            dice=Random(seed),
            say=self.said.append,
        )

    def _connect(self, address: TargetAddress) -> Service:
        self.connected.append(address)
        return Service(address.url)

    def pick(self) -> TargetPlace:
        place, seconds = self.pool.pick()
        assert place is not None
        assert seconds == 0
        return place

    def rest(self) -> float:
        place, seconds = self.pool.pick()
        assert place is None
        return seconds


TWO = Names({"logs": ["10.0.0.1", "10.0.0.2"]})


def test_a_place_is_used_until_it_fails_and_the_next_until_that_fails() -> None:
    rig = Rig(TWO, "logs")
    first = rig.pick()
    assert all(rig.pick() is first for _ in range(20))
    rig.pool.failed(first, "away")
    second = rig.pick()
    assert second is not first
    rig.clock.now += 1000
    assert all(rig.pick() is second for _ in range(20)), "it sticks to the one that works"
    rig.pool.failed(second, "away too")
    assert rig.pick() is first
    assert rig.pool.failovers == 2


def test_the_first_place_differs_between_forwarders() -> None:
    names = Names({"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3", "10.0.0.4"]})
    first = {Rig(names, "a", "b", "c", seed=seed).pick().address.ip for seed in range(50)}
    assert first == {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}


def test_when_all_rest_the_pause_doubles_and_a_success_ends_it() -> None:
    rig = Rig(Names({"logs": ["10.0.0.1"]}), "logs")
    pauses = []
    for _ in range(6):
        place = rig.pick()
        rig.pool.failed(place, "away")
        pauses.append(rig.rest())
        rig.clock.now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 8, 8]
    assert rig.said == ["delivery to http://logs:8790 (10.0.0.1) fails: away"], (
        "once, until it works again"
    )
    rig.pool.worked(rig.pick())
    assert rig.said[1:] == ["delivery to http://logs:8790 (10.0.0.1) works again"]
    rig.pool.failed(rig.pick(), "away")
    assert rig.rest() == 1


def test_a_pause_is_at_least_what_the_service_asked_for() -> None:
    rig = Rig(Names({"logs": ["10.0.0.1"]}), "logs")
    place = rig.pick()
    rig.pool.failed(place, "away")
    rig.pool.failed(place, "too many", retry_after=30.0)  # a second request, at the same time
    assert rig.rest() == 30
    rig.clock.now += 30
    rig.pool.failed(rig.pick(), "too many", retry_after=100.0)
    assert rig.rest() == 100


def test_requests_that_fail_together_count_as_one_failure() -> None:
    rig = Rig(Names({"logs": ["10.0.0.1"]}), "logs")
    place = rig.pick()
    for _ in range(10):
        rig.pool.failed(place, "away")
    assert rig.rest() == 1


def test_a_service_that_moved_is_found() -> None:
    """OK Log's forwarder looks a name up once, and then has its first address for ever."""
    names = Names({"logs": ["10.0.0.1"]})
    rig = Rig(names, "logs")
    place = rig.pick()
    names.hosts["logs"] = ["10.0.0.9"]
    assert rig.pick() is place
    rig.pool.failed(place, "away")
    assert rig.pick().address.ip == "10.0.0.9"


def test_places_that_stay_keep_their_state_when_others_come_and_go() -> None:
    names = Names({"logs": ["10.0.0.1", "10.0.0.2"]})
    rig = Rig(names, "logs")
    first = rig.pick()
    rig.pool.failed(first, "away", retry_after=50)
    second = rig.pick()
    names.hosts["logs"] = ["10.0.0.3", first.address.ip]
    rig.pool.failed(second, "away")
    third = rig.pick()
    assert third.address.ip == "10.0.0.3"
    rig.pool.failed(third, "away", retry_after=100)
    assert 49 <= rig.rest() <= 50, "the first one rests for what it asked"
    assert len(rig.connected) == 3


def test_while_names_cannot_be_looked_up_the_known_places_stay() -> None:
    names = Names({"logs": ["10.0.0.1", "10.0.0.2"]})
    rig = Rig(names, "logs")
    first = rig.pick()
    del names.hosts["logs"]
    rig.pool.failed(first, "away")
    second = rig.pick()
    assert second is not first
    assert rig.said[1:] == ["logs cannot be looked up: logs is not known"]
    rig.pool.failed(second, "away")
    rig.clock.now += 1
    assert rig.pick() in (first, second)
    assert rig.pool.lookup_failures == 2
    assert len(rig.said) == 3, "the name is said once"


def test_a_name_that_is_not_known_at_the_start_is_waited_for() -> None:
    names = Names({})
    rig = Rig(names, "logs")
    assert rig.rest() == 1
    assert rig.rest() == 1, "nothing is looked up before the pause is over"
    rig.clock.now += 1
    assert rig.rest() == 2
    names.hosts["logs"] = ["10.0.0.1"]
    rig.clock.now += 2
    assert rig.pick().address.ip == "10.0.0.1"


def test_a_request_that_may_be_at_fault_itself_goes_elsewhere_without_a_rest() -> None:
    rig = Rig(TWO, "logs")
    first = rig.pick()
    rig.pool.skip(first)
    second = rig.pick()
    assert second is not first
    rig.pool.skip(first)  # a second request, sent before
    assert rig.pick() is second
    alone = Rig(Names({"logs": ["10.0.0.1"]}), "logs")
    place = alone.pick()
    alone.pool.skip(place)
    assert alone.pick() is place


def test_another_token_makes_the_services_anew_and_ends_their_rest() -> None:
    rig = Rig(Names({"logs": ["10.0.0.1"]}), "logs")
    place = rig.pick()
    service = place.service
    rig.pool.failed(place, "401")
    rig.pool.renew()
    assert rig.pick().service is not service
