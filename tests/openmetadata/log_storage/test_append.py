"""S3LogStorageTest, its tests of appending."""

from __future__ import annotations

from tests.openmetadata.server import FQN, KEY, LONG_LINE, NODE, OTHER, RUN, Server, numbered, play
from tests.settings import settings_with


def test_no_multipart_upload_is_started_by_an_append() -> None:
    """S3LogStorageTest.testNoMultipartUploadStartedOnAppend: an append starts no upload.

    Ours: an append does not touch the store at all; the journal makes it durable.
    """

    async def scenario(server: Server) -> None:
        await server.passes(seconds=1)
        before = list(server.store.calls)
        await server.append(f"burst-1\n{LONG_LINE}")
        assert server.store.calls == before
        await server.passes(minutes=3)
        assert server.calls("put", "chunks/")
        assert await server.text() == f"burst-1\n{LONG_LINE}"

    play(scenario)


def test_an_append_leaves_no_lock_behind_and_waits_for_none() -> None:
    """S3LogStorageTest.testAppendLogsReleasesPerStreamLock: the stream's lock is free again.

    Ours: an append takes no lock that a flush holds while the store is slow.
    """

    async def scenario(server: Server) -> None:
        server.delays["chunks/"] = 30.0
        await server.append(LONG_LINE)
        await server.passes(seconds=140)
        waiting = server.node.run_logs.flusher.pending.get(KEY)
        assert waiting is not None
        assert waiting.flushing
        began = server.clock.monotonic()
        await server.append("line 2\n")
        assert server.clock.monotonic() - began < 1
        server.delays.clear()
        await server.passes(minutes=5)
        assert server.node.run_logs.flusher.pending.get(KEY) is None
        assert await server.close() == "closed"
        assert await server.text() == f"{LONG_LINE}line 2\n"

    play(scenario)


def test_lines_wait_for_the_flush_and_are_counted() -> None:
    """S3LogStorageTest.testAppendLogsPopulatesPendingFlushAndCounter: 3 lines pend, counter 3."""

    async def scenario(server: Server) -> None:
        await server.append("line 1\nline 2\nline 3")
        assert (await server.page())["totalLines"] == 3
        assert server.metric("tailrace_run_log_lag_lines") == 3
        assert server.metric("tailrace_run_log_lag_bytes") == len("line 1\nline 2\nline 3\n")
        await server.passes(minutes=3)
        assert server.metric("tailrace_run_log_lag_lines") == 0
        assert (await server.page())["totalLines"] == 3

    play(scenario)


def test_a_newline_at_the_end_is_no_line() -> None:
    """S3LogStorageTest.testAppendLogsTrailingNewlineDoesNotOvercount: "A\\nB\\n" is two lines."""

    async def scenario(server: Server) -> None:
        reply = await server.append("line A\nline B\n")
        assert reply["lines"] == 2
        page = await server.page()
        assert (page["total"], page["logs"]) == (2, "line A\nline B")
        await server.passes(minutes=3)
        assert (await server.metadata("partial.txt"))["last-flushed-line"] == "2"

    play(scenario)


def test_a_late_append_after_the_close_is_kept() -> None:
    """S3LogStorageTest.testLateAppendAfterCloseIsDropped: 200, and the batch is dropped.

    Ours: it is kept. The run is open again, and closed once it was idle for a minute.
    """

    async def scenario(server: Server) -> None:
        await server.append("before-close\n")
        assert await server.close() == "closed"
        await server.append("late-after-close\n")
        assert (await server.page())["logs"] == "before-close\nlate-after-close"
        assert (await server.page())["streaming"] is True
        await server.passes(minutes=10)
        page = await server.page()
        assert (page["state"], page["logs"]) == ("closed", "before-close\nlate-after-close")
        assert await server.stored("logs.txt") == "before-close\nlate-after-close\n"
        assert await server.stored("partial.txt") is None

    play(scenario)


def test_much_news_is_flushed_early_and_once() -> None:
    """S3LogStorageTest.testWatermarkFlushSchedulesOnlyOnceWhileFlushAlreadyQueued.

    Past the watermark one flush is scheduled, however many appends follow.
    """
    settings = settings_with(
        NODE,
        runs={"early_flush_watermark_bytes": 1, "partial_flush_interval_minutes": 100_000 / 60},
    )

    async def scenario(server: Server) -> None:
        for word in ("first", "second", "third"):
            await server.append(f"{word}\n")
        await server.passes(seconds=15)
        assert server.metric("tailrace_run_flushes") == 1
        assert server.metric("tailrace_chunks") == 1
        assert server.metric("tailrace_run_log_lag_lines") == 0

    play(scenario, settings=settings)


def test_long_lines_and_many_lines_are_kept_whole() -> None:
    """S3LogStorageTest.testAppendLogsTruncatesLongLinesAndCapsRecentLogBuffer.

    The ring cuts lines at 10 KiB and keeps the newest 1,000. Ours: what a viewer has not yet
    seen is read from storage, so no line is cut and none is skipped, also not in a view that is
    opened late.
    """

    async def scenario(server: Server) -> None:
        oversized = "x" * (10 * 1024 + 25) + "\n"
        await server.append(oversized)
        fresh = await server.watch()
        assert fresh.text == oversized
        await server.append(numbered(0, 1005))
        late = await server.watch()
        await server.passes(seconds=1)
        everything = oversized + numbered(0, 1005)
        assert fresh.text == late.text == everything == await server.text()

    play(scenario)


def test_two_runs_of_a_pipeline_do_not_meet() -> None:
    """Not upstream's: names that differ only in punctuation share a folder there."""

    async def scenario(server: Server) -> None:
        await server.append("a\n", RUN, "svc.a_b")
        await server.append("b\n", RUN, "svc_a.b")
        await server.append("c\n", OTHER, FQN)
        await server.delete(None, "svc.a_b")
        assert await server.text(RUN, "svc_a.b") == "b\n"
        assert await server.runs("svc.a_b") == []

    play(scenario)
