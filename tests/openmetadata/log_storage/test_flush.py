"""S3LogStorageTest, its tests of flushing."""

from __future__ import annotations

from tests.openmetadata.server import FQN, LONG_LINE, NODE, OTHER, RUN, Server, numbered, play
from tests.settings import settings_with

THEIRS = f"pipeline-logs/{FQN.replace('.', '_')}/{RUN}"
METADATA = {"last-flushed-line", "total-bytes", "writer-epoch", "writer-version"}


async def written_by_openmetadata(server: Server, text: str) -> None:
    """A run in progress as OpenMetadata leaves it when it stops."""
    lines = str(text.count("\n"))
    about = {"last-flushed-line": lines, "total-bytes": str(len(text)), "writer-epoch": "1"}
    about["writer-version"] = "streamable-logs-v2"
    await server.disk_store.put(f"{THEIRS}/partial.txt", text.encode(), metadata=about)


def test_a_flush_goes_on_behind_the_partial_text_that_is_there() -> None:
    """S3LogStorageTest.testFlushMergesExistingPartialAfterOffsetReset.

    The prior lines stay, the new ones follow, and the metadata says how far it is.
    """

    async def scenario(server: Server) -> None:
        await written_by_openmetadata(server, numbered(1, 4, "old-line"))
        await server.append(numbered(1, 3, "new-line"))
        await server.passes(minutes=3)
        merged = numbered(1, 4, "old-line") + numbered(1, 3, "new-line")
        assert await server.text() == await server.stored("partial.txt") == merged
        about = await server.metadata("partial.txt")
        assert set(about) == METADATA
        assert about["total-bytes"] == str(len(merged))

    play(scenario)


def test_a_large_partial_text_is_put_together_by_the_store() -> None:
    """S3LogStorageTest.testFlushUsesMultipartCopyWhenExistingPartialIsLarge.

    From 5 MiB on the old bytes are copied by the store and only the new ones are sent. Ours:
    at every size: a flush sends its news as a chunk, and `partial.txt` is composed of chunks,
    once the text has doubled, so that copying stays linear.
    """

    async def scenario(server: Server) -> None:
        block = numbered(0, 15_000)  # 154 KB
        for _ in range(42):
            await server.append(block)
        await server.passes(minutes=3)
        assert len(await server.stored("partial.txt") or "") == 42 * len(block) > 6 << 20
        before = len(server.store.calls)
        for _ in range(44):
            await server.append(block)
        await server.passes(minutes=3)
        calls = server.store.calls[before:]
        assert [call for call in calls if call.startswith("compose") and "partial.txt" in call]
        assert not [call for call in calls if call.startswith("put") and "partial.txt" in call]
        assert not [call for call in calls if "get" in call and call.endswith(".txt")]
        assert await server.stored("partial.txt") == block * 86 == await server.text()

    play(scenario)


def test_a_partial_text_that_cannot_be_put_together_costs_nothing() -> None:
    """S3LogStorageTest.testFlushAbortsMultipartUploadOnFailure: the upload is aborted.

    That nothing is left of it on a real server is in `tests/logstore/test_s3_objects.py`; here,
    that no line is lost and the next flush publishes again.
    """

    async def scenario(server: Server) -> None:
        server.outage.words.add(f"compose pipeline-logs/{FQN}/{RUN}/partial.txt")
        await server.append("line\n")
        await server.passes(minutes=3)
        assert await server.stored("partial.txt") is None
        assert (await server.page())["logs"] == "line"
        server.outage.words.clear()
        await server.append("next\n")
        await server.passes(minutes=5)
        assert await server.stored("partial.txt") == "line\nnext\n"

    play(scenario)


def test_a_restart_keeps_old_and_new_lines() -> None:
    """S3LogStorageTest.testRestartResumeReadsLastFlushedLineFromMetadata: L1 to L7 are there.

    Ours: also when it was killed, and with lines that no flush had seen.
    """

    async def scenario(server: Server) -> None:
        await server.append(numbered(1, 4, "L"))
        await server.passes(minutes=3)
        await server.append(numbered(4, 6, "L"))
        await server.kill()
        await server.append(numbered(6, 8, "L"))
        await server.passes(minutes=3)
        assert await server.stored("partial.txt") == numbered(1, 8, "L")

    play(scenario)


def test_the_counter_goes_on_from_the_metadata() -> None:
    """S3LogStorageTest.testFlushUsesMetadataLastFlushedLineToBumpCounter: 5 + 2 = 7."""

    async def scenario(server: Server) -> None:
        await written_by_openmetadata(server, numbered(1, 6, "L"))
        await server.append(numbered(6, 8, "L"))
        await server.passes(minutes=3)
        about = await server.metadata("partial.txt")
        assert about["last-flushed-line"] == "7"
        assert (await server.page())["total"] == 7

    play(scenario)


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    """S3LogStorageTest.testWritePartialLogsContinuesEvenIfOneStreamFails."""

    async def scenario(server: Server) -> None:
        server.outage.words.add(f"{RUN}/chunks")
        await server.append(LONG_LINE, RUN)
        await server.append("from-B\n", OTHER)
        await server.passes(minutes=4)
        assert await server.stored("partial.txt", RUN) is None
        assert await server.stored("partial.txt", OTHER) == "from-B\n"
        assert server.metric("tailrace_runs_failing") == 1
        server.outage.words.clear()
        await server.passes(minutes=3)
        assert await server.stored("partial.txt", RUN) == LONG_LINE
        assert server.metric("tailrace_runs_failing") == 0

    play(scenario)


def test_what_pends_and_the_flushers_heartbeat_are_shown() -> None:
    """S3LogStorageTest.testWritePartialLogsUpdatesPendingMetricsAndHeartbeat."""

    async def scenario(server: Server) -> None:
        await server.append("alpha\nbeta\ngamma\n")
        await server.passes(seconds=15)
        assert server.metric("tailrace_runs_waiting") == 1
        assert server.node.run_logs.flusher.heartbeat.age_seconds < 5
        server.delays["coordination/"] = 50.0  # the flusher raises its mark
        server.delays["chunks/"] = 50.0
        await server.passes(seconds=130)
        assert server.node.run_logs.flusher.heartbeat.age_seconds < 60
        server.delays.clear()

    play(scenario)


def test_a_flush_that_worked_is_dated() -> None:
    """S3LogStorageTest.testFlushSuccessUpdatesLastPartialFlushTimestamp."""

    async def scenario(server: Server) -> None:
        await server.passes(minutes=2)
        before = server.node.run_logs.flusher.heartbeat.success_age_seconds
        assert before > 100
        await server.append("x\ny\n")
        await server.passes(minutes=2.5)
        assert server.node.run_logs.flusher.heartbeat.success_age_seconds < 60
        assert server.metric("tailrace_run_flushes") == 1

    play(scenario)


def test_a_flush_that_failed_is_counted() -> None:
    """S3LogStorageTest.testFlushFailureIncrementsFailureCounter."""

    async def scenario(server: Server) -> None:
        server.outage.words.add("chunks")
        await server.append(LONG_LINE)
        await server.passes(minutes=3)
        assert server.metric("tailrace_run_flush_failures") >= 1
        assert server.metric("om_streamable_logs_consecutive_flush_failures") >= 1
        server.outage.words.clear()
        await server.passes(minutes=3)
        assert server.metric("om_streamable_logs_consecutive_flush_failures") == 0

    play(scenario)


def test_a_sweep_that_hangs_does_not_stop_the_flushes() -> None:
    """S3LogStorageTest.testPartialFlushAndAbandonedCleanupExecutorsAreSeparate."""
    settings = settings_with(NODE, runs={"cleanup_interval_minutes": 1.0})

    async def scenario(server: Server) -> None:
        server.delays["list runs/"] = 10_000.0
        await server.passes(minutes=2)
        assert server.node.run_logs.sweeper.heartbeat.age_seconds > 55
        await server.append("x\n")
        await server.passes(minutes=3)
        assert await server.stored("partial.txt") == "x\n"
        server.delays.clear()

    play(scenario, settings=settings)


def test_a_loop_that_met_an_error_goes_on() -> None:
    """S3LogStorageTest.testSafeScheduledTaskSwallowsThrowableSoSchedulerKeepsRunning."""
    settings = settings_with(NODE, runs={"cleanup_interval_minutes": 1.0})

    async def scenario(server: Server) -> None:
        await server.passes(seconds=5)
        server.outage.words.update(("list runs/", "coordination/text"))
        await server.append("x\n")
        await server.passes(minutes=4)
        failed = server.node.run_logs.sweeper.last_error
        assert failed is not None
        server.outage.words.clear()
        await server.passes(minutes=4)
        assert server.node.run_logs.sweeper.last_error is None
        assert server.node.run_logs.flushed_pos == server.node.writer.journal.next_pos

    play(scenario, settings=settings)


def test_the_sweepers_heartbeat_moves() -> None:
    """S3LogStorageTest.testCleanupHeartbeatUpdates."""
    settings = settings_with(NODE, runs={"cleanup_interval_minutes": 1.0})

    async def scenario(server: Server) -> None:
        heartbeat = server.node.run_logs.sweeper.heartbeat
        await server.passes(seconds=90)
        assert heartbeat.success_age_seconds < 60
        server.outage.words.add("list runs/")
        await server.passes(minutes=5)
        assert heartbeat.success_age_seconds > 240, "it turns, and does not get done"
        assert heartbeat.age_seconds < 60
        server.outage.words.clear()
        await server.passes(minutes=2)
        assert heartbeat.success_age_seconds < 60

    play(scenario, settings=settings)
