"""A pass that erases: no byte of any kind of store has a deleted line afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactor.purge import MARGIN_MS
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from service.erasure import Erasure
from service.peers.register import ForgottenNode, forget, returned
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.table import Advance
from tests.compactor.files import commit_files, write_file
from tests.compactor.lake import NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.marker import holds

MARKER = "MARKER-91c4"
GONE = RunKey("shop", "gone")


class NothingHeld:
    """Of a process without lines on its disk."""

    async def of(self, deletions: Sequence[Deletion]) -> list[list[str]]:
        return [[] for _ in deletions]


def marked(lake: Lake) -> list[str]:
    """The kinds of objects that have the marker, of all that the store has."""
    found = set()
    for key in lake.keys(""):
        if holds(lake.run(lake.store.get(key))[1], MARKER.encode()):
            found.add(key.partition("/")[0])
    return sorted(found)


def state(lake: Lake) -> tuple[str, list[str]]:
    """How far the only deletion is, as the service says, without what is left in words."""
    erasure = Erasure(
        lake.store,
        lake.compactor.table.snapshot,
        NothingHeld,
        lambda: None,
        lambda: ("a",),
        texts=keys.PREFIX,
    )

    async def looked() -> tuple[str, list[str]]:
        (one,) = await erasure.states(await erasure.deletions())
        return one.state, [left.partition("/")[0] for left in one.left]

    return lake.run(looked())


def pass_(lake: Lake, *, erase: bool = False) -> PassReport:
    return lake.run(once(lake.compactor, erase=erase))


def put_file(lake: Lake, lines: Batch) -> NewFile:
    """A file of the table, named as a job's of now."""
    made = write_file(lake, [lines])
    name = f"{ulid.encode(ulid.lowest_at(lake.clock.now_ms()))}-{lines[0].run}.parquet"
    path = f"{made.path.rpartition('/')[0]}/{name}"
    before = f"{keys.TABLE}/{made.path}"
    lake.put_bytes(f"{keys.TABLE}/{path}", lake.run(lake.store.get(before))[1])
    lake.run(lake.store.delete([before]))
    return replace(made, path=path)


def test_no_object_has_a_deleted_line_after_a_pass_that_erases(any_lake: Lake) -> None:
    lake = any_lake
    lake.session = PlainEngine()
    lake.limits = Compaction(purge_seconds=0, index_min_bytes=1)
    now = lake.clock.now_ms()
    text = "".join(f"{MARKER} {i}\n" for i in range(50)).encode()
    gone: Batch = (GONE, ulid.lowest_at(now - 5_000), text)
    kept = batch("shop", "kept", now - 4_000, 50)
    lake.put("a", [gone, kept])
    lake.watermark("a", 1)
    commit_files(lake, [put_file(lake, one) for one in (gone, kept)], [Advance("a", 1, 1)])
    assert marked(lake) == ["segments", "table"]

    lake.delete(*GONE, ulid.highest_at(now))
    assert state(lake) == ("deleted", ["the table", "segments"])
    assert pass_(lake).rows_purged == 50
    lake.holds([kept])
    assert marked(lake) == ["segments", "table"], "in older versions"
    assert state(lake) == ("deleted", ["the table", "older versions of the table", "segments"])
    lake.clock.shift_ms += MARGIN_MS + 2_000  # what was deleted is known to be done then
    assert pass_(lake).deletions_waiting == 0
    assert state(lake) == ("purged", ["older versions of the table", "segments"])

    began = ulid.encode(ulid.lowest_at(now + 3_600_000))
    started = f"{keys.TABLE}/date=2026-11-30/hour=00/{began}-00000.parquet"
    lake.put_bytes(started, b"not committed yet")
    pass_(lake, erase=True)
    assert marked(lake) == []
    lake.holds([kept])
    assert started in lake.keys(keys.TABLE), "nothing of a job that runs is removed"
    assert state(lake) == ("erased", [])


def test_a_segment_is_a_place_if_it_has_lines_of_the_run_up_to_the_deletion(lake: Lake) -> None:
    lake.put("a", [batch("shop", "gone", NOON, 3)])
    lake.put("a", [batch("shop", "other", NOON + 9, 3)])
    lake.put("a", [batch("shop", "gone", NOON + 99, 3)])
    lake.delete("shop", "gone", ulid.highest_at(NOON + 9))
    assert state(lake) == ("purged", ["segments"]), "the first; the third has later lines only"


def test_damage_counts_as_a_place_with_lines(lake: Lake) -> None:
    lake.delete("shop", "gone", ulid.highest_at(NOON))
    assert state(lake) == ("erased", [])
    lake.put_bytes(keys.segment("b", 1), b"not a segment")
    assert state(lake) == ("purged", ["segments"])


def test_a_node_that_is_stopped_may_have_lines_on_its_disk(lake: Lake) -> None:
    lake.delete("shop", "gone", ulid.highest_at(NOON))
    lake.put_bytes(keys.node_registration("b"), b"{}")
    assert state(lake) == ("purged", ["the node b, which is stopped or cannot be asked"])
    lake.put_bytes(keys.forgotten("b"), b"{}")
    assert state(lake) == ("erased", [])


def test_a_node_that_stopped_in_good_order_is_let_go_and_counts_again_once_it_was_back(
    lake: Lake,
) -> None:
    async def nobody(_: str) -> str | None:
        return None

    def let_go() -> ForgottenNode:
        return lake.run(
            forget(
                *(lake.store, "b"),
                held_by=nobody,
                prefix=keys.PREFIX,
                now_ms=NOON + 2,
                fresh_id=lambda: "01J00000000000000000000001",
            )
        )

    lake.delete("shop", "gone", ulid.highest_at(NOON))
    with pytest.raises(NotFound):
        let_go()
    lake.put_bytes(keys.node_registration("b"), b"{}")
    away = ("purged", ["the node b, which is stopped or cannot be asked"])
    assert state(lake) == away
    assert (let_go().node, state(lake)) == ("b", ("erased", []))
    with pytest.raises(NotFound):
        let_go()
    lake.run(returned(lake.store, "b", now_ms=NOON + 3, fresh_id=lambda: "01J1".ljust(26, "0")))
    assert state(lake) == away
    assert (let_go().node, state(lake)) == ("b", ("erased", []))
