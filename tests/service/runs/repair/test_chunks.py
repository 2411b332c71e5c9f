"""Objects that somebody took out of the bucket: made again byte for byte, or reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from service.query.context import run_records
from service.settings import Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import ChunkLost
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.manifest import Manifest
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tests.batches import make_batches
from tests.service.query.world import World as Lake
from tests.service.query.world import engine_of, lake_in
from tests.service.runs.world import NODE, FakeJournal, World
from tests.simulation.backing import on_disk

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")
TUNING = Tuning(merge_above=4, merge_width=3, chunk_bytes=200, partial_seconds=1e9)
WHERE = ["segments", "table", "both"]


class Reader(World):
    """A node beside which somebody can search."""

    async def manifest(self) -> Manifest:
        return (await self.run_logs.manifests.get(RUN)).manifest


@asynccontextmanager
async def written(
    tmp_path: Path, *, batches: int = 6, where: str = "segments", closed: bool = False
) -> AsyncIterator[tuple[Reader, bytes]]:
    """A run whose lines are in chunks, and of which the journal has let go."""
    lake = lake_in(tmp_path)
    async with engine_of(lake) as engine:
        world = Reader(store=lake.store, tuning=TUNING)
        world.records = run_records(engine)
        await world.run_logs.start()
        expected = b""
        for number in range(batches):
            text = b"".join(b"%d line %d %s\r\n" % (number, i, b"." * number) for i in range(3))
            world.append(RUN, text)
            world.append(OTHER, b"other\n")
            expected += text
            await world.confirm()
            await world.run_logs.drain()
        if closed:
            assert await world.run_logs.close_run(RUN) == "closed"
        await move(lake, world, where)
        world.journal.first = world.journal.end
        await world.restart()
        yield world, expected
        await world.run_logs.stop()


async def move(lake: Lake, world: World, where: str) -> None:
    """The compactor took in half of the segments, or all, and those are gone."""
    seqs = {"segments": 0, "table": world.journal.seq, "both": world.journal.seq // 2}[where]
    if not seqs:
        return
    end = world.journal.segments[seqs - 1][2]
    part = make_batches(world.journal.node, world.journal.entries, world.journal.base).part(0, end)
    rows = pa.Table.from_batches(list(record_batches(part, Carry())))
    lake.write_table(rows, {world.journal.node: seqs})
    await lake.store.delete([keys.segment(world.journal.node, n) for n in range(1, seqs + 1)])


async def chunk_keys(world: Reader, ending: str) -> list[str]:
    chunks = (await world.manifest()).chunks
    return [f"{keys.chunks_of(keys.PREFIX, RUN)}{c.id}{ending}" for c in chunks]


async def agree(world: Reader, expected: bytes) -> None:
    assert await world.whole(RUN) == expected
    assert await world.paged(RUN, 4) == expected
    assert await world.caught_up(RUN) == expected


async def bodies(store: ObjectStore, names: list[str]) -> dict[str, bytes]:
    return {name: (await store.get(name))[1] for name in names}


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
@pytest.mark.on_servers(where=("both",))
@pytest.mark.parametrize("where", WHERE)
async def test_the_texts_of_chunks_vanished(tmp_path: Path, where: str) -> None:
    async with written(tmp_path, where=where) as (world, expected):
        names = await chunk_keys(world, ".txt")
        before = await bodies(world.store, names)
        await world.store.delete(names)
        await agree(world, expected)
        assert await bodies(world.store, names) == before, "the same bytes at the same keys"
        assert (
            world.run_logs.chunk_repairer.vanished
            == world.run_logs.chunk_repairer.repaired
            == len(names)
        )
        assert world.run_logs.problems() == []


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_the_texts_of_chunks_were_cut(tmp_path: Path) -> None:
    for act in ("read", "page", "close", "fold", "sweep") if on_disk() else ("fold", "sweep"):
        async with written(tmp_path / act) as (world, whole):
            expected = whole
            names = await chunk_keys(world, ".txt")
            before = await bodies(world.store, names)
            for name in names[:2]:
                await world.store.put(name, before[name][:-5])
            if act == "page":
                assert await world.paged(RUN, 4) == expected
            elif act == "close":
                assert await world.run_logs.close_run(RUN) == "closed"
                assert (await world.store.get(keys.logs(keys.PREFIX, RUN)))[1] == expected
            elif act == "sweep":
                await world.run_logs.sweeper.sweep()
                assert world.run_logs.chunk_repairer.repaired == 2
            for _ in range(6 if act == "fold" else 0):
                world.append(RUN, b"more\n")
                expected += b"more\n"
                await world.confirm()
                await world.run_logs.drain()
            await agree(world, expected)


async def flip(world: Reader, name: str, at: int) -> None:
    """Turns a bit of a chunk's text."""
    body = bytearray((await world.store.get(name))[1])
    body[at] ^= 1
    await world.store.put(name, bytes(body))


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_a_bit_of_a_chunk_is_noticed_wherever_it_flips_and_turned_back(
    tmp_path: Path,
) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        names = await chunk_keys(world, ".txt")
        before = await bodies(world.store, names)
        for name, body in before.items():
            for at in range(0, len(body), 5 if on_disk() else 50):
                await flip(world, name, at)
                assert await world.paged(RUN, 4) == expected
                await flip(world, name, at)
                assert await world.caught_up(RUN) == expected
        assert await bodies(world.store, names) == before
        assert world.run_logs.problems() == []


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_a_changed_chunk_that_nothing_else_has_is_not_shown(tmp_path: Path) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        names = await chunk_keys(world, ".txt")
        await flip(world, names[1], 5)
        await world.store.delete([keys.segment(world.journal.node, n) for n in range(1, 4)])
        with pytest.raises(ChunkLost, match="is damaged, and batch"):
            await world.paged(RUN, 4)
        assert any("is damaged" in problem for problem in world.run_logs.problems())
        page = await world.run_logs.reader.page(RUN, after=None, limit=3)
        assert page.text == expected[: len(page.text)], "the other chunks"


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
@pytest.mark.on_servers(where=("both",))
@pytest.mark.parametrize("where", WHERE)
async def test_the_indexes_of_chunks_vanished(tmp_path: Path, where: str) -> None:
    async with written(tmp_path, where=where, batches=3) as (world, expected):
        names = await chunk_keys(world, ".idx")
        await world.store.delete(names)
        await world.restart()
        await agree(world, expected)
        assert world.run_logs.chunk_repairer.repaired == len(names)
        assert await world.run_logs.find_batch(RUN, world.journal.entries[0][1]) is not None


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_the_indexes_of_chunks_were_cut(tmp_path: Path) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        names = await chunk_keys(world, ".idx")
        for name, body in (await bodies(world.store, names)).items():
            await world.store.put(name, body[:-9])
        await world.restart()
        await world.run_logs.sweeper.sweep()
        assert world.run_logs.chunk_repairer.repaired == len(names)
        await agree(world, expected)


@pytest.mark.repairs(reason="bits of indexes are turned")
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99], ids=["piece", "directory", "footer"])
async def test_a_bit_of_an_index_is_noticed_and_the_index_made_again(
    tmp_path: Path, place: float
) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        names = await chunk_keys(world, ".idx")
        for name, body in (await bodies(world.store, names)).items():
            await flip(world, name, int(len(body) * place))
        await world.restart()
        await agree(world, expected)
        assert world.run_logs.chunk_repairer.repaired == len(names)


@pytest.mark.repairs(reason="bits of indexes are turned")
async def test_a_damaged_index_of_lines_that_are_nowhere_else_is_reported(tmp_path: Path) -> None:
    async with written(tmp_path, batches=3) as (world, _):
        names = await chunk_keys(world, ".idx")
        await flip(world, names[1], -40)
        await world.store.delete([keys.segment(world.journal.node, n) for n in range(1, 4)])
        await world.restart()
        with pytest.raises(ChunkLost, match="is damaged, and its index too"):
            await world.paged(RUN, 4)
        assert any("is damaged" in problem for problem in world.run_logs.problems())


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
@pytest.mark.on_servers(where=("both",))
@pytest.mark.parametrize("where", WHERE)
async def test_a_whole_chunk_vanished(tmp_path: Path, where: str) -> None:
    async with written(tmp_path, where=where, batches=3) as (world, expected):
        text, index = await chunk_keys(world, ".txt"), await chunk_keys(world, ".idx")
        await world.store.delete([text[1], index[1]])
        await world.restart()
        await agree(world, expected)
        assert world.run_logs.chunk_repairer.repaired == 1


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
@pytest.mark.on_servers(where=("both",), damage=("other bytes",))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("damage", ["gone", "other bytes", "cut"])
async def test_logs_txt_vanished_or_was_written_over(
    tmp_path: Path, where: str, damage: str
) -> None:
    async with written(tmp_path, where=where, closed=True) as (world, expected):
        name = keys.logs(keys.PREFIX, RUN)
        if damage == "gone":
            await world.store.delete([name])
        else:
            await world.store.put(name, b"x" * 2000 if damage == "other bytes" else expected[:50])
        await agree(world, expected)
        assert (await world.store.get(name))[1] == expected
        assert (await world.run_logs.reader.size(RUN)).state == "closed"
        world.append(RUN, b"late\n")
        await world.confirm()
        await world.run_logs.drain()
        assert await world.run_logs.close_run(RUN) == "closed"
        await agree(world, expected + b"late\n")


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_a_chunk_of_several_nodes_vanished(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    async with engine_of(lake) as engine:
        worlds = []
        expected = b""
        for node in ("node-A", "node-B"):
            world = Reader(store=lake.store, tuning=TUNING, journal=FakeJournal(node=node), seed=5)
            world.records = run_records(engine)
            await world.run_logs.start()
            worlds.append(world)
        for number in range(12):
            world = worlds[number % 2]
            world.clock.ms = max(w.clock.ms for w in worlds)
            text = b"%d of %s\n" % (number, world.journal.node.encode())
            world.append(RUN, text)
            expected += text
            await world.confirm()
            await world.run_logs.drain()
        for world in worlds:
            world.journal.first = world.journal.end
            await world.restart()
        chunks = (await worlds[0].manifest()).chunks
        assert any(len(chunk.writers) == 2 for chunk in chunks)
        await lake.store.delete(await chunk_keys(worlds[0], ".txt"))
        for world in worlds:
            await agree(world, expected)


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
@pytest.mark.on_servers(fold=(True,))
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("closed", [True, False])
async def test_chunks_of_several_nodes_vanished_with_their_indexes(
    tmp_path: Path, *, fold: bool, closed: bool
) -> None:
    """All lines are there, of one producer in their order; what comes later is as ever."""
    lake = lake_in(tmp_path)
    tuning = TUNING if fold else Tuning(partial_seconds=1e9)
    async with engine_of(lake) as engine:
        worlds = []
        expected: list[bytes] = []
        for node in ("node-A", "node-B"):
            world = Reader(store=lake.store, tuning=tuning, journal=FakeJournal(node=node), seed=5)
            world.records = run_records(engine)
            await world.run_logs.start()
            worlds.append(world)
        for number in range(12):
            world = worlds[number % 2]
            world.clock.ms = max(w.clock.ms for w in worlds)
            expected.append(b"%d of %s\n" % (number, world.journal.node.encode()))
            world.append(RUN, expected[-1])
            if number % 4 > 1:
                await world.confirm()
                await world.run_logs.drain()
        if closed:
            for world in worlds:
                await world.run_logs.close_run(RUN)
        names = await chunk_keys(worlds[0], ".txt") + await chunk_keys(worlds[0], ".idx")
        await lake.store.delete([*names, keys.logs(keys.PREFIX, RUN)])
        for world in worlds:
            world.journal.first = world.journal.end
            await world.restart()
            assert await world.whole(RUN) == b"".join(expected)
            assert await world.paged(RUN, 5) == b"".join(expected)
        worlds[1].append(RUN, b"more\n")
        await worlds[1].confirm()
        await worlds[1].run_logs.drain()
        for world in worlds:
            await agree(world, b"".join(expected) + b"more\n")
            await world.run_logs.close_run(RUN)
        logs = (await lake.store.get(keys.logs(keys.PREFIX, RUN)))[1]
        assert logs == b"".join(expected) + b"more\n"
        assert (await worlds[0].run_logs.reader.size(RUN)).state == "closed"


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_what_cannot_be_made_again_is_reported_and_the_rest_still_reads(
    tmp_path: Path,
) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        names = await chunk_keys(world, ".txt")
        first = (await world.manifest()).chunks[0].lines
        await world.store.delete([names[0], *[keys.segment(NODE, n) for n in (1, 2, 3)]])
        with pytest.raises(ChunkLost):
            await world.whole(RUN)
        with pytest.raises(ChunkLost):
            await world.run_logs.reader.page(RUN, after=None, limit=2)
        assert any("is gone" in problem for problem in world.run_logs.problems())
        rest = b"".join(expected.splitlines(keepends=True)[first:])
        assert (await world.run_logs.reader.page(RUN, after=str(first), limit=1000)).text == rest
        world.append(RUN, b"new\n")
        await world.confirm()
        await world.run_logs.drain()
        page = await world.run_logs.reader.page(RUN, after=str(first), limit=1000)
        assert page.text == rest + b"new\n", "the run goes on"


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_nobody_can_search_here(tmp_path: Path) -> None:
    async with written(tmp_path) as (world, _):
        world.records = None
        await world.store.delete(await chunk_keys(world, ".txt"))
        with pytest.raises(ChunkLost):
            await world.whole(RUN)


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_a_flush_that_needs_a_vanished_index_ends(tmp_path: Path) -> None:
    """It looked again and again without a pause, for ever."""
    async with written(tmp_path, batches=3) as (world, expected):
        await world.store.delete(await chunk_keys(world, ".idx"))
        await world.restart()
        again = world.journal.entries[0]
        world.append(RUN, again[2], ulid=again[1])  # a copy: the index has to say so
        await world.confirm()
        await asyncio.wait_for(world.run_logs.drain(), 600)
        await agree(world, expected)


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_the_search_gives_a_copy_from_elsewhere(tmp_path: Path) -> None:
    """Its position is not the chunk's, so the lines were taken for lost, every other time."""
    async with written(tmp_path, batches=3) as (world, expected):
        inner = world.records
        assert inner is not None

        async def copies(key: RunKey, low: int, high: int) -> AsyncIterator[pa.RecordBatch]:
            async for batch in inner(key, low, high):
                places = [1000 + n if n < 3 else n for n in range(batch.num_rows)]
                at = batch.schema.get_field_index("pos")
                yield batch.set_column(at, "pos", pa.array(places, pa.int64()))

        world.records = copies
        await world.store.delete(await chunk_keys(world, ".idx"))
        await world.restart()
        await agree(world, expected)


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_a_close_makes_again_what_it_is_made_of(tmp_path: Path) -> None:
    async with written(tmp_path) as (world, expected):
        await world.store.delete((await chunk_keys(world, ".txt"))[1:3])
        assert await world.run_logs.close_run(RUN) == "closed"
        await agree(world, expected)
        assert (await world.store.get(keys.logs(keys.PREFIX, RUN)))[1] == expected


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_the_sweeper_finds_it_before_a_reader_does(tmp_path: Path) -> None:
    async with written(tmp_path) as (world, expected):
        names = await chunk_keys(world, ".txt")
        await world.store.delete(names[:1])
        await world.run_logs.sweeper.sweep()
        assert world.run_logs.chunk_repairer.repaired == 1
        assert len(await bodies(world.store, names)) == len(names)
        await agree(world, expected)


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_many_readers_make_it_again_once(tmp_path: Path) -> None:
    async with written(tmp_path) as (world, expected):
        await world.store.delete(await chunk_keys(world, ".txt"))
        texts = await asyncio.gather(*[world.whole(RUN) for _ in range(10)])
        assert set(texts) == {expected}
        assert world.run_logs.chunk_repairer.repaired == len(await chunk_keys(world, ".txt"))


async def test_a_partial_text_that_vanished_is_published_again(tmp_path: Path) -> None:
    async with written(tmp_path) as (world, expected):
        where = keys.partial(keys.PREFIX, RUN)
        await world.store.delete([where])
        await world.run_logs.sweeper.sweep()
        assert (await world.store.get(where))[1] == expected
        await world.run_logs.close_run(RUN)
        await world.store.put(where, b"left behind by a node that was killed")
        await world.restart()
        await world.run_logs.sweeper.sweep()
        assert [i.key async for i in world.store.list(where)] == []


@pytest.mark.repairs(reason="chunks or their indexes are taken away")
async def test_one_that_is_lost_keeps_no_other_from_being_repaired(tmp_path: Path) -> None:
    async with written(tmp_path, batches=3) as (world, expected):
        texts, indexes = await chunk_keys(world, ".txt"), await chunk_keys(world, ".idx")
        first = (await world.manifest()).chunks[0].lines
        await world.store.delete([indexes[0], texts[2]])
        await world.store.put(texts[0], b"y" * (await world.store.head(texts[0])).size)
        await world.restart()
        rest = b"".join(expected.splitlines(keepends=True)[first:])
        assert (await world.run_logs.reader.page(RUN, after=str(first), limit=1000)).text == rest
        with pytest.raises(ChunkLost):
            await world.run_logs.reader.page(RUN, after=None, limit=2)
