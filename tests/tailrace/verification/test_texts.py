"""Texts are read in stretches, and on while chunks move under the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from service.run_log.chunks import Chunks
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.runs.chunk_index import BLOCK
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.run_logs import SPAN_BYTES, RunText, Texts, spans
from tailrace.verification.state import StateCheck
from tests.tailrace.verification.world import World

OPEN = keys.run_manifest(RunKey("p", "open"))


@pytest.mark.parametrize("size", [1, 65_536, SPAN_BYTES - 1, SPAN_BYTES, SPAN_BYTES + 1])
def test_what_is_held_at_once_does_not_grow_with_the_text(size: int) -> None:
    blocks = np.zeros(300, BLOCK)
    blocks["size"] = size
    blocks["pos"] = np.arange(300)
    parts = list(spans(blocks))
    assert np.concatenate(parts)["pos"].tolist() == list(range(300))
    assert all(len(part) == 1 or part["size"].sum() <= SPAN_BYTES for part in parts)


class MovingStore(LocalStore):
    """Something happens right before a chunk's text is read for the first time."""

    before: Callable[[], None] | None = None

    async def get(self, key: str, **options: Any) -> tuple[ObjectInfo, bytes]:
        if key.endswith(".txt") and self.before is not None:
            before, self.before = self.before, None
            before()
        return await super().get(key, **options)


def read(world: World, before: Callable[[], None]) -> tuple[RunText, list[str], list[Fault]]:
    """The run, the ULIDs of its records, and the faults."""
    store = MovingStore(str(world.root), Disk(), SystemClock(), system_entropy())
    store.before = before
    told: list[Fault] = []
    findings = Findings(told.append)
    state = StateCheck(store, findings)
    texts = Texts(store, state, Chunks(store, "pipeline-logs"), findings, 0, 0)
    found: list[str] = []

    async def work() -> RunText:
        manifest = await texts.manifest(OPEN)
        assert manifest is not None
        run = RunText(manifest)
        async for stretch in texts.read(run, OPEN):
            found.extend(stretch.records.column("ulid").to_pylist())
        return run

    return asyncio.run(work()), found, told


def folded(world: World) -> None:
    """The chunk has another name, as if it had been folded."""
    (text,) = world.chunks("p/open")
    other = ulid.encode(ulid.decode(text.stem) + 1)
    manifest = orjson.loads((world.root / OPEN).read_bytes())
    manifest["chunks"][0]["id"] = other
    world.manifest("p/open", chunks=manifest["chunks"], version=ulid.encode(7))
    text.with_suffix(".idx").rename(text.with_name(f"{other}.idx"))
    text.rename(text.with_name(f"{other}.txt"))


def deleted(world: World) -> None:
    (text,) = world.chunks("p/open")
    later = {"chunks": [], "state": "deleted", "version": ulid.encode(7)}
    world.manifest("p/open", generation=ulid.encode(1 << 127), **later)
    text.unlink()


def test_a_chunk_that_is_folded_meanwhile_is_read_on(world: World) -> None:
    run, found, told = read(world, lambda: folded(world))
    assert (run.comparable, told) == (True, [])
    assert len(found) == len(set(found)) == 600


def test_a_run_that_is_deleted_meanwhile_is_not_compared(world: World) -> None:
    run, found, told = read(world, lambda: deleted(world))
    assert (run.comparable, found, told) == (False, [], [])
