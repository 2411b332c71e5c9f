"""What a service refused is tried again by each start, and said by each: a limit may be raised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.client.programs import left_in, messages, run_program
from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.servers.ports import free_port

LINES = [f"line {number} {'x' * 1000}" for number in range(201)]
ALARM = "ALARM: "


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service with a limit that is too low."""
    service = ServiceProcess(tmp_path / "node", TAILRACE_INGEST__MAX_TEXT_BYTES="64KiB")
    service.start()
    yield service
    service.stop()


def raise_limit(service: ServiceProcess) -> None:
    """A restart with a higher one."""
    service.stop()
    service.settings["TAILRACE_INGEST__MAX_TEXT_BYTES"] = "64MiB"
    service.start()


@pytest.mark.in_turn(4)
def test_a_file_that_was_refused_is_read_once_the_limit_is_raised(
    small: ServiceProcess, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    forwarder = ForwarderProcess(tmp_path, small.url, run="large", metrics={"listen": listen})
    (forwarder.logs / "a.log").write_text("".join(f"{line}\n" for line in LINES))

    def refused() -> float:
        text = httpx.get(f"http://{listen}/metrics", timeout=30).text
        name = 'tailrace_forwarder_refused_files{source="file_log"}'
        (value,) = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(name)]
        return float(value)

    for starts in (1, 2):
        forwarder.start()
        forwarder.until(lambda: forwarder.said().count("is not read any more: ") == starts)  # noqa: B023
        forwarder.until(lambda: refused() == 1)
        assert forwarder.said().count("it is tried again") == starts - 1
        assert stored(small.url, "large") == []
        forwarder.stop()
    raise_limit(small)
    forwarder.start()
    forwarder.until(lambda: stored(small.url, "large") == LINES)
    assert forwarder.said().count("it is tried again") == 2
    assert refused() == 0
    assert forwarder.stop() == 0


@pytest.mark.in_turn(4)
def test_what_a_program_could_not_deliver_is_sent_by_the_next_once_the_limit_is_raised(
    small: ServiceProcess, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    code = f"""
    made = handler(options=Options(linger_seconds=30, exit_seconds=60))
    for number in range({len(LINES)} if sys.argv[4] == "all" else 1):
        log.info("line %d %s", number, "x" * 1000)
    """
    assert "the service refused 201 records" in run_program(code, small.url, spool, "first", "all")
    assert any(name.endswith(".refused") for name in left_in(spool))
    said = run_program(code, small.url, spool, "first", "one")
    assert f"{ALARM}1 batch that the service refused" in said
    assert "the service refused 201 records" in said
    assert messages(small.url, "first") == LINES[:1]
    raise_limit(small)
    assert ALARM in run_program(code, small.url, spool, "first", "one")
    assert messages(small.url, "first") == [LINES[0], *LINES, LINES[0]]
    assert left_in(spool) == []
