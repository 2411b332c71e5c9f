"""Bytes of the journal that change between their sync and their segment."""

from __future__ import annotations

import pytest

from service.ingest.batch import IncomingBatch
from service.journal import format as wal
from service.journal.format import encode_meta
from service.node import Node
from tailrace.logstore.batch import RecordMeta, RunKey
from tests.service.client_model import downloaded
from tests.service.journal.test_damage import read
from tests.service.simulated_node import SMALL, START_MS, Life
from tests.service.store_checks import view_of
from tests.settings import settings_with
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

RUN = RunKey("service.pipeline", "run")
LATE = settings_with(SMALL, flush={"segment_seconds": 30.0})
TEXTS = [b"%d the text of a batch\n" % number for number in range(8)]


def flip(fs: PowerCutFileSystem, path: str, place: int) -> None:
    """One bit of the disk turns."""
    byte = read(fs, path)[place]
    file = fs.open(path, "update")
    file.write_at([bytes((byte ^ 1,))], place)
    file.sync()
    file.close()


async def stored(node: Node) -> list[bytes]:
    view = await view_of(node.store)
    segments = [s for found in view.segments.values() for s in found]
    return sorted(text for s in segments for _, _, _, text in s.batches)


def incoming(text: bytes) -> IncomingBatch:
    meta = encode_meta(RecordMeta([len(text)], [None], ["INFO"], [{"k": "v"}]))
    return IncomingBatch(RUN, text, 1, 1, connector="agent", meta=meta)


@pytest.mark.parametrize("where", ["length", "checksum", "head", "text", "meta"])
def test_a_bit_that_turned_is_found_before_it_is_sealed(where: str) -> None:
    """The batch is left out everywhere and reported; its neighbours are whole."""
    fs = PowerCutFileSystem()

    async def go(clock: VirtualClock) -> None:
        node = Life(fs, clock, seed=1, settings=LATE).node
        await node.start()
        for text in TEXTS:
            await node.append(incoming(text))
        with node.pin() as pin:
            row = pin.batches().rows[3]
        at = int(row["offset"])
        head = at - len("service.pipelinerunagent")
        place = {
            "length": head - wal.BATCH_HEAD.size - 8,
            "checksum": head - wal.BATCH_HEAD.size - 4,
            "head": head - 1,
            "text": at + 5,
            "meta": at + int(row["size"]) + 2,
        }[where]
        (file,) = [file for file in node.writer.journal.files if file.first_pos <= 3 < file.end_pos]
        flip(fs, file.path, place)
        await clock.sleep(40.0)
        whole = [*TEXTS[:3], *TEXTS[4:]]
        assert await stored(node) == whole
        assert await downloaded(node, RUN) == b"".join(whole)
        assert len(node.writer.recovered.found) == 1
        assert any("not what was synced" in problem for problem in node.problems())
        await node.append(incoming(b"8 and it goes on\n"))
        await node.stop()
        assert not node.failed.done()

    simulate(go, start_ms=START_MS)


def test_entries_that_are_whole_are_shipped_whole() -> None:
    """Of many runs and connectors, with and without metadata, over several files."""
    fs = PowerCutFileSystem()

    async def go(clock: VirtualClock) -> None:
        node = Life(fs, clock, seed=1, settings=LATE).node
        await node.start()
        sent = []
        for number in range(200):
            text = b"%03d " % number + b"x" * (number * 7 % 300) + b"\n"
            key = RunKey(f"service.{'é' * (number % 5)}", f"run-{number % 7}")
            connector = None if number % 3 else f"agent-{number % 4}"
            await node.append(IncomingBatch(key, text, 1, 1, connector=connector))
            sent.append(text)
        assert len(node.writer.journal.files) > 3
        await clock.sleep(40.0)
        assert await stored(node) == sent
        assert node.writer.recovered.found == []
        await node.stop()

    simulate(go, start_ms=START_MS)
