"""Every kind of fault, made on purpose, is named; a store without one has none."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactor.skip_index import build
from service.peers.register import NodeEntry, encode_entry, unregistered
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tailrace.logstore.table.skip_index import Builder
from tailrace.logstore.table.table import TableChange, commit
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.segments import VerifiedSegments
from tests.batches import make_batches
from tests.compactor.lake import NOON, batch
from tests.edited import edited
from tests.skip_indexes import with_header
from tests.tailrace.verification.world import World, as_it_is, look, settings_for


def test_a_sound_store_has_no_fault(world: World) -> None:
    found = world.look()
    assert found.faults == []
    compared = found.findings.compared
    assert compared["runs"] == 5
    # Nine batches of 200 lines and 20 records of two lines; what was deleted is in no text.
    assert compared["segment lines"] == 1822
    assert compared["table lines"] == 1820
    assert compared["text lines"] == 400 + 400 + 400 + 40 + 2 + 2 - 2
    assert compared["journal lines compared"] == 2
    assert found.findings.notes == []


def test_an_empty_store_has_no_fault(tmp_path: Path) -> None:
    (tmp_path / "data" / "store").mkdir(parents=True)
    found = look(settings_for(tmp_path / "data"), tmp_path / "spill")
    assert found.faults == []
    assert "has no journal" in found.findings.notes[0]


def test_a_store_without_a_table_has_no_fault(world: World) -> None:
    shutil.rmtree(world.root / "table")
    assert world.look().faults == []


# --- segments ------------------------------------------------------------------------


@pytest.mark.parametrize("at", [10, -200, -20])
def test_a_changed_segment(world: World, at: int) -> None:
    damaged = world.segments()[1]
    world.change(damaged, at)
    fault = world.look().one("segment-damaged")
    assert fault.place.endswith(damaged.name)


def test_a_segment_under_the_key_of_another(world: World) -> None:
    first, second, *_ = world.segments()
    second.write_bytes(first.read_bytes())
    assert "its footer says that it is segment 1" in world.look().one("segment-damaged").detail


def test_a_missing_segment(world: World) -> None:
    gone = world.segments()[1]
    gone.unlink()
    assert world.look().one("segment-missing").place.endswith(gone.name)


def test_consumed_segments_are_no_fault(world: World) -> None:
    """The compactor raises `low`, then removes, lowest first; the table has the lines."""
    world.raise_low(3)
    for segment in world.segments()[:2]:
        segment.unlink()
    assert world.look().faults == []


class RaisedStore(LocalStore):
    """A compactor removes the first segments right after their node's mark was read."""

    raised: Callable[[], None] | None = None

    async def get(self, key: str, **options: Any) -> tuple[ObjectInfo, bytes]:
        found = await super().get(key, **options)
        if key.startswith(keys.WATERMARKS) and self.raised is not None:
            raised, self.raised = self.raised, None
            raised()
        return found


def test_segments_that_are_removed_meanwhile_are_no_fault(world: World) -> None:
    store = RaisedStore(str(world.root), Disk(), SystemClock(), system_entropy())

    def removed() -> None:
        world.raise_low(3)
        for segment in world.segments()[:2]:
            segment.unlink()

    store.raised = removed
    told: list[Fault] = []
    catalog = VerifiedSegments(store, Findings(told.append))

    async def looked() -> None:
        await catalog.read_marks()
        await catalog.refresh()

    asyncio.run(looked())
    assert told == []
    assert catalog.segments()[0].seq == 3


def test_a_segment_that_was_set_aside(world: World) -> None:
    damaged = world.segments()[1]
    world.change(damaged, 10)
    world.set_aside(2, "it is broken")
    found = world.look()
    assert "it is broken" in found.one("segment-aside").detail
    assert "segment-damaged" not in found.kinds


def test_a_marker_of_a_segment_that_is_gone(world: World) -> None:
    world.set_aside(99, "it is broken")
    assert world.look().one("marker-alone").place.endswith(f"{99:020d}")


# --- texts ---------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "name"), [("p/open", "chunks/*.txt"), ("p/closed", "logs.txt")])
def test_a_changed_text(world: World, run: str, name: str) -> None:
    (text,) = (world.root / "pipeline-logs" / run).glob(name)
    world.change(text, 2)
    found = world.look()
    assert "chunk-damaged" in found.kinds
    differs = found.one("line-differs")
    assert (differs.place, differs.lines) == (f"run {run}", 1)
    assert found.kinds <= {"chunk-damaged", "line-differs", "chunk-changed"}


def test_a_text_whose_lines_are_others(world: World) -> None:
    (text,) = world.chunks("p/open")
    text.write_bytes(text.read_bytes().replace(b"\n", b" ", 1))
    assert world.look().kinds == {"chunk-damaged"}


@pytest.mark.parametrize("run", ["p/open", "p/closed"])
def test_a_cut_text(world: World, run: str) -> None:
    text = world.root / "pipeline-logs" / run / "logs.txt" if run == "p/closed" else None
    text = text or world.chunks(run)[0]
    text.write_bytes(text.read_bytes()[:-10])
    assert world.look().kinds == {"chunk-changed"}


def test_a_missing_text(world: World) -> None:
    (text,) = world.chunks("p/open")
    text.unlink()
    fault = world.look().one("chunk-missing")
    assert fault.lines == 600
    assert fault.place.endswith(text.name)


def test_a_text_that_lifecycle_rules_took_away_is_no_fault(world: World) -> None:
    (text,) = world.chunks("p/open")
    index = text.with_suffix(".idx")
    old = ulid.encode(ulid.lowest_at(1_600_000_000_000))
    path = world.root / "runs" / "p" / "open.json"
    (chunk,) = orjson.loads(path.read_bytes())["chunks"]
    path.write_bytes(edited(path.read_bytes(), chunks=[chunk | {"id": old}]))
    text.unlink()
    index.unlink()
    assert world.look().faults == []


def test_a_missing_index(world: World) -> None:
    (index,) = world.chunks("p/open", "idx")
    index.unlink()
    assert world.look().kinds == {"index-missing"}


@pytest.mark.parametrize("at", [3, -40])
def test_a_changed_index(world: World, at: int) -> None:
    (index,) = world.chunks("p/open", "idx")
    world.change(index, at)
    assert world.look().one("index-damaged").place.endswith(index.name)


def test_an_index_that_is_not_what_its_manifest_says(world: World) -> None:
    path = world.root / "runs" / "p" / "open.json"
    chunks = orjson.loads(path.read_bytes())["chunks"]
    chunks[0]["records"] += 1
    path.write_bytes(edited(path.read_bytes(), chunks=chunks))
    assert world.look().kinds == {"index-damaged"}


def test_a_damaged_manifest(world: World) -> None:
    (world.root / "runs" / "p" / "open.json").write_bytes(b"{")
    found = world.look()
    assert found.one("manifest-damaged").place == "runs/p/open.json"
    assert found.kinds == {"manifest-damaged"}


def test_a_manifest_that_is_gone(world: World) -> None:
    (world.root / "runs" / "p" / "open.json").unlink()
    fault = world.look().one("run-lost")
    assert (fault.place, fault.lines) == ("run p/open", 600)


def test_lines_below_the_watermark_that_are_in_no_text(world: World) -> None:
    world.manifest("p/open", chunks=[])
    fault = world.look().one("line-not-in-text")
    assert (fault.place, fault.lines) == ("run p/open", 600)


def test_lines_above_the_watermark_need_not_be_in_texts(world: World) -> None:
    (mark,) = (world.root / "coordination" / "text").iterdir()
    mark.write_bytes(edited(mark.read_bytes(), seq=0, pos=0))
    world.manifest("p/open", chunks=[])
    (world.root / "runs" / "p" / "records.json").unlink()
    assert world.look().faults == []


def test_a_text_that_has_its_lines_twice(world: World) -> None:
    path = world.root / "runs" / "p" / "open.json"
    chunks = orjson.loads(path.read_bytes())["chunks"]
    path.write_bytes(edited(path.read_bytes(), chunks=chunks * 2))
    fault = world.look().one("line-twice-in-text")
    assert (fault.place, fault.lines) == ("run p/open", 600)


def test_lines_that_are_stored_nowhere_else(world: World) -> None:
    world.segments()[-1].unlink()
    found = world.look()
    in_text = [f for f in found.faults if f.kind == "line-not-stored" and "text" in f.detail]
    in_journal = [f for f in found.faults if f.kind == "line-not-stored" and "journal" in f.detail]
    assert [f.place for f in (*in_text, *in_journal)] == ["run q/late"] * 2
    assert "The journal has 2 more" in found.one("segment-lost").detail
    assert len(found.faults) == 3


def test_a_deletion_is_no_fault(world: World) -> None:
    """Text and manifest are gone, segments and table still have the lines."""
    highest = ulid.lowest_at(ulid.MAX_TIME_MS)
    deletion = Deletion("q", None, highest, ulid.encode(1))
    path = world.root / deletion.key
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_deletion(deletion))
    (world.root / "runs" / "q" / "late.json").unlink()
    assert world.look().faults == []


# --- the table -----------------------------------------------------------------------


def test_a_file_of_the_table_that_is_gone(world: World) -> None:
    gone = world.table_files()[0]
    gone.unlink()
    found = world.look()
    assert found.one("table-file-missing").place.endswith(gone.name)
    assert "table-file-damaged" not in found.kinds


@pytest.mark.parametrize("cut", [0, 60, -1])
def test_a_damaged_file_of_the_table(world: World, cut: int) -> None:
    path = world.table_files()[0]
    body = path.read_bytes()
    path.write_bytes(b"x" * len(body) if cut == 0 else body[:cut])
    assert world.look().one("table-file-damaged").place.endswith(path.name)


def test_lines_of_a_taken_in_segment_that_the_table_has_not(world: World) -> None:
    world.remake(lambda rows: rows.filter(pc.not_equal(rows.column("run_id"), "open")))
    found = world.look()
    fault = found.one("table-line-missing")
    assert fault.place == "run p/open"
    assert fault.lines > 0


def test_hours_that_the_retention_took_are_no_fault(world: World) -> None:
    table = world.table
    snapshot = table.snapshot()
    gone = TableChange(
        removed=snapshot.files, expired_ms=max(file.end_ms for file in snapshot.files)
    )
    commit(table, snapshot, gone, job="J", clock=SystemClock())
    found = world.look()
    assert found.faults == []
    assert found.findings.compared["text lines"] > 0


def test_a_line_twice_in_the_table(world: World) -> None:
    world.rewrite(lambda rows: rows.slice(0, 3))
    fault = world.look().one("table-line-twice")
    assert fault.lines == 3


@pytest.mark.parametrize(
    ("column", "value"), [("message", "other"), ("pos", 7_000_000), ("level", "FATAL")]
)
def test_a_line_of_the_table_that_differs(world: World, column: str, value: object) -> None:
    def changed(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(column)
        kind = rows.schema.field(at).type
        old = rows.column(at).to_pylist()
        first = rows.column("message")[0].as_py().startswith("closed 0 0 ")
        return rows.set_column(at, column, pa.array([value, *old[1:]] if first else old, kind))

    world.remake(changed)
    found = world.look()
    assert found.one("table-line-differs").lines == 1


def test_a_line_in_a_file_of_another_hour(world: World) -> None:
    world.remake(as_it_is, hour_off=True)
    assert "table-line-misplaced" in world.look().kinds


def test_statistics_that_are_not_the_files(world: World) -> None:
    log = max((world.root / "table" / "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace('\\"numRecords\\":', '\\"numRecords\\":1'))
    assert "table's log says" in world.look().one("table-file-damaged").detail


def indexed(world: World) -> list[Path]:
    """Gives the table's files skip indexes."""
    files = world.table.snapshot().files

    async def made() -> None:
        for file in files:
            body = await build(world.store, file)
            await world.store.put(keys.skip_index(file.path), body)

    asyncio.run(made())
    return [world.root / keys.skip_index(file.path) for file in files]


def test_skip_indexes_that_are_as_their_files_make_them_are_no_fault(world: World) -> None:
    indexes = indexed(world)
    found = world.look()
    assert found.faults == []
    assert found.findings.compared["skip indexes"] == len(indexes) > 0


def test_a_damaged_skip_index(world: World) -> None:
    index = indexed(world)[0]
    world.change(index, -1)
    assert world.look().one("skip-index-damaged").place.endswith(index.name)


def test_a_skip_index_that_would_hide_lines(world: World) -> None:
    index, file = indexed(world)[0], world.table.snapshot().files[0]
    builder = Builder(file.size, 1)
    builder.add(file.rows, b"nothing that is in the file", bare=True)
    index.write_bytes(builder.finish())
    fault = world.look().one("skip-index-wrong")
    assert fault.place.endswith(index.name)
    assert fault.lines == file.rows


def test_a_skip_index_that_says_something_else(world: World) -> None:
    index = indexed(world)[0]
    said = with_header(index.read_bytes(), lambda header: header | {"bare": not header["bare"]})
    index.write_bytes(said)
    assert world.look().one("skip-index-wrong").place.endswith(index.name)


def test_a_skip_index_of_another_version_is_no_fault(world: World) -> None:
    index = indexed(world)[0]
    index.write_bytes(b"TRSKIP99" + index.read_bytes()[8:])
    found = world.look()
    assert found.faults == []
    assert "another version" in found.findings.notes[0]


# --- overlap -------------------------------------------------------------------------


def test_positions_that_were_used_twice(world: World) -> None:
    node, seq = world.node, len(world.segments()) + 1
    batches = make_batches(node, [batch("z", "z", NOON, 2)], first_pos=0)
    body = encode_segment(batches, node=node, seq=seq, carry=Carry()).body
    asyncio.run(world.store.put(keys.segment(node, seq), body))
    assert "positions begin at 0" in world.look().one("segment-overlap").detail


# --- the register of nodes -----------------------------------------------------------


def test_a_node_whose_entry_somebody_removed_is_named_by_its_markers(world: World) -> None:
    def put(key: str, body: bytes) -> None:
        asyncio.run(world.store.put(key, body))

    def missed() -> dict[str, int]:
        return dict(asyncio.run(unregistered(world.store, keys.PREFIX)))

    put(keys.active(keys.PREFIX, RunKey("p", "open"), "silent-1"), b"")
    assert missed() == {}, "no node asks others"
    for node in ("silent-1", "node-1"):
        put(keys.peer(node, "i"), encode_entry(NodeEntry(node, "i", "http://127.0.0.1:9")))
    assert missed() == {}
    asyncio.run(world.store.delete([keys.peer("silent-1", "i")]))
    assert missed() == {"silent-1": 1}
    (note,) = world.look().findings.notes
    assert "silent-1 is not in the register" in note
    assert "lines of 1 runs" in note


# --- the table's log -----------------------------------------------------------------


@pytest.mark.parametrize(
    "harm", ["gone", "emptied", "cut", "flipped", "a path that is no text", "no protocol"]
)
def test_a_damaged_checkpoint_is_named_and_the_rest_is_compared(world: World, harm: str) -> None:
    world.checkpoint()
    (checkpoint,) = (world.root / "table" / "_delta_log").glob("*.checkpoint.parquet")
    if harm == "gone":
        checkpoint.unlink()
    elif harm == "flipped":
        world.change(checkpoint, -9)  # in the footer
    elif harm == "no protocol":  # each value reads well, and together they are no table
        rows = pq.read_table(checkpoint)
        pq.write_table(rows.filter(pc.is_null(rows["protocol"])), checkpoint)
    elif harm == "a path that is no text":
        rows = pq.read_table(checkpoint)
        add = rows["add"].combine_chunks()
        text = add.field("path").cast(pa.binary()).to_pylist()
        harmed = [path and path[:-1] + bytes([path[-1] | 0x80]) for path in text]
        paths = pa.array(harmed, pa.binary()).view(pa.string())
        names = [field.name for field in add.type]
        fields = [paths if name == "path" else add.field(name) for name in names]
        column = pa.StructArray.from_arrays(fields, names, mask=add.is_null())
        pq.write_table(
            rows.set_column(rows.schema.get_field_index("add"), "add", column), checkpoint
        )
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[: 100 if harm == "cut" else 0])
    chunk = world.chunks("p/open")[0]
    world.change(chunk, 3)
    found = world.look()
    assert found.kinds == {"table-log-damaged", "chunk-damaged"}
    fault = found.one("table-log-damaged")
    assert fault.place == f"table/_delta_log/{checkpoint.name}"
    assert "remove it instead" in fault.detail
    assert "log cannot be read" in found.findings.notes[0]
    # What it advises helps, as long as the entries are there.
    checkpoint.unlink(missing_ok=True)
    (checkpoint.parent / "_last_checkpoint").unlink()
    assert world.look().kinds == {"chunk-damaged", "line-differs"}


def test_an_entry_of_the_log_without_all_its_actions(world: World) -> None:
    newest = max((world.root / "table" / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-30])
    found = world.look()
    assert found.one("table-log-damaged").place.endswith(newest.name)


def test_an_entry_of_the_log_that_is_gone_between_others(world: World) -> None:
    for _ in range(2):
        world.rewrite(lambda rows: rows.slice(0, 0))
    gone = sorted((world.root / "table" / "_delta_log").glob("*.json"))[-2]
    gone.unlink()
    found = world.look()
    assert found.one("table-log-damaged").place == f"table/_delta_log/{gone.name}"
