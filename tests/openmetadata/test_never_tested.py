"""Four that OpenMetadata's design asks for and that nobody wrote."""

from __future__ import annotations

from tests.openmetadata.server import NODE, Server, numbered, play
from tests.settings import settings_with

# Every time-out is shorter than the gap of an hour.
SHORT = settings_with(
    NODE,
    runs={
        "partial_flush_interval_minutes": 1.0,
        "cleanup_interval_minutes": 2.0,
        "stream_timeout_minutes": 10.0,
    },
)


def test_a_gap_longer_than_every_timeout() -> None:
    """DesignSpec.idleGap: a run that is silent for longer than every time-out loses nothing.

    The bug of it all: after the gap the next flush overwrote 80 MB with a few KB.
    """

    async def scenario(server: Server) -> None:
        await server.append(numbered(0, 5000, "before"))
        viewer = await server.watch(after="0")
        await server.passes(minutes=60)
        assert await server.stored("logs.txt") == numbered(0, 5000, "before")
        assert viewer.ended(), "it was taken for abandoned"
        await server.append("after the gap\n")
        whole = numbered(0, 5000, "before") + "after the gap\n"
        assert await server.text() == whole
        again = await server.watch(after=viewer.last["after"])
        assert again.text == "after the gap\n"
        await server.passes(minutes=3)
        assert await server.text() == whole
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == whole
        assert (await server.page(limit=1))["total"] == len(whole)

    play(scenario, settings=SHORT)


def test_a_restart_in_mid_run() -> None:
    """DesignSpec.restartMidRun: a server that is killed in mid-run loses nothing it took."""

    async def scenario(server: Server) -> None:
        whole, cursor = "", "0"
        for life in range(5):
            for part in range(3):
                lines = numbered(0, 100, f"life {life} part {part} line")
                await server.append(lines)
                whole += lines
                await server.passes(seconds=life * 30)
            assert await server.text() == whole
            viewer = await server.watch(after=cursor)
            cursor = viewer.last["after"]
            await (server.kill() if life % 2 else server.restart())
            assert await server.text() == whole
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == whole

    play(scenario)


def test_a_burst_of_more_than_ten_thousand_lines() -> None:
    """DesignSpec.burst: more lines than every ring and queue has places, byte for byte."""

    async def scenario(server: Server) -> None:
        viewer = await server.watch(after="0")
        pieces = [
            "".join([f"{part}/{i} ü \t {'=' * (i % 70)}\n" for i in range(1000)])
            for part in range(25)
        ]
        for piece in pieces:
            await server.append(piece)
        whole = "".join(pieces)
        assert await server.text() == whole
        await server.passes(seconds=5)
        assert viewer.text == whole
        paged: list[str] = []
        after: str | None = "0"
        while after is not None:
            page = await server.page(after=after, limit=4000)
            paged.append(page["logs"] + "\n")
            after = page["after"]
        assert "".join(paged) == whole
        await server.passes(minutes=3)
        assert await server.stored("partial.txt") == whole
        await server.close()
        assert await server.stored("logs.txt") == whole

    play(scenario)


def test_a_close_after_the_sweeper() -> None:
    """DesignSpec.closeAfterSweeper: a run that the sweeper finalised is closed by its client.

    The close changes nothing; lines that come between them are added.
    """

    async def scenario(server: Server) -> None:
        await server.append("swept\n")
        await server.passes(minutes=16)
        assert server.metric("tailrace_runs_finalised") == 1
        assert await server.stored("logs.txt") == "swept\n"
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == "swept\n"
        await server.append("later\n")
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == "swept\nlater\n"
        assert await server.stored("partial.txt") is None

    play(scenario, settings=SHORT)
