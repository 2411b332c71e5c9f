"""The disk of the journal runs full, and has room again."""

from __future__ import annotations

import pytest

from tailrace.logstore.errors import JournalFailed, JournalFull
from tests.service.journal.rig import Rig, journal_settings, put
from tests.simulation.powercut import PowerCutFileSystem

KEPT = 1 << 20


class Unmounted(PowerCutFileSystem):
    """A disk that does not say what is free, once it is `gone`."""

    gone = False

    def free_bytes(self, path: str) -> int:
        if self.gone:
            raise OSError("gone")
        return super().free_bytes(path)


def rig_on(fs: PowerCutFileSystem) -> Rig:
    return Rig(fs=fs, settings=journal_settings(min_free_bytes=KEPT))


async def test_small_batches_hear_of_a_full_disk_once_somebody_asked() -> None:
    fs = PowerCutFileSystem()
    rig = rig_on(fs)
    journal = rig.open()
    await put(journal, b"a\n", rig.next_ulid())
    assert journal.space.shortage() is None
    assert [*journal.problems(), *rig.recovered.problems()] == []

    fs.capacity_bytes -= fs.free_bytes("/") - KEPT + 1
    assert journal.space.left_bytes() == -1
    said = journal.space.shortage()
    assert said is not None
    assert [*journal.problems(), *rig.recovered.problems()] == [said]
    with pytest.raises(JournalFull, match="full"):
        await put(journal, b"b\n", rig.next_ulid())
    fs.capacity_bytes -= 1
    assert journal.space.shortage() == said, "one trouble, one sentence"

    fs.capacity_bytes += KEPT
    assert journal.space.shortage() is None
    await put(journal, b"c\n", rig.next_ulid())
    await journal.close()


async def test_spares_go_before_anything_is_short() -> None:
    fs = PowerCutFileSystem()
    rig = Rig(
        fs=fs, settings=journal_settings(file_bytes=1500, max_bytes=1 << 20, min_free_bytes=KEPT)
    )
    journal = rig.open()
    for _ in range(4):
        await put(journal, b"x" * 1500 + b"\n", rig.next_ulid())
    cut = await journal.record_cut(1, 0)
    journal.confirm(cut)
    await put(journal, b"x" * 1500 + b"\n", rig.next_ulid())
    journal.release(cut.end)
    await journal.synced(journal.next_pos)
    spares = [name for name, _ in fs.scan(rig.folder) if name.endswith(".spare")]
    assert spares
    fs.capacity_bytes -= fs.free_bytes("/") - KEPT + 1
    assert journal.space.shortage() is None
    assert not [name for name, _ in fs.scan(rig.folder) if name.endswith(".spare")]
    await journal.close()


async def test_a_disk_that_does_not_answer_is_a_problem_and_no_batch_is_taken_on_trust() -> None:
    fs = Unmounted()
    rig = rig_on(fs)
    journal = rig.open()
    fs.gone = True
    assert "does not answer" in str(journal.space.shortage())
    with pytest.raises(JournalFailed, match="does not answer"):
        await put(journal, b"x" * (1 << 20) + b"\n", rig.next_ulid())
    fs.gone = False
    await put(journal, b"goes on\n", rig.next_ulid())
    await journal.close()
