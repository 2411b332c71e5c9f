"""Single flipped bits in a table file that Spark wrote: nobody takes one for another value."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.ingest import ingest_all
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import Compaction
from compactor.spark.engine import RewriteInput
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged, Unavailable
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.table.file_check import check_table_file
from tailrace.logstore.table.snapshot import TableFile
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.test_left_out import tailrace
from tests.service.query.world import World, engine_of

pytestmark = pytest.mark.spark

FLIPS = 400
SEARCHED = 20
SPARKS_SHARE = 8  # of the flips that pyarrow reads as other values without checksums


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, session: object) -> tuple[Lake, TableFile]:
    """A lake whose table is one file, which Spark wrote."""
    lake = Lake(tmp_path_factory.mktemp("written") / "data")
    lake.session = session  # type: ignore[assignment]
    text = "".join(
        f"{'ERROR' if n % 7 else 'INFO'} request {n * 7919 % 1000} took {n} ms\n"
        for n in range(150)
    )
    lake.put(
        "a",
        [
            (key, first + n, text.encode())
            for n in (0, 1 << 32)
            for key, first, _ in [batch("f", "r", NOON, 1)]
        ],
    )
    lake.put("a", [batch("g", "s", NOON + 5, 40)])
    lake.compact()
    (file,) = lake.snapshot().files
    return lake, file


def key_of(file: TableFile) -> str:
    return f"{keys.TABLE}/{file.path}"


def flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def spread(body: bytes) -> Iterator[int]:
    """Bits all over the file, of all places in a byte."""
    step = len(body) * 8 // FLIPS | 1
    return iter(range(0, len(body) * 8, step))


def read(body: bytes) -> list[Any] | None:
    """The lines as a reader without checksums gives them; None if it does not."""
    try:
        lines: list[Any] = pq.ParquetFile(pa.BufferReader(body)).read().to_pylist()
    except (OSError, pa.ArrowException, ValueError):
        return None
    return lines


def silent_flips(body: bytes) -> list[int]:
    """Bits of pages that make a reader without checksums give other lines, and no error."""
    intact = read(body)
    footer = len(body) - pq.read_metadata(pa.BufferReader(body)).serialized_size - 8
    pages = (bit for bit in spread(body) if bit // 8 < footer)
    return [bit for bit in pages if read(flipped(body, bit)) not in (None, intact)]


def test_every_flip_is_noticed_or_harmless(written: tuple[Lake, TableFile]) -> None:
    lake, file = written
    body = lake.run(lake.store.get(key_of(file)))[1]
    intact = read(body)
    assert lake.run(check_table_file(lake.store, file, statistics=True))
    assert len(silent_flips(body)) > FLIPS // 20  # else this would test nothing
    try:
        for bit in spread(body):
            damaged = flipped(body, bit)
            Path(file.uri).write_bytes(damaged)
            try:
                lake.run(check_table_file(lake.store, file, statistics=True))
            except Damaged:
                continue
            assert read(damaged) == intact, f"nobody notices bit {bit}"
    finally:
        Path(file.uri).write_bytes(body)


@pytest.mark.parametrize("indexed", [False, True])
def test_no_search_gives_a_damaged_line_as_complete(
    written: tuple[Lake, TableFile], indexed: bool
) -> None:
    lake, file = written
    body = lake.run(lake.store.get(key_of(file)))[1]
    world = World(lake.data)
    everything, word = QueryRequest(), replace(QueryRequest(), condition=Contains("took 42"))
    silent = silent_flips(body)
    some = silent[:: max(len(silent) // SEARCHED, 1)]

    async def answers(engine: QueryEngine, asked: QueryRequest) -> tuple[list[Any], dict[str, Any]]:
        async with await engine.open(asked) as running:
            batches = [batch async for batch in running.batches()]
            return [row for batch in batches for row in batch.to_pylist()], running.stats()

    async def scenario() -> None:
        if indexed:
            await world.index()
        async with engine_of(world, scan_copies_bytes=0) as engine:
            intact = {asked: await answers(engine, asked) for asked in (everything, word)}
            assert all(lines and stats["complete"] for lines, stats in intact.values())
            for bit in some:
                Path(file.uri).write_bytes(flipped(body, bit))
                lines, stats = await answers(engine, everything)
                assert (lines, stats["complete"]) == ([], False), f"bit {bit}"
                assert stats["unreadable"] == [key_of(file)]
                lines, stats = await answers(engine, word)
                assert stats["unreadable"] == [key_of(file)] or lines == intact[word][0]
            Path(file.uri).write_bytes(body)
            assert await answers(engine, everything) == intact[everything]

    try:
        lake.run(scenario())
    finally:
        Path(file.uri).write_bytes(body)
        shutil.rmtree(lake.data / "store" / "table" / "_index", ignore_errors=True)


def test_spark_refuses_pages_that_do_not_match_their_crc(
    written: tuple[Lake, TableFile], tmp_path: Path
) -> None:
    lake, file = written
    body = lake.run(lake.store.get(key_of(file)))[1]
    silent = silent_flips(body)
    damaged = str(tmp_path / "damaged.parquet")
    for number, bit in enumerate(silent[:: max(len(silent) // SPARKS_SHARE, 1)]):
        Path(damaged).write_bytes(flipped(body, bit))
        work = RewriteInput({damaged: file.size}, file.rows, 1, [])
        with pytest.raises(Unavailable, match=r"(?i)crc|checksum|corrupt|decod|page"):
            lake.session.rewrite(work, str(tmp_path / f"out{number}"))


@pytest.mark.in_turn(4)
def test_a_damaged_hour_is_not_rewritten_and_everything_says_so(warm: Lake) -> None:
    sent = [batch("f", f"r{n}", NOON + n, 30) for n in range(4)]
    other = batch("f", "r", NOON + HOUR, 10)
    for one in sent:
        warm.put("a", [one])
        warm.run(ingest_all(warm.compactor, PassReport()))
    file = warm.snapshot().files[1]
    body = warm.run(warm.store.get(key_of(file)))[1]
    metadata = pq.read_metadata(pa.BufferReader(body))
    number = metadata.schema.names.index("message")
    chunk = metadata.row_group(0).column(number)
    at = chunk.data_page_offset + chunk.total_compressed_size - 8
    Path(file.uri).write_bytes(flipped(body, at * 8))
    warm.clock.shift_ms = 3 * HOUR
    warm.limits = Compaction(settle_seconds=0)
    before = warm.snapshot()
    for _ in range(2):
        report = PassReport()
        warm.run(rewrite_hours(warm.compactor, report))
        (alarm,) = report.alarms
        assert alarm.startswith("hour 2026-11-21T12 is not rewritten: ")
        assert f"{file.path} of the table" in alarm
        assert "is damaged (row group 0, column message: the page at byte" in alarm
        assert warm.snapshot().version == before.version
    warm.put("a", [other])  # everything else goes on
    report = warm.compact()
    assert (report.rows_out, len(report.alarms)) == (10, 1)
    verified = tailrace(warm, "verify", "--json")
    assert verified.returncode == 1
    faults = [orjson.loads(line) for line in verified.stdout.splitlines()[:-1]]
    (fault,) = [one for one in faults if one["kind"] == "table-file-damaged"]
    assert (fault["place"], fault["lines"]) == (file.path, 30)
    assert fault["detail"].startswith("row group 0, column message: ")
    Path(file.uri).write_bytes(body)  # an intact copy
    report = PassReport()
    warm.run(rewrite_hours(warm.compactor, report))
    assert (report.alarms, report.hours_rewritten) == ([], 1)
    warm.holds([*sent, other])
