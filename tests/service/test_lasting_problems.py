"""One lasting problem is one line of the log, whatever its sentence says at each moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import SecretStr

from service.main import ProblemLog
from service.runtime.health import LONG_SECONDS, ClockSkew, HealthProblem, Ongoing, by_name, name_of
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.store import DateSample
from tailrace.logstore.retry import retry_until_available
from tests.service.test_main import PLAIN, service, settings_for
from tests.simulation.clocks import ManualClock
from tests.waiting import until


@asynccontextmanager
async def refusing_server() -> AsyncIterator[str]:
    """S3 that refuses everything, each time in other words."""
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        await request.read()
        asked += 1
        text = f"<Error><Code>SlowDown</Code><Message>after {asked * 37} ms</Message></Error>"
        return web.Response(status=503, text=text)

    app = web.Application()
    app.router.add_route("*", "/{all:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_store_that_refuses_is_a_line_for_each_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All that readiness reports of it, each of whose sentences was read in several wordings."""
    async with refusing_server() as url:
        s3 = S3Settings(
            endpoint_url=url, access_key_id="a", secret_access_key=SecretStr("b"), region="r"
        )
        sections = {"flush": {"segment_seconds": 0.2}, "server": {"port": 0, "stop_seconds": 0.5}}
        settings = settings_for(tmp_path, s3=s3, store="s3://bucket/p", **sections)
        wordings: dict[str, set[str]] = {}
        async with service(settings, statuses=(0, 3)) as (client, _):
            sent = await client.post(
                "/api/v1/services/ingestionPipelines/logs/p/r", content="x\n", headers=PLAIN
            )
            assert sent.status_code in (200, 503)
            async with asyncio.timeout(60):
                while sum(len(found) > 1 for found in wordings.values()) < 1:
                    ready = (await client.get("/health/ready")).json()
                    for sentence in ready.get("problems", [ready.get("detail", "")]):
                        wordings.setdefault(sentence.partition(":")[0], set()).add(sentence)
                    await asyncio.sleep(0.2)
            await asyncio.sleep(2.2)  # two more looks of the log
        said = [one.getMessage() for one in caplog.records if one.name == "service.main"]
        begun = [text.partition(":")[0] for text in said if not text.startswith("over: ")]
        assert begun
        assert len(begun) == len(set(begun)), said


async def test_what_a_start_waits_for_is_one_problem() -> None:
    clock, tries = ManualClock(), 0
    told: list[str | None] = []

    async def step() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StoreUnavailable(f"no answer after {tries} s", hint="Look at the store.")

    def report(error: Exception | None) -> None:
        what = "the node cannot begin yet"
        told.append(None if error is None else HealthProblem.from_error(what, error))

    await retry_until_available(step, clock, report)
    waits = [one for one in told if one is not None]
    assert len({*map(str, waits)}) == 3
    assert {name_of(one) for one in waits} == {"the node cannot begin yet"}
    assert all(one.endswith("(Look at the store.)") for one in waits)


def test_a_clock_that_drifts_is_one_problem() -> None:
    def problem(ahead_ms: int) -> str | None:
        return ClockSkew(lambda: DateSample(1_000_000, 5.0, 5.0, 1_000_000 + ahead_ms)).problem

    first, second = problem(90_000), problem(95_000)
    assert first is not None
    assert second is not None
    assert first != second
    assert name_of(first) == name_of(second)


async def test_work_that_does_not_end_is_named_with_its_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thread that hangs is under way although nobody waits for it any more."""
    clock, goes = ManualClock(), threading.Event()
    ongoing = Ongoing(clock, "a search does not end at its time limit")
    work = asyncio.get_running_loop().run_in_executor(None, goes.wait)
    ongoing.follow(work)
    watch = ProblemLog(ongoing.problems, clock)
    try:
        clock.pass_seconds(LONG_SECONDS)
        assert ongoing.problems() == []
        for _ in range(5):
            clock.pass_seconds(7)
            watch.look()
        (problem,) = ongoing.problems()
        assert by_name([problem]) == {"a search does not end at its time limit": problem}
        assert caplog.text.count("a search does not end") == 1
    finally:
        goes.set()
    await until(lambda: ongoing.oldest_seconds == 0)
    assert ongoing.problems() == []
