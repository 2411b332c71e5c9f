"""A link passes bytes, until it is cut: for everybody, or for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.faults.link import Cut, Link, nobody

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
opened: list[Streams] = []


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(1000):
            writer.write(piece)
    await _end(writer)


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def linked(asks: Callable[[int], str] = nobody) -> AsyncIterator[Link]:
    """A link to somebody who says what he hears."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    opened.clear()
    port = server.sockets[0].getsockname()[1]
    try:
        async with Link(f"http://127.0.0.1:{port}", asks=asks) as link:
            yield link
            for _, writer in opened:
                await _end(writer)
    finally:
        server.close()


async def connect(link: Link) -> Streams:
    opened.append(await asyncio.open_connection("127.0.0.1", int(link.url.rpartition(":")[2])))
    return opened[-1]


async def echoed(streams: Streams, said: bytes) -> bytes:
    streams[1].write(said)
    return await streams[0].readexactly(len(said))


async def test_what_is_said_in_silence_arrives_when_the_link_is_mended() -> None:
    async with linked() as link:
        streams = await connect(link)
        assert await echoed(streams, b"one") == b"one"
        link.cut(Cut.SILENT)
        answer = asyncio.create_task(echoed(streams, b"two"))
        later = asyncio.create_task(echoed(await connect(link), b"three"))
        done, _ = await asyncio.wait([answer, later], timeout=0.05)
        assert done == set()
        await link.mend()
        assert (await answer, await later) == (b"two", b"three")


async def test_a_reset_ends_what_is_open_and_what_is_opened() -> None:
    async with linked() as link:
        before = await connect(link)
        await echoed(before, b"one")
        link.cut(Cut.RESET)
        for streams in (before, await connect(link)):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await echoed(streams, b"two")
        await link.mend()
        assert await echoed(await connect(link), b"three") == b"three"


async def test_a_cut_may_be_of_one_client_only() -> None:
    names: dict[int, str] = {}
    async with linked(lambda port: names.get(port, "b")) as link:
        other = await connect(link)
        await echoed(other, b"one")
        link.cut(Cut.RESET, "a")
        assert await echoed(other, b"two") == b"two"
        link.cut(Cut.RESET, "b")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await echoed(other, b"three")
        await link.mend("b")
        assert await echoed(await connect(link), b"four") == b"four"
        assert link.is_cut("a")
        assert not link.is_cut("b")
