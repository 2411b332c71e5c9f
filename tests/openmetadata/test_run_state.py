"""The tests of OpenMetadata's run-state factory: which run it is, and whether it is over."""

from __future__ import annotations

from tests.openmetadata.server import NODE, OTHER, RUN, Server, play
from tests.settings import settings_with


def test_an_older_run_that_finished_ends_while_a_newer_one_goes_on() -> None:
    """LogStreamFactory.1: the state is that of the run, not that of the pipeline's newest."""

    async def scenario(server: Server) -> None:
        await server.append("old\n", OTHER)
        await server.append("new\n", RUN)
        old, new = await server.watch(run=OTHER), await server.watch(run=RUN)
        await server.says("failed", OTHER)
        await server.says("running", RUN)
        await server.passes(seconds=20)
        assert old.last["reason"] == "runFinished"
        assert not new.ended()

    play(scenario)


def test_a_run_id_need_not_be_a_uuid() -> None:
    """LogStreamFactory.2: another run id falls through to the pipeline service.

    Ours: a run is called what its client calls it, like `scheduled__2026-11-21`.
    """

    async def scenario(server: Server) -> None:
        await server.append("a\n", "scheduled__2026-11-21T00:00:00+00:00")
        viewer = await server.watch(run="scheduled__2026-11-21T00:00:00+00:00")
        assert viewer.text == "a\n"

    play(scenario)


def test_running_again_takes_the_end_back() -> None:
    """Not upstream's: a run that is started anew under its id within the grace goes on."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        await server.says("failed")
        await server.passes(seconds=8)
        await server.says("running")
        await server.passes(minutes=2)
        assert not viewer.ended()
        await server.says("success")
        await server.passes(seconds=11)
        assert viewer.ended()

    play(scenario)


def test_an_abandoned_run_is_completed() -> None:
    """Not upstream's: its sweeper leaves the viewers of a run that it finalises alone."""
    settings = settings_with(
        NODE, runs={"cleanup_interval_minutes": 2.0, "stream_timeout_minutes": 10.0}
    )

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        await server.passes(minutes=16)
        assert viewer.last["eventType"] == "complete"

    play(scenario, settings=settings)
