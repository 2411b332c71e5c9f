"""The stand-in of the histories gives what Spark gives for the same input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.spark.engine import MergeInput, RewriteInput, SparkEngine
from compactor.spark.session import Session
from tailrace.logstore import ulid
from tailrace.logstore.runs.deletions import Deletion
from tests.compactor.lake import NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.seeds import seeds

_COLUMNS = ["fqn", "run_id", "ulid", "ts", "level", "message"]

pytestmark = pytest.mark.spark


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(2))
def test_both_engines_give_the_same_lines_in_the_same_order(
    lake: Lake, session: Session, seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    made = [_random_batch(dice) for _ in range(30)]
    segments = [_put(lake, node, dice.choices(made, k=8)) for node in ("a", "b", "c")]
    held = [_put(lake, "held", dice.choices(made, k=5))]
    gone = [
        Deletion("f", "r1", dice.choice(made)[1] + 5, ulid.encode(1)),
        Deletion("g", None, dice.choice(made)[1], ulid.encode(1)),
    ]
    low, high = ulid.lowest_at(NOON - 1), ulid.lowest_at(NOON + 10_000)
    bounds = [low, ulid.lowest_at(NOON + 300), ulid.lowest_at(NOON + 700)]
    merging = MergeInput(_sizes(segments), _sizes(held), bounds, [0, 1, 2], gone, low, high)
    merged = [_merged(engine, merging, tmp_path) for engine in (PlainEngine(), session)]
    assert merged[0] == merged[1]
    assert merged[0][0] > 0
    rewriting = RewriteInput(_sizes([*segments, *held]), 2_000, 1, gone)
    rewritten = [_rewritten(engine, rewriting, tmp_path) for engine in (PlainEngine(), session)]
    assert rewritten[0] == rewritten[1]
    for others in (held, segments[1:]):
        some, more = _sizes(segments[:1]), _sizes(others)
        shared = [one.share_batches(some, more) for one in (PlainEngine(), session)]
        assert shared[0] == shared[1]


def test_the_line_that_is_the_deletions_own_goes_and_the_next_stays(
    lake: Lake, session: Session, tmp_path: Path
) -> None:
    one = batch("f", "r", NOON, 3)
    segments = [_put(lake, "a", [one])]
    gone = [Deletion("f", "r", one[1] + 1, ulid.encode(1))]
    low, high = ulid.lowest_at(NOON - 1), ulid.lowest_at(NOON + 1)
    merging = MergeInput(_sizes(segments), {}, [low], [0], gone, low, high)
    rewriting = RewriteInput(_sizes(segments), 3, 1, gone)
    for engine in (PlainEngine(), session):
        count, ((merged,),) = _merged(engine, merging, tmp_path)
        assert (count, merged["ulid"]) == (2, ulid.encode(one[1] + 2))
        ((rewritten,),) = _rewritten(engine, rewriting, tmp_path)
        assert rewritten["ulid"] == merged["ulid"]


def _random_batch(dice: random.Random) -> Batch:
    run = dice.choice(["r1", "r2", "é 3"])
    return batch(dice.choice("fg"), run, NOON + dice.randrange(1_000), dice.randrange(1, 40))


def _put(lake: Lake, node: str, batches: list[Batch]) -> str:
    return lake.store.uri(lake.put(node, batches))


def _sizes(files: list[str]) -> dict[str, int]:
    return {file: Path(file).stat().st_size for file in files}


def _merged(engine: SparkEngine, work: MergeInput, folder: Path) -> tuple[int, list[list[Any]]]:
    place = folder / f"merged by {type(engine).__name__}"
    written, parts = engine.merge(work, str(place)), _parts(place, len(work.bounds))
    assert written.rows == sum(map(len, parts))
    return written.deleted, parts


def _rewritten(engine: SparkEngine, work: RewriteInput, folder: Path) -> list[list[Any]]:
    place = folder / f"rewritten by {type(engine).__name__}"
    rows, parts = engine.rewrite(work, str(place)), _parts(place, work.parts)
    assert rows == sum(map(len, parts))
    return parts


def _parts(folder: Path, count: int) -> list[list[Any]]:
    """The lines of each part in their order; none of one that has no file.

    Copies have positions of their own, and which copy is kept is left to the engine.
    """
    parts: list[list[Any]] = []
    for index in range(count):
        files = sorted(folder.glob(f"part-{index:05d}-*.parquet"))
        tables = [pq.ParquetFile(file).read(_COLUMNS) for file in files]
        parts.append(pa.concat_tables(tables).to_pylist() if tables else [])
    return parts
