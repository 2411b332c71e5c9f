"""S3LogStorageTest, its tests of closing."""

from __future__ import annotations

from botocore.exceptions import ClientError

from tailrace.logstore.errors import NotFound
from tailrace.logstore.objects.s3.requests import failure_of
from tests.openmetadata.log_storage.test_flush import THEIRS, written_by_openmetadata
from tests.openmetadata.server import LONG_LINE, NODE, Server, play
from tests.settings import settings_with

# A day is a minute here: what matters is which is longer.
SWEEPING = settings_with(
    NODE, runs={"cleanup_interval_minutes": 2.0, "stream_timeout_minutes": 24.0}
)


def test_a_close_flushes_makes_the_final_text_and_forgets() -> None:
    """S3LogStorageTest.testCloseStreamFlushesAndCopiesPartialToLogs.

    Flush, copy `partial.txt` to `logs.txt` in the store, delete `partial.txt`, drop the state.
    """

    async def scenario(server: Server) -> None:
        await server.append(LONG_LINE)
        await server.passes(minutes=3)
        assert await server.stored("partial.txt") == LONG_LINE
        await server.append("final-line-1\nfinal-line-2\n")
        assert await server.close() == "closed"
        whole = f"{LONG_LINE}final-line-1\nfinal-line-2\n"
        assert await server.stored("logs.txt") == whole
        assert await server.stored("partial.txt") is None
        assert server.calls("compose", "logs.txt")
        assert not server.calls("put", "logs.txt"), "the store copies, nothing is sent again"
        page = await server.page()
        assert (page["state"], page["total"], "streaming" in page) == ("closed", len(whole), False)
        assert server.metric("tailrace_runs_waiting") == 0

    play(scenario)


def test_a_late_partial_does_not_overwrite_the_final_text() -> None:
    """S3LogStorageTest.testLatePartialDoesNotOverwriteExistingLogsTxt.

    An existing `logs.txt` stays as it is, and the late `partial.txt` is deleted, unmerged.
    Ours: the final text stays the beginning, and the late lines are added to it.
    """

    async def scenario(server: Server) -> None:
        await server.disk_store.put(f"{THEIRS}/logs.txt", b"closed by OpenMetadata\n")
        await server.append("late-tail\n")
        assert (await server.page())["logs"] == "closed by OpenMetadata\nlate-tail"
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == "closed by OpenMetadata\nlate-tail\n"
        assert await server.stored("partial.txt") is None

    play(scenario)


def test_a_bare_404_to_a_head_means_that_it_is_not_there() -> None:
    """S3LogStorageTest.testLogsTxtHeadObjectGeneric404IsTreatedAsMissing.

    A HEAD has no body, so S3 names no code there but 404.
    """
    answer = {
        "Error": {"Code": "404", "Message": "Not Found"},
        "ResponseMetadata": {"HTTPStatusCode": 404},
    }
    failure = failure_of(ClientError(answer, "HeadObject"))
    assert failure is not None
    assert isinstance(failure.error("head logs.txt"), NotFound)

    async def scenario(server: Server) -> None:
        await server.append("tail\n")
        assert await server.close() == "closed"
        assert await server.stored("logs.txt") == "tail\n"

    play(scenario)


def test_a_second_close_changes_nothing() -> None:
    """S3LogStorageTest.testCloseStreamIsIdempotent: it is a graceful no-op."""

    async def scenario(server: Server) -> None:
        await server.append("x\n")
        assert await server.close() == "closed"
        once = await server.stored("logs.txt"), await server.metadata("logs.txt")
        assert await server.close() == "closed"
        await server.restart()
        assert await server.close() == "closed"
        assert (await server.stored("logs.txt"), await server.metadata("logs.txt")) == once
        assert await server.close(run="never-was") == "closed"

    play(scenario)


def test_a_close_whose_flush_fails_loses_nothing() -> None:
    """S3LogStorageTest.testCloseStreamThrowsIfFinalFlushPutFails: an error; the line is kept.

    Ours: 200 with `closing`, since the close is recorded; it is finished, also by the next
    process, as soon as the store takes it. The client does not look at the answer.
    """

    async def scenario(server: Server) -> None:
        await server.append(LONG_LINE)
        server.outage.words.add("chunks")
        assert await server.close() == "closing"
        assert await server.stored("logs.txt") is None
        assert (await server.page())["logs"] == LONG_LINE[:-1]
        await server.kill()
        await server.passes(seconds=30)
        assert (await server.page())["logs"] == LONG_LINE[:-1]
        server.outage.words.clear()
        await server.passes(minutes=2)
        assert await server.stored("logs.txt") == LONG_LINE
        assert (await server.page())["state"] == "closed"

    play(scenario)


def test_an_abandoned_run_is_finalised() -> None:
    """S3LogStorageTest.testCleanupAbandonedStreamsCopiesPartialToLogsAndDrops: after 25 hours.

    Ours: also when no process remembers it: upstream's sweeper looks at its memory only.
    """

    async def scenario(server: Server) -> None:
        await server.append("abandoned\n")
        viewer = await server.watch()
        await server.passes(minutes=20)
        assert await server.stored("logs.txt") is None
        assert not viewer.ended()
        await server.restart()
        viewer = await server.watch()
        await server.passes(minutes=12)
        assert await server.stored("logs.txt") == "abandoned\n"
        assert await server.stored("partial.txt") is None
        assert viewer.ended()
        assert viewer.last["eventType"] == "complete"

    play(scenario, settings=SWEEPING)


def test_an_abandoned_run_of_openmetadata_is_read_as_it_is() -> None:
    """Not upstream's: a run that its server left behind can be read and closed here."""

    async def scenario(server: Server) -> None:
        await written_by_openmetadata(server, "left behind\n")
        assert (await server.page())["logs"] == "left behind"
        assert await server.close() == "closed"
        assert await server.text() == "left behind\n"

    play(scenario)
