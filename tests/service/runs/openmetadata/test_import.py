"""Runs that OpenMetadata wrote: read, appended to, closed, listed and deleted like our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.run_log.openmetadata import WRITER
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.objects.store import ObjectInfo
from tests.service.runs.world import World
from tests.simulation.faulty_store import FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

DOTTED = RunKey("my service.a pipeline", "6f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d")
PLAIN = RunKey("plain", DOTTED.run)
FOLDERS = {DOTTED: "pipeline-logs/my_service_a_pipeline", PLAIN: "pipeline-logs/plain"}
RUNS = [DOTTED, PLAIN]
ODD = b"a\r\n\r\n\xff\xfe\x80\n\n\xe2\x80\xa8x\n"
METADATA = {"last-flushed-line": "2", "writer-epoch": "1750000000123", "total-bytes": "4"}


async def upstream(world: World, key: RunKey, name: str, body: bytes) -> ObjectInfo:
    """What an OpenMetadata server left behind."""
    place = f"{FOLDERS[key]}/{key.run}/{name}.txt"
    return await world.disk_store.put(place, body, metadata=METADATA)


async def started(key: RunKey = DOTTED, /, **texts: bytes) -> World:
    world = World()
    for name, body in texts.items():
        await upstream(world, key, name, body)
    await world.run_logs.start()
    return world


async def stored(world: World, key: str) -> bytes | None:
    try:
        return (await world.disk_store.get(key))[1]
    except NotFound:
        return None


async def agree(world: World, key: RunKey, expected: bytes, state: str) -> None:
    assert await world.whole(key) == expected
    assert await world.paged(key, 1) == expected
    assert await world.paged(key, 1000) == expected
    assert await world.caught_up(key) == expected
    size = await world.run_logs.reader.size(key)
    assert (size.total_bytes, size.state) == (len(expected), state)


@pytest.mark.on_servers(key=(DOTTED,), expected=(b"a\nb\nlate\n", ODD))
@pytest.mark.parametrize("key", RUNS)
@pytest.mark.parametrize(
    ("partial", "logs", "expected", "state"),
    [
        (b"a\nb\n", None, b"a\nb\n", "open"),
        (b"a\nb", None, b"a\nb\n", "open"),
        (None, b"a\nb\n", b"a\nb\n", "closed"),
        (None, b"a\nb", b"a\nb\n", "closed"),
        (b"a\nb\n", b"a\nb\n", b"a\nb\n", "closed"),  # killed between copying and deleting
        (b"a\n", b"a\nb\n", b"a\nb\n", "closed"),
        (b"a\nb\nc\n", b"a\nb\n", b"a\nb\nc\n", "open"),
        (b"a\nb\nc\n", b"a\nb", b"a\nb\nc\n", "open"),
        (b"late\n", b"a\nb\n", b"a\nb\nlate\n", "open"),
        (b"late", b"a\nb", b"a\nb\nlate\n", "open"),
        (b"a\nbc\n", b"a\nb", b"a\nb\na\nbc\n", "open"),  # not a beginning: another last line
        (b"", b"a\n", b"a\n", "closed"),
        (b"a\n", b"", b"a\n", "open"),
        (None, ODD, ODD, "closed"),
    ],
)
async def test_what_is_read(
    key: RunKey, partial: bytes | None, logs: bytes | None, expected: bytes, state: str
) -> None:
    texts = {"partial": partial, "logs": logs}
    world = await started(key, **{name: body for name, body in texts.items() if body is not None})
    await agree(world, key, expected, state)
    assert world.run_logs.importer.imported == 1
    await world.restart()
    await agree(world, key, expected, state)
    assert world.run_logs.importer.imported == 0


@pytest.mark.on_servers(body=(b"a\nb",), read_first=(False,))
@pytest.mark.parametrize("key", RUNS)
@pytest.mark.parametrize("name", ["partial", "logs"])
@pytest.mark.parametrize("body", [b"a\nb\n", b"a\nb"])
@pytest.mark.parametrize("read_first", [False, True])
async def test_appended_to_and_closed(
    key: RunKey, name: str, body: bytes, read_first: bool
) -> None:
    world = await started(key, **{name: body})
    if read_first:
        await world.whole(key)
    world.append(key, b"c\n")
    await world.confirm()
    await world.run_logs.flusher.flush(key)
    await agree(world, key, b"a\nb\nc\n", "open")
    assert await world.run_logs.close_run(key) == "closed"
    await agree(world, key, b"a\nb\nc\n", "closed")
    assert await stored(world, keys.logs("pipeline-logs", key)) == b"a\nb\nc\n"
    assert await stored(world, keys.partial("pipeline-logs", key)) is None
    if key is DOTTED:  # not our key: left as it was
        assert await stored(world, f"{FOLDERS[key]}/{key.run}/{name}.txt") == body


@pytest.mark.on_servers(body=(b"a\nb",))
@pytest.mark.parametrize("name", ["partial", "logs"])
@pytest.mark.parametrize("body", [b"a\nb\n", b"a\nb"])
async def test_closed_at_the_first_touch(name: str, body: bytes) -> None:
    world = await started(**{name: body})
    assert await world.run_logs.close_run(DOTTED) == "closed"
    await agree(world, DOTTED, b"a\nb\n", "closed")
    assert await stored(world, keys.logs("pipeline-logs", DOTTED)) == b"a\nb\n"


async def test_unflushed_lines_follow_an_imported_run() -> None:
    world = await started(partial=b"a\nb\n")
    world.append(DOTTED, b"c\n")
    await agree(world, DOTTED, b"a\nb\nc\n", "open")
    await world.confirm()
    await agree(world, DOTTED, b"a\nb\nc\n", "open")


async def test_a_run_that_never_was_stays_one_and_is_not_looked_for_all_the_time() -> None:
    world = await started()
    world.store = faulty = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(faulty)
    for _ in range(3):
        with pytest.raises(NotFound):
            await world.run_logs.reader.page(DOTTED, after=None, limit=1)
    lists = [call for call in faulty.calls if call.startswith("list pipeline-logs/")]
    assert len([call for call in lists if ".active" not in call]) == 2, lists
    world.clock.pass_seconds(11)
    await upstream(world, DOTTED, "partial", b"a\n")
    await agree(world, DOTTED, b"a\n", "open")


async def test_a_closed_text_at_our_own_key_is_not_copied() -> None:
    world = await started(PLAIN, logs=b"a\nb\n")
    faulty = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(faulty)
    await agree(world, PLAIN, b"a\nb\n", "closed")
    assert not [call for call in faulty.calls if call.startswith("compose")]
    manifest = (await world.run_logs.manifests.get(PLAIN)).manifest
    assert manifest.sealed
    assert manifest.settled()


async def test_what_nobody_closes_is_closed_after_a_day_by_a_process_that_never_saw_it() -> None:
    world = await started(partial=b"a\nb\n")
    await agree(world, DOTTED, b"a\nb\n", "open")
    await world.restart()
    world.clock.pass_seconds(86_401)
    await world.run_logs.sweeper.sweep()
    await agree(world, DOTTED, b"a\nb\n", "closed")
    assert await stored(world, keys.logs("pipeline-logs", DOTTED)) == b"a\nb\n"


@pytest.mark.parametrize("mark", [{"pipeline": DOTTED.fqn}, {"pipeline": "another.name"}, {}])
async def test_what_a_server_left_in_progress_is_closed_though_nobody_asks_for_it(
    mark: dict[str, str],
) -> None:
    world = await started(partial=b"a\nb")
    where = FOLDERS[DOTTED].replace("pipeline-logs/", "pipeline-logs/.active/")
    await world.disk_store.put(f"{where}/{DOTTED.run}/om-server-0", b"", metadata=mark)
    world.clock.pass_seconds(86_401)
    await world.run_logs.sweeper.sweep()
    closed = await stored(world, keys.logs("pipeline-logs", DOTTED))
    # Without the name nobody can say whose it is.
    assert closed == (b"a\nb\n" if mark == {"pipeline": DOTTED.fqn} else None)
    assert world.run_logs.importer.imported == (closed is not None)
    await world.run_logs.sweeper.sweep()
    assert world.run_logs.importer.imported == (closed is not None)


async def test_what_a_server_may_still_be_at_is_left_to_it() -> None:
    world = await started(partial=b"a\nb")
    where = FOLDERS[DOTTED].replace("pipeline-logs/", "pipeline-logs/.active/")
    mark = {"pipeline": DOTTED.fqn}
    info = await world.disk_store.put(f"{where}/{DOTTED.run}/om-server-0", b"", metadata=mark)
    await world.run_logs.importer.import_left(info.modified_ms)
    assert world.run_logs.importer.imported == 0
    await world.run_logs.importer.import_left(info.modified_ms + 1)
    assert world.run_logs.importer.imported == 1


async def test_what_a_server_left_and_nobody_can_take_in_holds_back_no_sweep() -> None:
    class Unreadable(FaultyStore):
        """One text cannot be read."""

        def stream(self, key: str, **conditions: Any) -> AsyncIterator[bytes]:
            if DOTTED.run in key and key.endswith("partial.txt"):
                raise StoreUnavailable(key)
            return super().stream(key, **conditions)

    world = await started(partial=b"a\n")
    other = RunKey(DOTTED.fqn, "7f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d")
    await world.disk_store.put(f"{FOLDERS[DOTTED]}/{other.run}/partial.txt", b"z\n")
    where = FOLDERS[DOTTED].replace("pipeline-logs/", "pipeline-logs/.active/")
    for run in (DOTTED.run, other.run):
        mark = {"pipeline": DOTTED.fqn}
        await world.disk_store.put(f"{where}/{run}/om-server-0", b"", metadata=mark)
    await world.restart(Unreadable(world.disk_store, Schedule.none()))
    world.append(PLAIN, b"ours\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.pass_seconds(100_000)
    await world.run_logs.sweeper.sweep()
    assert await stored(world, keys.logs("pipeline-logs", other)) == b"z\n"
    assert await stored(world, keys.logs("pipeline-logs", PLAIN)) == b"ours\n"
    assert "what OpenMetadata left" in (world.run_logs.sweeper.last_error or "")


async def test_a_page_is_one_ranged_get_also_far_into_a_large_text() -> None:
    text = b"".join(b"%07d %s\n" % (number, b"x" * 90) for number in range(60_000))
    world = await started(partial=text)
    faulty = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(faulty)
    await world.run_logs.reader.page(DOTTED, after=None, limit=1)
    faulty.calls.clear()
    page = await world.run_logs.reader.page(DOTTED, after="41000", limit=100)
    assert page.text == text[41_000 * 99 : 41_100 * 99]
    reads = [call for call in faulty.calls if "chunks" in call]
    assert len(reads) == 1  # the text; directory and piece are known since the first page
    assert reads[0].endswith(".txt")


async def test_pages_go_on_with_tokens_from_before_a_close() -> None:
    world = await started(partial=b"a\nb\nc\n")
    page = await world.run_logs.reader.page(DOTTED, after=None, limit=2)
    first = (await world.run_logs.reader.batches_after(DOTTED, None, max_bytes=1)).piece
    await world.run_logs.close_run(DOTTED)
    rest = await world.run_logs.reader.page(DOTTED, after=page.after, limit=2)
    assert page.text + rest.text == b"a\nb\nc\n"
    assert first is not None
    after = await world.run_logs.reader.batches_after(DOTTED, first.cursor, max_bytes=9)
    assert (after.piece, after.more, after.state) == (None, False, "closed")


async def test_the_writers_epoch_goes_on_rising() -> None:
    world = await started(PLAIN, partial=b"a\n")
    world.append(PLAIN, b"b\n")
    await world.confirm()
    await world.run_logs.flusher.flush(PLAIN)
    info = await world.disk_store.head(keys.partial("pipeline-logs", PLAIN))
    assert info.metadata["writer-epoch"] == "1750000000124"
    assert await stored(world, info.key) == b"a\nb\n"


async def test_equal_objects_give_equal_ids_and_other_objects_other_ones() -> None:
    world = await started(partial=b"a\n", logs=b"z\n")
    await world.whole(DOTTED)
    first = (await world.run_logs.manifests.get(DOTTED)).manifest
    await world.disk_store.delete([keys.run_manifest(DOTTED)])
    await world.restart()
    await world.whole(DOTTED)
    again = (await world.run_logs.manifests.get(DOTTED)).manifest
    assert again.chunks == first.chunks
    assert again.writers == {WRITER: 2}
    await world.disk_store.delete([keys.run_manifest(DOTTED)])
    await upstream(world, DOTTED, "partial", b"b\n")
    await world.restart()
    assert await world.whole(DOTTED) == b"z\nb\n"
    other = (await world.run_logs.manifests.get(DOTTED)).manifest
    assert other.chunks[0].id != first.chunks[0].id


async def test_somebody_who_goes_on_writing_is_reported_not_mixed_up() -> None:
    class Restless(FaultyStore):
        """An OpenMetadata server that writes just before every copy."""

        async def compose(self, key: str, *args: object, **kwargs: object) -> ObjectInfo:
            await upstream(world, DOTTED, "partial", b"line %d\n" % len(self.calls))
            return await super().compose(key, *args, **kwargs)  # type: ignore[arg-type]

    world = await started(partial=b"a\n")
    await world.restart(Restless(world.disk_store, Schedule.none()))
    with pytest.raises(StoreUnavailable, match="changes all the time"):
        await world.whole(DOTTED)


# --- lists ------------------------------------------------------------------------------


async def test_lists_show_what_nobody_touched_without_taking_it_in() -> None:
    world = await started(partial=b"a\nb\n")
    other = RunKey(DOTTED.fqn, "7f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d")
    await world.disk_store.put(f"{FOLDERS[DOTTED]}/{other.run}/logs.txt", b"z\n")
    found = {run.run: run for run in await world.listed(DOTTED.fqn, 10)}
    assert {name: (run.state, run.lines, run.bytes) for name, run in found.items()} == {
        DOTTED.run: ("open", None, 4),
        other.run: ("closed", None, 2),
    }
    assert world.run_logs.importer.imported == 0
    assert (
        await world.run_logs.listing.pipelines() == []
    )  # a folder does not tell its pipeline's name
    await world.whole(DOTTED)
    found = {run.run: run for run in await world.listed(DOTTED.fqn, 10)}
    assert found[DOTTED.run].lines == 2
    assert await world.run_logs.listing.pipelines() == [DOTTED.fqn]
    assert len(await world.listed(DOTTED.fqn, 1)) == 1


async def test_lists_of_a_plain_name_have_each_run_once() -> None:
    world = await started(PLAIN, partial=b"a\n", logs=b"a\n")
    assert [run.run for run in await world.listed(PLAIN.fqn, 10)] == [PLAIN.run]
    await world.run_logs.close_run(PLAIN)
    assert [run.run for run in await world.listed(PLAIN.fqn, 10)] == [PLAIN.run]


# --- names that share a folder -----------------------------------------------------------


async def test_names_that_share_a_folder_have_copies_of_their_own() -> None:
    world = await started(partial=b"a\n")
    other = RunKey("my service a.pipeline", DOTTED.run)
    assert await world.whole(DOTTED) == await world.whole(other) == b"a\n"
    world.append(other, b"b\n")
    await world.confirm()
    await world.run_logs.flusher.flush(other)
    assert await world.run_logs.close_run(other) == "closed"
    await agree(world, other, b"a\nb\n", "closed")
    await agree(world, DOTTED, b"a\n", "open")
    await world.run_logs.delete_run(other)
    await agree(world, DOTTED, b"a\n", "open")
