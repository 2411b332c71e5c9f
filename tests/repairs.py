"""A repair of a run's log is a failure, unless the test asked for it.

A node makes again what vanished from the store. Where nobody took anything away, that hides a fault
of ours. Each repair ends in a warning of `service.run_log.repair`. The tests look for it: of nodes
in the test's process by `repairs_fail`, of a service that is a process by `ServiceProcess`, in
its output. A test whose subject are repairs says so, and fails if there was none:

    @pytest.mark.repairs(reason="a chunk is taken away")
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

LOGGER = "service.run_log.repair"


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def repairs_in(output: str) -> list[str]:
    """The lines of a service's output that tell of repairs."""
    return [line for line in output.splitlines() if f" WARNING {LOGGER}:" in line]


@pytest.fixture(autouse=True)
def repairs_fail(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in whose process a node repaired a run's log, or one that asked and saw none."""
    heard, logger = _Heard(), logging.getLogger(LOGGER)
    logger.addHandler(heard)
    yield
    logger.removeHandler(heard)
    marker = request.node.get_closest_marker("repairs")
    if marker is None:
        assert heard.messages == [], "a run's log was repaired, though nobody took anything away"
    else:
        assert marker.kwargs["reason"]
        assert heard.messages, "the test is marked to expect a repair, and there was none"
