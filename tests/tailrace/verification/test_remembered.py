"""A verification that remembers reads what changed, and calls nothing sound that did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.logstore.errors import InvalidInput
from tests.edited import edited
from tests.seeds import some
from tests.tailrace.verification.world import Verified, World, ingest, look


@pytest.fixture
def consumed(world: World) -> World:
    """All lines are in the table, and every segment is removed."""
    asyncio.run(ingest(world.store, world.table))
    segments = world.segments()
    world.raise_low(len(segments) + 1)
    for segment in segments:
        segment.unlink()
    return world


def remembered(world: World, sample: float = 0.0) -> Verified:
    memory = world.folder / "memory"
    return look(world.settings, world.folder / "spill", remember=memory, sample=sample)


def test_what_did_not_change_is_passed_over(consumed: World) -> None:
    first = remembered(consumed)
    assert first.faults == []
    assert first.findings.compared["runs"] == 5
    second = remembered(consumed).findings.compared
    assert (second["runs"], second["unchanged runs"]) == (0, 5)
    assert (second["table files"], second["table lines"], second["skip indexes"]) == (0, 0, 0)
    assert second["unchanged table files"] == first.findings.compared["table files"]
    third = remembered(consumed, sample=1.0).findings.compared
    assert (third["runs"], third["table lines"]) == (5, first.findings.compared["table lines"])


def test_a_run_with_lines_in_a_segment_is_read_again_until_the_segment_is_settled(
    world: World,
) -> None:
    """Lines of a segment above the watermark may have come since, and be in no text."""
    (mark,) = (world.root / "coordination" / "text").iterdir()
    settled = mark.read_bytes()
    mark.write_bytes(edited(settled, seq=0))
    for _ in range(2):
        found = remembered(world)
        assert found.faults == []
        assert (found.findings.compared["runs"], found.findings.compared["unchanged runs"]) == (
            5,
            0,
        )
    mark.write_bytes(settled)
    assert remembered(world).findings.compared["runs"] == 5
    again = remembered(world).findings.compared
    assert (again["runs"], again["unchanged runs"]) == (0, 5)
    assert again["unchanged segments"] == len(world.segments())


def test_no_segment_is_remembered_by_a_verification_with_a_fault(world: World) -> None:
    world.change(_text(world, "p/closed/logs.txt"), 7)
    for _ in range(2):
        found = remembered(world)
        assert "chunk-changed" in found.kinds
        assert found.findings.compared["unchanged segments"] == 0


CHANGES: dict[str, tuple[str, Callable[[World], None]]] = {
    "closed text": ("chunk-changed", lambda w: w.change(_text(w, "p/closed/logs.txt"), 7)),
    "chunk": ("chunk-damaged", lambda w: w.change(w.chunks("p/open")[0], 7)),
    "index": ("index-damaged", lambda w: w.change(w.chunks("p/open", "idx")[0], -20)),
    "manifest": ("manifest-damaged", lambda w: w.change(w.root / "runs/p/open.json", 30)),
    "lost text": ("chunk-missing", lambda w: _text(w, "p/closed/logs.txt").unlink()),
    "lost manifest": ("run-lost", lambda w: (w.root / "runs/p/open.json").unlink()),
    "lost file": ("table-file-missing", lambda w: w.table_files()[0].unlink()),
    "file": ("table-file-damaged", lambda w: _cut(w.table_files()[0])),
    "line twice": ("table-line-twice", lambda w: w.rewrite(lambda rows: rows.slice(0, 1))),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _text(world: World, name: str) -> Path:
    return world.root / "pipeline-logs" / name


@pytest.mark.parametrize("what", some(list(CHANGES), 3, "remembered"))
def test_what_changed_is_read_again_until_it_is_sound(consumed: World, what: str) -> None:
    kind, change = CHANGES[what]
    assert remembered(consumed).faults == []
    change(consumed)
    for _ in range(2):
        assert kind in remembered(consumed).kinds


@pytest.mark.parametrize("what", some([*CHANGES][:6], 2, "settled segments"))
def test_a_change_of_a_run_is_found_though_its_segments_are_remembered(
    world: World, what: str
) -> None:
    kind, change = CHANGES[what]
    assert remembered(world).faults == []
    change(world)
    for _ in range(2):
        assert kind in remembered(world).kinds


@pytest.mark.parametrize("at", some([3, 40, -40, -3], 4, "damaged memory"))
def test_a_damaged_memory_is_not_believed(consumed: World, at: int) -> None:
    remembered(consumed)
    consumed.change(consumed.folder / "memory", at)
    found = remembered(consumed).findings
    assert (found.compared["runs"], found.compared["unchanged runs"]) == (5, 0)
    assert any("everything is read" in note for note in found.notes)
    assert remembered(consumed).findings.compared["unchanged runs"] == 5


def test_a_memory_that_cannot_be_written_is_refused_before_anything_is_read(world: World) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        look(world.settings, world.folder / "spill", remember=world.folder / "absent" / "memory")
