"""Large segments are made in a process: the same as without one, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from service.journal.format import encode_attributes, encode_meta
from service.journal.journal import Journal
from service.journal.reader import JournalPin
from service.runtime.process import in_thread
from service.shipping import encoding
from service.shipping.encoding import (
    CutWork,
    EncodedCut,
    EncoderFailed,
    EncoderProcess,
    EncodingWorker,
)
from tailrace.logstore.batch import RecordMeta, RunKey, digest
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.segments.detect import Carry
from tests.e2e.processes import works
from tests.service.journal.rig import Rig, journal_settings
from tests.simulation.clocks import ManualClock
from tests.waiting import until

RUNS = [RunKey(f"svc.pipe{i}/é", f"run{j}") for i in range(2) for j in range(2)]
TEXTS = [
    b"2026-01-01 00:00:00 ERROR it broke\n  at line 7\n",
    b"  at line 8\n",
    b"2026-01-01 00:00:01,5 [info     ] goes on\n\n",
]


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LARGE_BYTES", 1)


def _batch(dice: random.Random) -> tuple[bytes, bytes, int]:
    """A text, its metadata and its number of records."""
    texts = [dice.choice(TEXTS) for _ in range(dice.randrange(1, 200))]
    text, kind = b"".join(texts), dice.randrange(3)
    if kind == 0:
        return text, b"", text.count(b"\n")
    if kind == 1:
        return text, encode_attributes({"host": dice.choice("ab")}), text.count(b"\n")
    ends = [sum(map(len, texts[: n + 1])) for n in range(len(texts))]
    times = [dice.choice([None, 1_700_000_000_000_000]) for _ in texts]
    levels = [dice.choice([None, "WARN", "AUDIT"]) for _ in texts]
    attributes = [dice.choice([None, {"n": "1"}]) for _ in texts]
    return text, encode_meta(RecordMeta(ends, times, levels, attributes)), len(texts)


async def _append(
    rig: Rig, journal: Journal, dice: random.Random, batch: tuple[bytes, bytes, int]
) -> None:
    text, meta, records = batch
    _, done = journal.append(
        dice.choice(RUNS),
        rig.next_ulid(),
        text,
        records=records,
        lines=text.count(b"\n"),
        digest=digest(text),
        connector=dice.choice([None, "connector-1"]),
        meta=meta,
    )
    await done


@dataclass
class Site:
    """A journal of several files on the disk, and an encoder with a clock that is turned."""

    pin: JournalPin
    clock: ManualClock
    encoder: EncoderProcess

    def work(self, seq: int, share: int, before: Carry) -> CutWork:
        """One of three parts of the journal."""
        edges = [self.pin.end_pos * part // 3 for part in range(4)]
        first, end = edges[share], edges[share + 1]
        return CutWork(self.pin.batches(start=first, end=end), seq, first, end, before)

    async def started(self) -> int:
        """Starts the process: makes segments until one is ready. Its number."""
        ready = partial(self.encoder._ready, self.encoder._closed)
        assert await in_thread(ready) is None, "a process starts at once"
        await until(lambda: ready() is not None)
        assert self.encoder.pid is not None
        return self.encoder.pid


@asynccontextmanager
async def _site(
    folder: Path, seed: int = 1, more: bytes = b"", *, patience_seconds: float = 30.0
) -> AsyncIterator[Site]:
    dice, clock = random.Random(seed), ManualClock()
    settings = journal_settings(fast_sync_seconds=0.001, file_bytes=60_000)
    rig = Rig(Disk(), str(folder / "journal"), settings)
    journal = rig.open()
    for _ in range(60):
        await _append(rig, journal, dice, _batch(dice))
    if more:
        await _append(rig, journal, dice, (more, b"", more.count(b"\n")))
    assert len(journal.files) > 2
    encoder = EncoderProcess(in_thread, clock, patience_seconds=patience_seconds)
    try:
        with journal.pin() as pin:
            yield Site(pin, clock, encoder)
    finally:
        await encoder.close()
        await journal.close()


def _same(found: EncodedCut, work: CutWork) -> None:
    expected = work.encoded()
    assert found.segment == expected.segment
    assert list(found.carry._last.items()) == list(expected.carry._last.items())


def pid_of(encoder: EncoderProcess) -> int | None:
    """Asked again at each call, whatever a type checker has concluded from the last one."""
    return encoder.pid


@pytest.mark.parametrize("seed", range(3))
async def test_segments_are_the_same_as_without_it(tmp_path: Path, seed: int) -> None:
    async with _site(tmp_path / os.fsdecode(b"\xff not UTF-8"), seed) as site:
        pid, own = await site.started(), os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) > own
        before = Carry()
        for number in range(3):
            work = site.work(number + 1, number, before)
            found = await site.encoder(work)
            _same(found, work)
            before = found.carry
        assert site.encoder.failures == 0


async def test_while_it_starts_and_for_small_ones_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _site(tmp_path) as site:
        work = site.work(1, 0, Carry())
        monkeypatch.setattr(encoding, "LARGE_BYTES", work.text_bytes + 1)
        _same(await site.encoder(work), work)
        assert pid_of(site.encoder) is None
        monkeypatch.setattr(encoding, "LARGE_BYTES", work.text_bytes)
        _same(await site.encoder(work), work)
        pid = pid_of(site.encoder)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it starts for long
        _same(await site.encoder(work), work)
        assert (site.encoder.failures, pid_of(site.encoder)) == (0, pid)
        site.clock.pass_seconds(31)
        _same(await site.encoder(work), work)
        assert (site.encoder.failures, pid_of(site.encoder)) == (1, None)
        assert not works(pid)


async def test_a_process_that_is_killed_leaves_its_segment_to_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with _site(tmp_path) as site:
        pid, work = await site.started(), site.work(1, 0, Carry())
        os.kill(pid, signal.SIGSTOP)
        making = asyncio.ensure_future(site.encoder(work))
        await asyncio.sleep(0.1)
        assert not making.done()
        os.kill(pid, signal.SIGKILL)
        _same(await making, work)
        assert site.encoder.failures == 1
        assert "made without a process, which failed: " in caplog.text
        _same(await site.encoder(work), work)
        assert site.encoder.pid is None, "the next one is tried a minute later"
        site.clock.pass_seconds(61)
        assert await site.started() != pid
        _same(await site.encoder(work), work)
        assert site.encoder.failures == 1


async def test_a_process_that_stands_still_is_killed_and_its_segment_made(tmp_path: Path) -> None:
    async with _site(tmp_path, patience_seconds=1.0) as site:
        pid, work = await site.started(), site.work(1, 0, Carry())
        os.kill(pid, signal.SIGSTOP)
        _same(await site.encoder(work), work)
        assert site.encoder.failures == 1
        assert not works(pid)


async def test_a_process_that_died_between_two_segments_is_noticed(tmp_path: Path) -> None:
    async with _site(tmp_path) as site:
        os.kill(await site.started(), signal.SIGKILL)
        work = site.work(1, 0, Carry())
        _same(await site.encoder(work), work)
        assert (site.encoder.failures, site.encoder.pid) == (1, None)


async def test_without_memory_for_it_the_service_makes_the_segment(tmp_path: Path) -> None:
    async with _site(tmp_path, more=(b"x" * 99 + b"\n") * 400_000) as site:
        pid = await site.started()
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used, used))
        work = CutWork(site.pin.batches(), 1, 0, site.pin.end_pos, Carry())
        _same(await site.encoder(work), work)
        assert (site.encoder.failures, site.encoder.pid) == (1, None)


async def test_where_no_process_can_be_started_the_service_makes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _site(tmp_path) as site:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
        work = site.work(1, 0, Carry())
        for _ in range(2):
            _same(await site.encoder(work), work)
        assert (site.encoder.failures, site.encoder.pid) == (1, None)


async def test_the_end_does_not_wait_for_a_segment_that_nobody_wants(tmp_path: Path) -> None:
    async with _site(tmp_path) as site:
        pid, work = await site.started(), site.work(1, 0, Carry())
        os.kill(pid, signal.SIGSTOP)
        making = asyncio.ensure_future(site.encoder(work))
        await asyncio.sleep(0.1)
        making.cancel()
        async with asyncio.timeout(30):
            await site.encoder.close()
        assert not works(pid)


@pytest.mark.parametrize("begun", [True, False])
async def test_one_that_is_started_while_all_is_closed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Who asked for it is cancelled; the thread that starts it is not."""
    starting, may_start, made = threading.Event(), threading.Event(), list[EncodingWorker]()

    class Late(EncodingWorker):
        def __init__(self) -> None:
            starting.set()
            may_start.wait(10)
            super().__init__()
            made.append(self)

    monkeypatch.setattr(encoding, "EncodingWorker", Late)
    async with _site(tmp_path) as site:
        ready = partial(site.encoder._ready, site.encoder._closed)
        asking = asyncio.ensure_future(in_thread(ready)) if begun else None
        if begun:
            await in_thread(starting.wait)
        closing = asyncio.ensure_future(site.encoder.close())
        await asyncio.sleep(0)
        may_start.set()
        await closing
        if asking is not None:
            await asyncio.wait({asking})
            ended = asking.exception()  # it may have seen the end of the process
            assert isinstance(ended, EncoderFailed) if ended else asking.result() is None
        assert await in_thread(ready) is None
        assert site.encoder.pid is None
        assert [child._process.poll() for child in made] == [-signal.SIGKILL] * begun


def test_it_ends_with_a_service_that_is_killed() -> None:
    code = (
        "import time; from service.shipping.encoding import EncodingWorker\n"
        "child = EncodingWorker()\n"
        "while not child.ready(): time.sleep(0.01)\n"
        "print(child.pid, flush=True); time.sleep(1000)"
    )
    service = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    with service.stdout as said:
        pid = int(said.readline())
    service.kill()
    service.wait()
    asyncio.run(until(lambda: not works(pid)))


@pytest.fixture
def child() -> Iterator[EncodingWorker]:
    made = EncodingWorker()
    yield made
    made.close()


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2_000), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_200)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("_many_descriptors")
async def test_it_works_beside_a_thousand_connections(tmp_path: Path) -> None:
    async with _site(tmp_path) as site:
        await site.started()
        work = site.work(1, 0, Carry())
        _same(await site.encoder(work), work)
        assert site.encoder.failures == 0


async def test_it_offers_itself_to_a_kernel_without_memory(child: EncodingWorker) -> None:
    await until(child.ready)
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"


async def test_a_journal_that_cannot_be_read_there_is_told(
    tmp_path: Path, child: EncodingWorker
) -> None:
    await until(child.ready)
    async with _site(tmp_path) as site:
        work = site.work(1, 0, Carry())
        paths, _ = work.batches.places()
        os.rename(paths[0], paths[0] + ".away")
        with pytest.raises(EncoderFailed, match="FileNotFoundError"):
            child.encoded(work, 60)
        os.rename(paths[0] + ".away", paths[0])
        _same(child.encoded(work, 60), work)
