"""S3LogStorageTest, its tests of reading."""

from __future__ import annotations

from tests.openmetadata.server import OTHER, Server, numbered, play

FIVE = numbered(1, 6, "Line")


async def closed_with(server: Server, text: str) -> None:
    await server.append(text)
    assert await server.close() == "closed"


def test_the_first_page_of_a_closed_run() -> None:
    """S3LogStorageTest.testGetLogs: 2 of 5 lines, `after` "2", `total` in bytes."""

    async def scenario(server: Server) -> None:
        await closed_with(server, FIVE)
        page = await server.page(limit=2)
        assert (page["logs"], page["after"]) == ("Line 1\nLine 2", "2")
        assert page["total"] == len(FIVE)

    play(scenario)


def test_the_page_behind_a_cursor() -> None:
    """S3LogStorageTest.testGetLogsWithPagination: after "2" come lines 3 and 4, then "4"."""

    async def scenario(server: Server) -> None:
        await closed_with(server, FIVE)
        page = await server.page(limit=2, after="2")
        assert (page["logs"], page["after"]) == ("Line 3\nLine 4", "4")
        last = await server.page(limit=2, after="4")
        assert (last["logs"], last["after"]) == ("Line 5", None)

    play(scenario)


def test_a_run_that_is_not_there() -> None:
    """S3LogStorageTest.testGetLogsNonExistent: no lines, no cursor, total 0."""

    async def scenario(server: Server) -> None:
        await server.append("of another run\n", OTHER)
        page = await server.page(limit=10)
        assert (page["logs"], page["after"], page["total"]) == ("", None, 0)

    play(scenario)


def test_a_cursor_that_is_none_is_the_start_of_a_closed_run() -> None:
    """S3LogStorageTest.testGetLogsWithInvalidCursorFallsBackToBeginningForCompletedFile."""

    async def scenario(server: Server) -> None:
        text = numbered(1, 4, "Line")
        await closed_with(server, text)
        page = await server.page(after="bad-cursor", limit=2)
        assert (page["logs"], page["after"]) == ("Line 1\nLine 2", "2")
        assert page["total"] == len(text)

    play(scenario)


def test_a_page_of_an_active_run_from_what_is_flushed() -> None:
    """S3LogStorageTest.testGetLogsForActiveStreamUsesPartialFilePagination.

    `total` is flushed and pending lines together, `streaming` is true.
    """

    async def scenario(server: Server) -> None:
        await server.append(numbered(1, 4, "Processed"))
        await server.passes(minutes=3)
        await server.append("memory line 1\nmemory line 2")
        page = await server.page(after="1", limit=1)
        assert (page["logs"], page["after"]) == ("Processed 2", "2")
        assert (page["total"], page["streaming"]) == (5, True)

    play(scenario)


def test_a_page_of_an_active_run_of_which_nothing_is_flushed() -> None:
    """S3LogStorageTest.testGetLogsForActiveStreamFallsBackToMemoryCacheOnPartialMiss.

    The lines in memory, once each; a bad cursor is the start. Ours: the cursor is opaque as
    long as the lines behind it have not got their place, so that a tailer sees each once.
    """

    async def scenario(server: Server) -> None:
        await server.append("Line 1\nLine 2\nLine 3")
        page = await server.page(after="bad-cursor", limit=2)
        assert page["logs"] == "Line 1\nLine 2"
        assert (page["total"], page["streaming"]) == (3, True)
        assert (await server.page(after=page["after"]))["logs"] == "Line 3"
        await server.passes(minutes=3)
        assert (await server.page(after=page["after"]))["logs"] == "Line 3"

    play(scenario)


def test_a_page_in_mid_run_has_the_pending_lines_too() -> None:
    """S3LogStorageTest.testGetLogsMidRunIncludesPendingFlushTail: total 4, each line once."""

    async def scenario(server: Server) -> None:
        await server.append("flushed-1\nflushed-2\n")
        await server.passes(minutes=3)
        await server.append("tail-1\ntail-2\n")
        page = await server.page(limit=100)
        assert page["logs"] == "flushed-1\nflushed-2\ntail-1\ntail-2"
        assert page["total"] == 4

    play(scenario)


def test_the_whole_text_of_a_closed_run() -> None:
    """S3LogStorageTest.testGetLogInputStream: the stored text, as it is."""

    async def scenario(server: Server) -> None:
        await closed_with(server, "Stream content")
        assert await server.text() == "Stream content\n"
        before = len(server.store.calls)
        assert await server.text() == await server.stored("logs.txt")
        read = [call for call in server.store.calls[before:] if call.startswith("stream pipeline")]
        assert len(read) == 1, "it comes from the final text, in one go"

    play(scenario)


def test_the_whole_text_of_an_active_run() -> None:
    """S3LogStorageTest.testGetLogInputStreamUsesRecentLogsForActiveStream: from the ring.

    The ring has 1,000 lines at most, so upstream's download of a running run has no more.
    Ours: all of it, wherever it stands, and without the store for what is not there yet.
    """

    async def scenario(server: Server) -> None:
        await server.append(numbered(1, 1501, "Line"))
        before = len(server.store.calls)
        assert await server.text() == numbered(1, 1501, "Line")
        read = [call for call in server.store.calls[before:] if call.startswith(("get", "stream"))]
        assert not [call for call in read if call.endswith(".txt")]
        await server.passes(minutes=3)
        await server.append("Line 1501\n")
        assert await server.text() == numbered(1, 1502, "Line")

    play(scenario)
