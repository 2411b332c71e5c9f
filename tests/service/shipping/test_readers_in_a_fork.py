"""Readers who hold the journal of before a fork: their bytes stay, or they hear that it ended.

Both journals have the same files. One that the new journal lets go is written over as soon
as nobody reads it any more, and not before.
"""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import pytest

from service.ingest.batch import IncomingBatch
from service.journal.reader import JournalPin
from service.node import Node
from service.run_log.contracts import OncePerRun
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NodeNotReady
from tests.service.client_model import PatientClients, downloaded
from tests.service.simulated_node import SMALL, START_MS, Life
from tests.settings import settings_with
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

RUN = RunKey("service.pipeline", "run")
HERE = settings_with(SMALL, journal={"file_bytes": 4000, "max_bytes": 1 << 20, "min_free_bytes": 0})


def texts(pin: JournalPin) -> list[bytes]:
    batches = pin.batches(run=RUN)
    return [batches.text(np.array([index])) for index in range(len(batches.rows))]


async def take_next_number(node: Node) -> None:
    """Somebody else's segment stands where the next one of the node belongs."""
    seq = node.writer.journal.state.last_cut().seq + 1
    await node.store.put(keys.segment(node.identity.node, seq), b"somebody else's")


async def until_forked(node: Node, clock: VirtualClock, forks: int) -> None:
    for _ in range(1000):
        if node.forks == forks and node.ready:
            return
        await clock.sleep(0.1)
    raise AssertionError("it did not fork")


def test_what_a_reader_holds_stays_while_the_new_journal_lets_it_go() -> None:
    """Twice over: a fork may fork again while somebody reads."""
    fs, clients = PowerCutFileSystem(), PatientClients(1)

    async def go(clock: VirtualClock) -> None:
        store = open_store(fs, clock, Random(1))
        node = Life(fs, clock, seed=1, settings=HERE, store=store).node
        await node.start()
        await clock.sleep(10.0)  # it has looked
        await take_next_number(node)
        for _ in range(60):
            await clients.send(node, clock, RUN)
        held = node.pin()
        files = [file.path for file in node.writer.journal.files]
        before = texts(held)
        assert len(before) == 60
        assert len(files) > 2
        await until_forked(node, clock, 1)
        await clock.sleep(10.0)
        await take_next_number(node)
        for _ in range(5):
            await clients.send(node, clock, RUN)
        later = node.pin()
        beyond = texts(later)
        files += [file.path for file in node.writer.journal.files if file.path not in files]
        await until_forked(node, clock, 2)
        for _ in range(60):
            await clients.send(node, clock, RUN)
            await clock.sleep(1.0)
        await clock.sleep(30.0)
        assert not {file.path for file in node.writer.journal.files} & set(files), "all were let go"
        assert texts(held) == before
        assert texts(later) == beyond
        assert all(fs.stat(path) is not None for path in files)
        held.release()
        later.release()
        assert all(fs.stat(path) is None for path in files), "and now they are gone"
        clients.check(RUN, await downloaded(node, RUN), where="download")
        await node.stop()

    simulate(go, start_ms=START_MS)


def test_a_download_that_began_before_a_fork_ends() -> None:
    """It is cut off with an error and never filled up with something else, nor does it hang."""
    fs = PowerCutFileSystem()
    settings = settings_with(
        SMALL,
        journal={"file_bytes": 1 << 20, "max_bytes": 1 << 24, "min_free_bytes": 0},
        flush={"segment_seconds": 60.0, "segment_bytes": 64 << 20},
    )
    part = b"".join(b"%03d " % number + b"." * 995 + b"\n" for number in range(500))

    async def go(clock: VirtualClock) -> None:
        node = Life(fs, clock, seed=1, settings=settings).node
        await node.start()
        await clock.sleep(10.0)  # it has looked
        await take_next_number(node)
        for _ in range(4):
            await node.append(IncomingBatch(RUN, part, 500, 500))
        reading = node.run_logs.reader.download(RUN)
        first = await anext(reading)
        assert node.forks == 0
        await until_forked(node, clock, 1)
        with pytest.raises(NodeNotReady, match="another name"):
            await asyncio.wait_for(anext(reading), 60.0)
        assert (part * 4).startswith(first)
        assert await downloaded(node, RUN) == part * 4
        await node.stop()

    simulate(go, start_ms=START_MS)


def test_who_waits_for_shared_work_that_a_fork_ends_hears_so() -> None:
    """It was a cancellation, which a server takes for a client that went away: no answer came."""

    async def go(clock: VirtualClock) -> None:
        async def work(_: RunKey) -> bool:
            await clock.sleep(3600.0)
            return True

        shared = OncePerRun(clock, work, remembered_seconds=1.0)
        waiting = [asyncio.create_task(shared.do(RUN)) for _ in range(2)]
        await clock.sleep(1.0)
        waiting[0].cancel()
        await clock.sleep(1.0)
        assert waiting[0].cancelled()
        assert not waiting[1].done(), "who goes away ends it for nobody else"
        shared.stop()
        with pytest.raises(NodeNotReady):
            await asyncio.wait_for(waiting[1], 60.0)

    simulate(go, start_ms=START_MS)
