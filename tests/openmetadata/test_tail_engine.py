"""The tests of OpenMetadata's tail engine (its IngestionLogTailer), behaviour by behaviour.

Its engine polls the store for each watched run and holds viewers to limits of time and
size. Ours is told of each batch, so nothing has to be limited: where upstream ends a stream
that is idle, old or long, ours goes on, and the test says so.
"""

from __future__ import annotations

from tests.openmetadata.server import NODE, OTHER, RUN, Server, numbered, play
from tests.settings import settings_with


def test_new_content_is_delivered() -> None:
    """LogTailer.1: what is appended reaches the viewer."""

    async def scenario(server: Server) -> None:
        viewer = await server.watch()
        await server.append("a\n")
        await server.passes(seconds=1)
        await server.append("b\nc\n")
        await server.passes(seconds=1)
        assert viewer.text == "a\nb\nc\n"
        assert {event["eventType"] for event in viewer.events} == {"logs"}
        assert {event["runId"] for event in viewer.events} == {RUN}

    play(scenario)


def test_one_reader_serves_all_viewers() -> None:
    """LogTailer.2: one reader against the store for all viewers of a run.

    Ours: none: viewers that are level are told by the append, and share its frame.
    """

    async def scenario(server: Server) -> None:
        await server.append("seed\n")
        viewers = [await server.watch() for _ in range(20)]
        before = len(server.store.calls)
        await server.append(numbered(0, 50))
        await server.passes(seconds=1)
        read = [call for call in server.store.calls[before:] if call.startswith(("get", "stream"))]
        assert len(read) <= 2, "other loops look, viewers do not"
        (channel,) = server.node.tail.watched.values()
        ticks, _, _ = channel.take(channel._first, None)
        frames = ticks[-1].frames.values()
        assert len({id(frame.event) for frame in frames}) == 1, "encoded once for all"
        assert {viewer.text for viewer in viewers} == {"seed\n" + numbered(0, 50)}

    play(scenario)


def test_a_late_viewer_gets_what_was() -> None:
    """LogTailer.3: a late viewer gets the buffered chunks, flagged `replay`.

    Ours: every line from the beginning, unflagged, since the page appends what comes; a viewer
    that wants only the end asks with `tail`.
    """

    async def scenario(server: Server) -> None:
        first = await server.watch()
        await server.append(numbered(0, 150))
        await server.passes(minutes=3)
        late = await server.watch()
        assert late.text == numbered(0, 150)
        await server.append("next\n")
        await server.passes(seconds=1)
        assert late.last["logs"] == first.last["logs"] == "next\n"

    play(scenario)


def test_a_long_backlog_comes_whole() -> None:
    """LogTailer.4: a backlog above the limit of a replay is cut and flagged `truncated`.

    Ours: with a cursor every line comes, however many; nothing is cut.
    """

    async def scenario(server: Server) -> None:
        for part in range(12):
            await server.append(numbered(part * 4000, part * 4000 + 4000))
        await server.passes(minutes=3)
        viewer = await server.watch(after="0")
        await server.passes(seconds=5)
        assert viewer.text == numbered(0, 48_000)
        assert not [event for event in viewer.events if event.get("truncated")]

    play(scenario)


def test_a_run_that_finished_is_completed_after_a_grace() -> None:
    """LogTailer.5: finished by its status, and 10 s of grace: `complete` with `runFinished`."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        await server.says("success")
        await server.passes(seconds=5)
        await server.append("last words\n")
        await server.passes(seconds=9)
        assert not viewer.ended()
        await server.passes(seconds=2)
        assert viewer.ended()
        assert viewer.text == "a\nlast words\n"
        assert (viewer.last["eventType"], viewer.last["reason"]) == ("complete", "runFinished")

    play(scenario)


def test_a_run_that_goes_on_is_not_completed() -> None:
    """LogTailer.6: `running` keeps the stream open."""

    async def scenario(server: Server) -> None:
        await server.says("running")
        await server.append("a\n")
        viewer = await server.watch()
        await server.passes(minutes=10)
        assert not viewer.ended()
        await server.append("b\n")
        await server.passes(seconds=1)
        assert viewer.text == "a\nb\n"

    play(scenario)


def test_an_idle_stream_stays() -> None:
    """LogTailer.7: after 300 s without content, `complete` with `idleTimeout`.

    Ours: a run that is silent is not over, and a silent stream costs nothing: it stays, and
    sends a comment every 25 s.
    """

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        await server.passes(minutes=15)
        assert not viewer.ended()
        assert viewer.body.count(b": heartbeat\n\n") in (35, 36)
        await server.append("b\n")
        await server.passes(seconds=1)
        assert viewer.text == "a\nb\n"

    play(scenario)


def test_a_long_stream_stays() -> None:
    """LogTailer.8: past the bytes that a stream may send, `complete` with `maxBytes`.

    Ours: no limit of bytes (upstream's is 32 MiB; this stream sends many times its ring).
    """
    settings = settings_with(NODE, sse={"ring_bytes": 64 << 10})

    async def scenario(server: Server) -> None:
        viewer = await server.watch(after="0")
        for part in range(40):
            await server.append(numbered(part * 3000, part * 3000 + 3000))
        await server.passes(seconds=5)
        assert not viewer.ended()
        assert viewer.text == numbered(0, 120_000)

    play(scenario, settings=settings)


def test_the_last_viewer_that_leaves_ends_the_watch() -> None:
    """LogTailer.9: when the last viewer has left, the run is not read any more."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewers = [await server.watch(), await server.watch()]
        for viewer in viewers:
            assert server.node.tail.watched
            viewer.leave()
            await server.passes(seconds=1)
        assert server.node.tail.watched == {}
        assert server.node.tail.readers == 0
        await server.append("b\n")
        await server.passes(minutes=1)
        assert [viewer.text for viewer in viewers] == ["a\n", "a\n"]

    play(scenario)


def test_a_read_that_fails_for_a_moment_is_borne() -> None:
    """LogTailer.10: a transient error of the store does not end the stream."""

    async def scenario(server: Server) -> None:
        await server.append(numbered(0, 10))
        await server.passes(minutes=3)
        server.outage.words.update(("get", "stream"))
        viewer = await server.watch()
        await server.passes(seconds=30)
        assert not viewer.ended()
        assert viewer.text == numbered(0, 10), "the node still holds them"
        server.outage.words.clear()
        await server.append(numbered(10, 12))
        await server.passes(seconds=5)
        assert viewer.text == numbered(0, 12)

    play(scenario)


def test_a_read_that_can_never_work_ends_with_an_error() -> None:
    """LogTailer.11: a permanent error is one `error` event, and the end."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        await server.close()
        await server.disk_store.put("runs/service.pipeline/" + RUN + ".json", b"nonsense")
        viewer = await server.watch()
        await server.passes(seconds=30)
        assert viewer.ended()
        assert viewer.status == 200
        assert [event["eventType"] for event in viewer.events] == ["error"]
        assert viewer.last["message"]

    play(scenario)


def test_a_run_that_nobody_knows_yet_is_waited_for() -> None:
    """LogTailer.12: an unknown run gets a longer grace (60 s) before its stream ends.

    Ours: it is waited for as long as the viewer likes.
    """

    async def scenario(server: Server) -> None:
        viewer = await server.watch(run="not-yet")
        await server.passes(minutes=5)
        assert not viewer.ended()
        await server.append("here I am\n", "not-yet")
        await server.passes(seconds=1)
        assert viewer.text == "here I am\n"

    play(scenario)


def test_the_state_of_a_run_is_asked_for_all_viewers_at_once() -> None:
    """LogTailer.13: the probe of the run's state is cached for 10 s."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewers = [await server.watch() for _ in range(10)]
        assert len(server.calls("get", f"coordination/status/service.pipeline/{RUN}")) == 1
        await server.passes(seconds=60)
        asked = len(server.calls("get", f"coordination/status/service.pipeline/{RUN}"))
        assert asked <= 4, "once a heartbeat, whatever their number"
        assert not any(viewer.ended() for viewer in viewers)

    play(scenario)


def test_every_event_has_a_cursor() -> None:
    """LogTailer.14: each event can be resumed from."""

    async def scenario(server: Server) -> None:
        viewer = await server.watch()
        for part in range(5):
            await server.append(f"{part}\n")
            await server.passes(seconds=1)
        await server.close()
        await server.passes(seconds=1)
        cursors = [event["after"] for event in viewer.events]
        assert len(set(cursors[:-1])) == len(cursors) - 1 == 5
        assert cursors[-1] == cursors[-2], "complete says where it ended"

    play(scenario)


def test_a_viewer_that_comes_back_gets_what_it_missed() -> None:
    """LogTailer.15: with its cursor it gets the missed part, and only that.

    Ours: also after a restart of the server, and once the lines have moved to the store.
    """

    async def scenario(server: Server) -> None:
        await server.append("a\nb\n")
        viewer = await server.watch()
        cursor = viewer.last["after"]
        viewer.leave()
        await server.append("c\n")
        await server.passes(minutes=3)
        await server.kill()
        await server.append("d\n")
        again = await server.watch(after=cursor)
        assert again.text == "c\nd\n"

    play(scenario)


def test_a_viewer_that_is_up_to_date_gets_nothing() -> None:
    """LogTailer.16: nothing is sent again."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        again = await server.watch(after=viewer.last["after"])
        await server.passes(minutes=3)
        assert again.events == []

    play(scenario)


def test_a_cursor_that_nobody_can_place_is_said() -> None:
    """LogTailer.17: an empty event, `replay` and `truncated`, without a cursor; then what was."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch(after="no-such-cursor")
        first, *rest = viewer.events
        assert first == {
            "eventType": "logs",
            "runId": RUN,
            "logs": "",
            "replay": True,
            "truncated": True,
        }
        assert "".join([event["logs"] for event in rest]) == "a\n"

    play(scenario)


def test_a_state_that_cannot_be_asked_is_not_the_end() -> None:
    """LogTailer.18: a probe that fails does not count as finished."""

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        await server.says("success", OTHER)
        server.outage.words.add("coordination/status")
        viewer = await server.watch()
        await server.passes(minutes=2)
        assert not viewer.ended()
        assert server.node.status.endings.failures > 0
        server.outage.words.clear()
        await server.says("success")
        await server.passes(seconds=15)
        assert viewer.last["eventType"] == "complete"

    play(scenario)


def test_a_server_that_ends_closes_its_streams_cleanly() -> None:
    """LogTailer.19: when the poll crashes, the streams end instead of hanging.

    Ours: there is no poll. When the node goes, its streams end without `complete`, which tells
    the viewer to come back with its cursor.
    """

    async def scenario(server: Server) -> None:
        await server.append("a\n")
        viewer = await server.watch()
        cursor = viewer.last["after"]
        await server.restart()
        assert viewer.ended()
        assert [event["eventType"] for event in viewer.events] == ["logs"]
        await server.append("b\n")
        again = await server.watch(after=cursor)
        assert again.text == "b\n"

    play(scenario)
