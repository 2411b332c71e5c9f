"""S3LogStorageTest, its tests of lists, deletion and listeners."""

from __future__ import annotations

from tests.openmetadata.server import FQN, OTHER, ROOT, RUN, Server, numbered, play


def test_runs_are_listed() -> None:
    """S3LogStorageTest.testListRuns: both runs. Ours: newest first, whatever their names."""

    async def scenario(server: Server) -> None:
        await server.append("a\n", OTHER)
        await server.close(OTHER)
        await server.passes(seconds=1)
        await server.append("b\n", RUN)
        assert await server.runs(limit=10) == [RUN, OTHER]
        await server.passes(minutes=3)
        assert await server.runs(limit=10) == [RUN, OTHER]

    play(scenario)


def test_deletion_takes_all_that_was_stored() -> None:
    """S3LogStorageTest.testDeleteLogs: `logs.txt` and `partial.txt` are deleted.

    Ours: every object of the run, and nothing of it can be read or searched from then on.
    """

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        await server.passes(minutes=3)
        await server.close()
        await server.append("late\n")
        await server.passes(minutes=3)
        await server.delete()
        assert await server.stored("") is None
        assert await server.runs() == []
        await server.append("again\n")
        assert await server.text() == "again\n"

    play(scenario)


def test_whether_a_run_exists() -> None:
    """S3LogStorageTest.testLogsExist: true, then false. Ours: also true while it is active."""

    async def scenario(server: Server) -> None:
        url = f"{ROOT}/logs/{FQN}/{RUN}/download"
        assert (await server.client.head(url)).status_code == 404
        await server.append("a\n")
        assert (await server.client.head(url)).status_code == 200
        await server.close()
        assert (await server.client.head(url)).status_code == 200
        await server.delete()
        assert (await server.client.head(url)).status_code == 404

    play(scenario)


def test_a_store_that_is_away_is_not_a_run_that_is_not_there() -> None:
    """S3LogStorageTest.testLogsExistWrapsUnexpectedHeadObjectErrors: the error is passed on."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        await server.close()
        server.outage.words.update(("get", "head"))
        reply = await server.client.head(f"{ROOT}/logs/{FQN}/{RUN}/download")
        assert (reply.status_code, reply.headers["Tailrace-Store"]) == (206, "silent")
        page = await server.client.get(f"{ROOT}/logs/{FQN}/{RUN}")  # the node still holds its lines
        assert (page.status_code, page.json()["store"], page.json()["logs"]) == (206, "silent", "a")
        other = await server.client.get(f"{ROOT}/logs/{FQN}/another")
        assert (other.status_code, other.json()["code"]) == (503, 503)
        assert other.json()["message"]
        server.outage.words.clear()

    play(scenario)


def test_a_listener_gets_what_was_then_what_comes_and_nothing_afterwards() -> None:
    """S3LogStorageTest.testRegisterLogListenerReplaysBufferedLogsAndStopsAfterUnregister."""

    async def scenario(server: Server) -> None:
        await server.append("old-1\nold-2")
        viewer = await server.watch()
        assert viewer.text == "old-1\nold-2\n"
        await server.append("new-1\nnew-2")
        await server.passes(seconds=1)
        assert viewer.text == "old-1\nold-2\nnew-1\nnew-2\n"
        viewer.leave()
        await server.passes(seconds=1)
        assert viewer.ended()
        await server.append("after-unregister")
        await server.passes(seconds=1)
        assert "after-unregister" not in viewer.text
        assert server.node.tail.watched == {}

    play(scenario)


def test_all_runs_of_a_pipeline_are_deleted() -> None:
    """S3LogStorageTest.testDeleteAllLogsClearsRecentCacheAndDeletesPaginatedObjects.

    However many objects there are, and what is only in memory too.
    """

    async def scenario(server: Server) -> None:
        for number in range(12):
            await server.append(numbered(0, 50), f"run-{number}")
        await server.passes(minutes=3)
        await server.append("first", RUN)
        await server.append("second", OTHER)
        await server.append("of another pipeline\n", RUN, "service.other")
        await server.delete(None)
        assert await server.runs(limit=100) == []
        for run in (RUN, OTHER, "run-3"):
            gone = await server.client.get(f"{ROOT}/logs/{FQN}/{run}/download")
            assert gone.status_code == 404
            assert await server.stored("", run) is None
        assert await server.text(RUN, "service.other") == "of another pipeline\n"

    play(scenario)
