"""Deletions as the compactor knows them: all of now, each read when it is new."""

from __future__ import annotations

from service.run_log.backlog import Deletions as Known
from service.runtime.health import ClockSkew
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.runs.deletions import Deletion, StoredDeletions, encode_deletion
from tests.compactor.lake import Lake

LONG = "a name that is cut " * 20


class Counting(LocalStore):
    """Counts what is read."""

    gets = 0

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        self.gets += 1
        return await super().get(key, offset=offset, size=size, if_match=if_match)


def test_what_was_read_is_read_again_only_where_it_changed(lake: Lake) -> None:
    store = Counting(lake.settings.store_folder, Disk(), lake.clock, system_entropy())
    known = StoredDeletions()

    def told() -> set[tuple[str, str | None, int]]:
        every = lake.run(known.all(store))
        return {(one.deletion.fqn, one.deletion.run, one.deletion.t) for one in every}

    assert told() == set()
    for number in range(20):
        lake.delete("f", f"r{number}", 7)
    lake.delete("f", None, 8)
    lake.delete("f", LONG, 7)
    one = Deletion("f", "of an earlier version", 5, ulid.encode(1))
    lake.put_bytes(f"{keys.DELETED}f/of%20an%20earlier%20version", encode_deletion(one))
    rest = {("f", None, 8), ("f", LONG, 7), ("f", one.run, 5)}
    assert told() == {("f", f"r{number}", 7) for number in range(20)} | rest
    assert store.gets == 3, "keys of the others say it all"
    assert (len(told()), store.gets) == (23, 3)
    lake.delete("f", "r3", 9)
    lake.delete("f", None, 9)
    assert {("f", "r3", 7), ("f", "r3", 9), ("f", None, 9)} < told()
    assert store.gets == 4
    lake.run(store.delete([key for key in lake.keys("coordination/deleted/") if "/r1" in key]))
    assert len(told()) == 13
    assert store.gets == 4
    assert [one.run for one in lake.run(known.above(store, 9))] == [None, "r3"]


def test_a_node_reads_what_keys_do_not_say_and_only_what_changed(lake: Lake) -> None:
    """Each start, each sweep and each take-over of a lost node's segments read all of them."""
    store = Counting(lake.settings.store_folder, Disk(), lake.clock, system_entropy())
    known = Known(store, ClockSkew(None))
    for number in range(20):
        lake.delete("f", f"r{number}", 7)
    lake.delete("f", LONG, 7)
    lake.delete("g", None, 8)
    for _ in range(2):
        lake.run(known.load())
        assert store.gets == 2
        horizons = {known.horizon(RunKey("f", run)) for run in ("r0", "r19", LONG)}
        assert (horizons, known.horizon(RunKey("g", "r"))) == ({7}, 8)
    lake.delete("g", None, 9)
    lake.delete("f", "r4", 9)
    lake.run(known.load())
    assert store.gets == 3
    assert (known.horizon(RunKey("f", "r4")), known.horizon(RunKey("g", "r"))) == (9, 9)
