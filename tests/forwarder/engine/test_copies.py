"""Copies of a log whose writer went on: nothing of them is read again, and no loss is claimed."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.forwarder.delivery.targets import Shipment
from tailrace.forwarder.engine.identify import Archives, Comparer, FileRelation
from tailrace.forwarder.engine.reader import Opener
from tailrace.forwarder.files.content import PlainContent
from tailrace.forwarder.files.finder import FoundFile, look
from tests.forwarder.engine.steps import Ends, Names, run_steps
from tests.forwarder.engine.test_stillness import Interrupted
from tests.forwarder.engine.world import World
from tests.seeds import some

# Each found a defect: lines twice, lines in another order, or lines that were lost.
_SEEDS = [0, 3, 5, 6, 7, 8, 10, 13]


@pytest.mark.parametrize("ends", ["never", "killed", "stopped"])
@pytest.mark.parametrize("names", ["matched", "archives", "unmatched"])
@pytest.mark.parametrize("seed", some(_SEEDS, 4, "steps of rotations"))
def test_a_writer_that_appends_at_every_step(
    tmp_path: Path, seed: int, names: Names, ends: Ends
) -> None:
    run_steps(tmp_path, seed, names=names, ends=ends)


@pytest.mark.parametrize(
    ("seed", "names", "ends"),
    [
        pytest.param(129, "matched", "never", id="half an archive beside its original"),
        pytest.param(215, "archives", "killed", id="a header longer than a fingerprint"),
        pytest.param(217, "unmatched", "killed", id="a batch with more than the copy has"),
        pytest.param(251, "matched", "never", id="half an archive for long"),
        pytest.param(264, "matched", "killed", id="truncated before the first read"),
        pytest.param(314, "archives", "killed", id="rotated before a restart"),
        pytest.param(388, "matched", "never", id="a scan meets the copy before its log"),
        pytest.param(83, "archives", "stopped", id="a batch that is lost and the same header"),
        pytest.param(95, "archives", "stopped", id="truncated while its first lines wait"),
        pytest.param(196, "matched", "stopped", id="generations of a stop behind a lost one"),
        pytest.param(10035, "archives", "stopped", id="a copy that grows is met before its log"),
        pytest.param(10100, "matched", "stopped", id="only the header of each is read"),
    ],
)
def test_a_history_that_went_wrong(tmp_path: Path, seed: int, names: Names, ends: Ends) -> None:
    run_steps(tmp_path, seed, names=names, ends=ends)


@pytest.mark.parametrize("restarted", [None, "before the truncation", "behind it"])
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("first", [5, 50], ids=["shorter than a fingerprint", "longer"])
def test_the_writer_goes_on_between_copy_and_truncation(
    tmp_path: Path, first: int, zipped: bool, restarted: str | None
) -> None:
    world = World(tmp_path, run="{stem}")
    expected = world.lines("a.log", 0, first)
    world.poll()
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    expected += world.lines("a.log", first, first + 3)
    world.poll()
    if restarted == "before the truncation":
        world.restart()
    os.truncate(world.path("a.log"), 0)
    if restarted == "behind it":
        world.restart()
    expected += world.lines("a.log", 60, 65)
    if restarted:
        world.over()  # the service may have to be asked for the last batch first
    world.poll()
    assert world.store.lines() == expected
    if zipped:
        archive = gzip.compress(world.path("a.log.1").read_bytes())
        for part in (len(archive) // 2, len(archive)):
            world.path("a.log.1.gz").write_bytes(archive[:part])
            world.poll()
        world.path("a.log.1").unlink()
    for _ in range(2):
        world.over()
        world.restart()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


@pytest.mark.parametrize("after", ["6d", "8d"])
def test_what_is_left_of_a_file_is_known_as_long_as_it_is_there(tmp_path: Path, after: str) -> None:
    world = World(tmp_path, run="{stem}", poll_interval="1h", rotate_wait="1h")
    expected = world.lines("a.log", 0, 50)
    world.poll()
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    expected += world.lines("a.log", 50, 53)
    world.poll()
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 60, 65)
    world.settle(float(after[:-1]) * 86400)
    world.restart()
    world.poll()
    world.over()
    assert world.store.lines() == expected


@pytest.mark.parametrize("restarted", [False, True])
def test_a_copy_that_no_scan_has_seen_before_the_truncation(
    tmp_path: Path, restarted: bool
) -> None:
    """What was read last is remembered where the folder has changed since the last scan."""
    world = World(tmp_path, run="{stem}", poll_interval="10s")
    expected = world.lines("a.log", 0, 50)
    world.settle(21)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    expected += world.lines("a.log", 50, 53)
    (file,) = world.shared.registry.files.values()
    file.wake()  # as a hint does, or a block that is not the last one
    world.settle(1)
    assert world.store.lines() == expected, "no scan was due"
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 60, 65)
    if restarted:
        world.restart()
    world.settle(21)
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_the_rest_of_a_batch_that_did_not_arrive_is_read_from_the_copy(
    tmp_path: Path, arrived: bool
) -> None:
    world = World(tmp_path, run="{stem}")
    expected = world.lines("a.log", 0, 50)
    world.poll()
    expected += world.lines("a.log", 50, 60)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    gap = world.lines("a.log", 60, 63)
    world.store.away = True
    world.poll()
    (sent,) = world.post.waiting
    assert isinstance(sent, Shipment)
    if arrived:
        world.store.take(sent.run, sent.batch, sent.body)
        expected += gap
    world.kill()
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 70, 75)
    world.store.away = False
    world.start()
    world.over()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == (0 if arrived else sum(len(line) + 1 for line in gap))


def test_the_first_lines_of_a_successor_are_no_copy(tmp_path: Path) -> None:
    """Both begin with the same line, and the successor has nothing else yet."""
    world = World(tmp_path, run="{stem}")
    for generation in range(3):
        world.write("a.log", "starting\n")
        world.poll()
        assert world.store.lines().count("starting") == generation + 1
        world.lines("a.log", generation, generation + 1)
        world.poll()
        if generation == 1:
            shutil.copy(world.path("a.log"), world.path("a.log.2"))
            world.restart()
            os.truncate(world.path("a.log"), 0)
        else:
            world.path("a.log").rename(world.path(f"a.log.{generation + 1}"))
    world.over()
    assert len(world.store.lines()) == 6


def _truncate(world: World) -> None:
    os.truncate(world.path("a.log"), 0)


def _rewrite(world: World) -> None:
    _truncate(world)
    world.lines("a.log", 100, 101)


@pytest.mark.parametrize("how", [_truncate, _rewrite])
def test_a_file_that_is_truncated_while_a_scan_is_under_way_has_lost_nothing(
    tmp_path: Path, how: Callable[[World], None]
) -> None:
    world = Interrupted(tmp_path)
    world.lines("a.log", 0, 10)
    world.poll()
    world.meanwhile = lambda: how(world)
    world.poll()
    world.lines("a.log", 101, 102)
    world.poll()
    world.over()
    assert world.tally.lost_bytes == 0
    assert len(world.store.lines()) == (11 if how is _truncate else 12)
    assert not any("before they were read" in said for said in world.said)


@pytest.mark.parametrize("pattern", ["a.log", "a.log*"], ids=["unmatched", "matched"])
def test_a_successor_with_the_header_that_was_read_is_no_log_that_was_cut_off(
    tmp_path: Path, pattern: str
) -> None:
    """Of the first generation only the header was read when it was copied and truncated."""
    header = "".join(f"# column {number}\n" for number in range(200))
    world = World(tmp_path, include=[str(tmp_path / "logs" / pattern)], run="{stem}")
    world.batch_bytes = len(header)
    world.restart()
    world.write("a.log", header)
    first = world.lines("a.log", 0, 400)
    world.engine.round()
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    os.truncate(world.path("a.log"), 0)
    world.write("a.log", header)
    second = world.lines("a.log", 400, 403)
    world.poll()
    world.over()
    world.over()
    assert world.tally.lost_bytes == 0
    assert world.store.lines() == [*header.splitlines(), *first, *header.splitlines(), *second]


@pytest.mark.parametrize("names", ["matched", "archives", "unmatched"])
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("rotations", [1, 3])
def test_generations_with_one_long_header_are_read_in_their_order(
    tmp_path: Path, names: Names, zipped: bool, rotations: int
) -> None:
    """Of the first generation only a part of the header was read when the forwarder ended."""
    header = "".join(f"# column {number:04}\n" for number in range(200))
    world = World(
        tmp_path,
        include=[str(tmp_path / "logs" / ("a.log*" if names == "matched" else "a.log"))],
        archive_include=[str(tmp_path / "logs" / "a.log.*")] if names == "archives" else [],
        run="all",
        fingerprint_size=100,
        batch_bytes=len(header) // 2,
    )
    ticks = iter(range(1_700_000_000 * 10**9, 1_800_000_000 * 10**9, 10**9))
    old = world.path("a.log.9")
    old.write_text(header + "of a generation that was not to be read\n")
    os.utime(old, ns=(next(ticks), next(ticks)))
    if names != "unmatched":
        old.unlink()
    world.write("a.log", header)
    os.utime(world.path("a.log"), ns=(now := next(ticks), now))
    expected = header.splitlines()
    world.engine.round()
    world.post.carry()
    (file,) = [each for each in world.shared.registry.files.values() if each.read.offset]
    assert file.read.offset < len(header), "only a part of the header was read"
    world.kill()
    for rotation in range(rotations):
        expected += world.lines("a.log", 10 * rotation, 10 * rotation + 5 + rotation)
        os.utime(world.path("a.log"), ns=(now := next(ticks), now))
        for number in range(rotation, 0, -1):
            for ending in ("", ".gz"):
                shifted = world.path(f"a.log.{number}{ending}")
                if shifted.exists():
                    shifted.rename(world.path(f"a.log.{number + 1}{ending}"))
        copy = world.path("a.log.1.gz" if zipped else "a.log.1")
        data = world.path("a.log").read_bytes()
        copy.write_bytes(gzip.compress(data) if zipped else data)
        os.utime(copy, ns=(now := next(ticks), now))
        world.path("a.log").write_text(header)
        expected += header.splitlines()
    expected += world.lines("a.log", 100, 140)
    os.utime(world.path("a.log"), ns=(now := next(ticks), now))
    world.start()
    for _ in range(3):
        world.over()
    if names == "unmatched" and rotations > 1:  # those between leave no trace
        expected = [*expected[:205], *expected[-240:]]
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_a_log_that_was_copied_back_to_its_path_is_no_loss(tmp_path: Path) -> None:
    """The file under the rotated name is truncated, and its content is where it was written."""
    world = World(tmp_path, run="all", poll_interval="10s")
    expected = world.lines("a.log", 0, 10)
    world.settle(21)
    world.path("a.log").rename(world.path("a.log.1"))
    world.settle(21)
    (file,) = world.shared.registry.files.values()
    shutil.copy(world.path("a.log.1"), world.path("a.log"))
    os.truncate(world.path("a.log.1"), 0)
    file.wake()
    world.settle(1)
    assert file.path == str(world.path("a.log")), "no scan was due"
    expected += world.lines("a.log", 10, 12)
    world.over()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_what_a_copy_lacks_is_counted_once_and_later_generations_are_not_taken_for_it(
    tmp_path: Path,
) -> None:
    """The service is away, and of the first generation only its long header was read."""
    header = "".join(f"# column {number:04}\n" for number in range(200))
    size = len(header) // 2
    world = World(tmp_path, run="all", fingerprint_size=100, batch_bytes=size)
    ticks = iter(range(1_700_000_000 * 10**9, 1_800_000_000 * 10**9, 10**9))

    def touch(name: str) -> None:
        now = next(ticks)
        os.utime(world.path(name), ns=(now, now))

    def begin(first: int, last: int) -> list[str]:
        world.path("a.log").write_text(header)
        lines = world.lines("a.log", first, last)
        touch("a.log")
        world.settle(3)
        return [*header.splitlines(), *lines]

    world.store.away = True
    expected = begin(0, 20)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    touch("a.log.1")
    gone = world.lines("a.log", 20, 24)
    touch("a.log")
    world.settle(3)
    (file,) = world.shared.registry.files.values()
    assert 0 < file.read.offset <= len(header) < file.content_end
    expected += begin(100, 160)
    world.path("a.log.1").rename(world.path("a.log.2"))
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    touch("a.log.1")
    expected += begin(200, 290)
    world.store.away = False
    for _ in range(3):
        world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == sum(len(line) + 1 for line in gone)


def test_what_was_seen_and_is_in_no_copy_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path, run="{stem}")
    expected = world.lines("a.log", 0, 30_000)
    world.store.away = True
    world.settle(2)  # two batches are on their way, and nothing else is read meanwhile
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    gap = world.lines("a.log", 30_000, 30_010)
    world.settle(2)
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 0, 3)
    world.settle(2)
    world.store.away = False
    world.over()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == sum(len(line) + 1 for line in gap)


def test_a_loss_is_counted_by_one_process(tmp_path: Path) -> None:
    world = World(tmp_path, force_flush_period=0)
    world.lines("a.log", 0, 10)
    world.write("a.log", "an unfinished line")
    world.poll()
    world.kill()
    world.path("a.log").unlink()
    world.start()
    world.over()
    assert world.tally.lost_bytes == len("an unfinished line")
    world.restart()
    world.over()
    assert world.tally.lost_bytes == 0


def test_an_inode_of_a_file_that_is_done_may_be_that_of_a_copy(tmp_path: Path) -> None:
    """Outside of the patterns nobody sees that a file is gone, and its inode is used again."""
    world = World(tmp_path, include=[str(tmp_path / "logs" / "a.log")], run="{stem}")
    expected: list[str] = []
    for generation in range(8):
        expected += world.lines("a.log", generation * 10, generation * 10 + 5)
        world.poll()
        expected += world.lines("a.log", generation * 10 + 5, generation * 10 + 9)
        rotated = world.path(f"a.log.{generation}")
        shutil.copy(world.path("a.log"), rotated)
        os.truncate(world.path("a.log"), 0)
        world.over()
        rotated.unlink()
    assert world.store.lines() == expected


def test_a_copy_that_grows_while_its_folder_is_at_rest(tmp_path: Path) -> None:
    """Scans between two pieces of it do not make the forwarder forget where it may end."""
    world = World(tmp_path, run="{stem}")
    expected = world.lines("a.log", 0, 50)
    world.poll()
    whole = world.path("a.log").read_bytes()
    world.path("a.log.1").write_bytes(whole[: len(whole) * 2 // 3])
    world.poll()
    expected += world.lines("a.log", 50, 53)
    world.store.away = True
    for _ in range(3):
        world.poll()
    world.path("a.log.1").write_bytes(whole)
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 60, 65)
    world.poll()
    world.store.away = False
    world.over()
    assert world.store.lines() == expected


def test_a_log_is_not_rotated_because_a_scan_met_its_copy_first(tmp_path: Path) -> None:
    world = World(tmp_path, run="{stem}")
    world.kill()
    expected = world.lines("a.log", 0, 50)
    copy = world.path("a.log.1")
    shutil.copy(world.path("a.log"), copy)
    expected += world.lines("a.log", 50, 60)
    os.utime(copy, (1000, 1000))
    world.start()
    world.over()
    assert world.store.lines() == expected
    assert world.store.closed == []


class Interrupting(PlainContent):
    """The content of a copy; its log is truncated when somebody asks for its end."""

    def __init__(self, copy: Path, log: Path) -> None:
        self.file = copy.open("rb")
        super().__init__(self.file.fileno())
        self._log = log

    def end(self) -> int:
        os.truncate(self._log, 0)
        return super().end()


def test_a_log_that_is_truncated_while_its_copy_is_compared_with_it(tmp_path: Path) -> None:
    world = World(tmp_path, run="{stem}")
    world.lines("a.log", 0, 50)
    world.poll()
    log, copy = world.path("a.log"), world.path("a.log.1")
    shutil.copy(log, copy)
    found, shared = look(str(copy)), world.shared
    assert found is not None
    source = shared.sources[world.config.name]
    comparer = Comparer(shared.registry, Opener(shared), Archives(shared))
    content = Interrupting(copy, log)
    with content.file:
        fingerprint = content.read(0, source.config.fingerprint_size)
        original, relation = comparer.compare(source, found, content, fingerprint)
    assert original is not None
    assert (original.path, relation) == (str(log), FileRelation.SAME)


class Replacing(World):
    """A world where a rotated file is replaced by the beginning of a copy while a scan goes on."""

    replaces = False

    def listed(self, found: list[FoundFile]) -> list[FoundFile]:
        if self.replaces:
            self.replaces = False
            whole = self.path("a.log").read_bytes()
            self.path("a.log.1").write_bytes(whole[: len(whole) // 2])  # the same inode
        return found


def test_an_inode_that_a_growing_copy_uses_again_within_a_scan(tmp_path: Path) -> None:
    """It is not taken for what was listed there, and so compared before its log."""
    world = Replacing(tmp_path, run="{stem}")
    world.lines("old.log", 0, 60)
    world.path("old.log").rename(world.path("a.log.1"))
    expected = world.lines("a.log", 0, 50)
    world.replaces = True
    world.poll()
    world.path("a.log.1").write_bytes(world.path("a.log").read_bytes())
    world.poll()
    world.over()
    assert world.store.lines() == expected
