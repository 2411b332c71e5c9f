"""The progress bar, the log beside it, and the summary behind it."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import orjson
import pytest

from compactor.listeners import PassProgress, SummaryListener, configure, listeners
from compactor.passes import Passes
from compactor.report import BatchReport, Lag, PassReport
from compactor.settings import CompactorSettings
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.progress import size
from tests.simulation.virtual_time import VirtualClock, simulate

LOG = logging.getLogger("tailrace.compactor")
CLEARED = "\r\x1b[2K"


class Terminal(io.StringIO):
    """Where a person watches."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What was drawn, one over the other; each leaves the cursor at its start."""
        return [line for line in self.getvalue().split(f"\r{CLEARED}") if line]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], LOG.level
    yield
    root.handlers[:] = handlers
    LOG.setLevel(level)


async def _pass(clock: VirtualClock, passes: Passes) -> PassReport:
    """Two batches of 40 and 60 of 100 MB, of ten seconds each."""
    async with passes.next() as report:
        with report.timed("plan", clock):
            await clock.sleep(1)
            report.lag = Lag(10, 100_000_000, 5.0)
        for part in (40_000_000, 60_000_000):
            report.planned(BatchReport(5, part, 100, 1, 4))
            with report.timed("merge", clock):
                await clock.sleep(10)
            report.segment_bytes += part
            report.segments += 5
            LOG.info("ingested a batch")
        report.lag = Lag()
        with report.timed("cleanup", clock):
            await clock.sleep(3)
    return report


def test_it_goes_from_nothing_to_all_and_leaves_nothing_behind() -> None:
    terminal = Terminal()

    async def tasks() -> tuple[int, int]:
        return 1, 4

    async def scenario(clock: VirtualClock) -> None:
        await _pass(clock, Passes(clock, [PassProgress(clock, terminal, tasks)]))

    simulate(scenario, start_ms=1_795_262_400_000)
    lines = terminal.lines
    assert re.fullmatch(r"plan  0:00:0[01]  tasks 1/4", lines[1])
    shares = [int(found[1]) for line in lines if (found := re.search(r"(\d+)%", line))]
    assert shares == sorted(shares)
    assert {10, 55, 100} <= set(shares)  # with a quarter of the batch under way, and at the end
    assert any("10 MB of 100 MB" in line and line.endswith("tasks 1/4") for line in lines)
    assert any(line.startswith("cleanup  [=") for line in lines)
    assert all(len(line) < 80 for line in lines)
    assert terminal.getvalue().endswith(CLEARED)


def heard(errors: io.StringIO, *, watched: bool = True) -> str:
    """What a pass told on stdout by all its listeners, whose stderr is `errors`."""
    out = io.StringIO()

    async def none() -> None:
        return None

    async def scenario(clock: VirtualClock) -> None:
        settings = CompactorSettings(data="/nowhere")
        hearing = listeners(settings, clock, Disk(), none, out=out, errors=errors, watched=watched)
        await _pass(clock, Passes(clock, hearing))

    simulate(scenario, start_ms=1_795_262_400_000)
    return out.getvalue()


def test_lines_of_the_log_do_not_stand_in_it() -> None:
    terminal = Terminal()
    (line,) = heard(terminal).splitlines()
    assert orjson.loads(line)["segments"] == 10
    text = terminal.getvalue()
    assert text.count(f"{CLEARED}INFO ingested a batch\n") == 2
    assert re.search(r"INFO pass done in 24\.0 s: 10 segments, .*\n$", text)


def test_on_the_terminal_of_a_service_nothing_is_drawn() -> None:
    terminal = Terminal()
    heard(terminal, watched=False)
    assert terminal.getvalue().splitlines()[:2] == ["INFO ingested a batch"] * 2
    assert CLEARED not in terminal.getvalue()


def test_without_a_terminal_nothing_is_drawn() -> None:
    errors = io.StringIO()
    heard(errors)
    assert errors.getvalue().splitlines()[:2] == ["INFO ingested a batch"] * 2
    assert "\r" not in errors.getvalue()


def test_a_pass_that_did_nothing_has_a_line_only_where_every_pass_has() -> None:
    asked, told = io.StringIO(), io.StringIO()

    async def scenario(clock: VirtualClock) -> None:
        passes = Passes(clock, [SummaryListener(asked), SummaryListener(told, every=False)])
        async with passes.next():
            pass
        async with passes.next() as report:
            report.held_elsewhere = 1
        async with passes.next() as report:
            report.alarm("look")
        async with passes.next() as report:
            report.commits = 1

    simulate(scenario, start_ms=1_795_262_400_000)
    lines = [orjson.loads(line) for line in asked.getvalue().splitlines()]
    assert [orjson.loads(line) for line in told.getvalue().splitlines()] == lines[1:]
    assert len(lines) == 4


def test_the_summary_has_all_of_a_pass() -> None:
    out = io.StringIO()

    async def scenario(clock: VirtualClock) -> None:
        await _pass(clock, Passes(clock, [SummaryListener(out)]))

    simulate(scenario, start_ms=1_795_262_400_000)
    line = orjson.loads(out.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["began"])
    assert line["took_seconds"] == 24
    assert line["seconds"] == {"plan": 1, "merge": 20, "cleanup": 3}
    assert line["lag"] == {"segments": 0, "bytes": 0, "seconds": 0}
    assert [batch["bytes"] for batch in line["batches"]] == [40_000_000, 60_000_000]
    assert line["error"] is None
    assert {"phase", "batch", "works"} & line.keys() == set()


def test_a_line_of_json_says_when_what_and_more() -> None:
    errors = io.StringIO()
    configure("json", errors)
    LOG.info("ingested %d", 3, extra={"fields": {"event": "batch committed", "job": "J"}})
    try:
        raise ValueError("no")
    except ValueError:
        LOG.exception("broke\noff")
    first, second = map(orjson.loads, errors.getvalue().splitlines())
    assert {**first, "time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "tailrace.compactor",
        "message": "ingested 3",
        "event": "batch committed",
        "job": "J",
    }
    assert first["time"].endswith("Z")
    assert second["message"] == "broke\noff"
    assert "ValueError: no" in second["traceback"]


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (9_960, "10 kB"), (999_600, "1.0 MB"),
     (2.5e9, "2.5 GB"), (3e15, "3000 TB")],
)  # fmt: skip
def test_sizes_are_for_people(amount: float, text: str) -> None:
    assert size(amount) == text
