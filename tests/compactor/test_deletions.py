"""Deletions as the compactor knows them: all of now, each read when it is new."""

from __future__ import annotations

from compactor.deletions import Deletions
from logstore.disk import Disk
from logstore.entropy import system_entropy
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectInfo
from tests.compactor.lake import Lake


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
    known = Deletions()

    def told() -> set[tuple[str, str | None, int]]:
        every = lake.run(known.all(store))
        return {(one.deletion.fqn, one.deletion.run, one.deletion.t) for one in every}

    assert told() == set()
    for number in range(20):
        lake.delete("f", f"r{number}", 7)
    lake.delete("f", None, 8)
    assert told() == {("f", f"r{number}", 7) for number in range(20)} | {("f", None, 8)}
    assert (store.gets, len(told())) == (21, 21)
    assert store.gets == 21
    lake.delete("f", "r3", 9)
    lake.delete("f", None, 9)
    assert {("f", "r3", 7), ("f", "r3", 9), ("f", None, 9)} < told()
    assert store.gets == 23
    lake.run(store.delete(lake.keys("coordination/deleted/")[:5]))
    assert len(told()) == 17
    assert store.gets == 23
    assert [one.run for one in lake.run(known.above(store, 9))] == ["r3"]
