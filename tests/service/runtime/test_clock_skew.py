"""A node whose clock is more than a minute off the store's takes no batches, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.node import Node
from service.runtime.health import ClockSkew
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.objects.store import DateSample
from tests.service.client_model import Clients
from tests.service.metrics.watched import Watched
from tests.simulation.virtual_time import VirtualClock

RUN = RunKey("service.pipeline", "run-1")


def clock_skew(ahead_ms: int, *, seconds: float = 0.0) -> ClockSkew:
    """Of a clock that read so much more than a `Date` at the arrival of a slow answer."""
    return ClockSkew(lambda: DateSample(1_000_000, 5.0 - seconds, 5.0, 1_000_000 + ahead_ms))


@pytest.mark.parametrize(
    ("ahead_ms", "problem"),
    [
        (0, None),
        (61_000, None),  # the store's second may have been nearly over
        (61_001, "the clock is 60 s ahead of the object store's: set it right"),
        (-60_000, None),
        (-90_000, "the clock is 90 s behind the object store's: set it right"),
    ],
)
def test_a_skew_of_a_minute_is_allowed(ahead_ms: int, problem: str | None) -> None:
    assert clock_skew(ahead_ms).problem == problem


def test_the_time_that_an_answer_took_is_no_skew() -> None:
    assert clock_skew(80_000, seconds=30).problem is None
    assert clock_skew(80_000).problem is not None


def test_a_store_without_a_clock_and_one_that_was_not_heard_yet_say_nothing() -> None:
    assert ClockSkew(None).problem is None
    assert ClockSkew(lambda: None).ahead_ms == 0


def test_a_node_takes_batches_again_when_its_clock_is_right(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def scenario(node: Node, clock: VirtualClock) -> None:
        await clients.send(node, clock, RUN)
        watched.ahead_seconds = 90
        assert not node.ready
        with pytest.raises(NodeNotReady, match="ahead of the object store's"):
            await clients.send(node, clock, RUN)
        assert "ahead of the object store's" in " ".join(node.problems())
        assert await node.close_run(RUN) == "closed"  # what it holds is finished all the same
        watched.ahead_seconds = 0
        await clients.send(node, clock, RUN)
        assert node.problems() == []

    watched.live(scenario)
