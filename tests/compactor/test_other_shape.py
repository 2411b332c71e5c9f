"""A pass that meets a table of another shape: nothing is written, nothing removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.dry_run import dry_run
from compactor.report import PassReport
from compactor.runner import once
from tailrace.logstore.errors import UnsupportedVersion
from tests import reshaped
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.reshaped import Action, Reshape

FIRST = batch("f", "r", NOON, 11)
LATER = batch("f", "r", NOON + HOUR, 3)


def extra(columns: list[Action]) -> list[Action]:
    return [*columns, {"name": "note", "type": "string", "nullable": True, "metadata": {}}]


@pytest.fixture
def consumed(lake: Lake) -> Lake:
    """One segment is in table and text, and might go; another waits, a copy of the first."""
    lake.session = PlainEngine()
    lake.put("a", [FIRST])
    lake.watermark("a", 1)
    lake.compact()
    lake.limits = lake.limits.model_copy(update={"grace_seconds": 0.0})
    lake.put("a", [FIRST, LATER])
    return lake


def stored(lake: Lake) -> dict[str, bytes]:
    root = Path(lake.settings.store_folder)
    files = (path for path in root.rglob("*") if path.is_file() and ".tailrace" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "change",
    [
        reshaped.with_deletion_vector,
        reshaped.with_column_mapping,
        reshaped.with_columns(extra),
    ],
)
def test_a_pass_leaves_all_as_it_is(consumed: Lake, change: Reshape) -> None:
    change(Path(consumed.compactor.table.uri))
    before = stored(consumed)
    for _ in range(2):
        with pytest.raises(UnsupportedVersion, match="has another shape"):
            consumed.run(once(consumed.compactor, PassReport()))
        assert stored(consumed) == before


def test_what_only_looks_says_so_too(consumed: Lake) -> None:
    reshaped.with_deletion_vector(Path(consumed.compactor.table.uri))
    with pytest.raises(UnsupportedVersion, match="deletionVectors"):
        consumed.run(dry_run(consumed.compactor))


def test_a_pass_goes_on_where_it_is_taken_back(consumed: Lake) -> None:
    log = Path(consumed.compactor.table.uri) / "_delta_log"
    reshaped.with_column_mapping(log.parent)
    with pytest.raises(UnsupportedVersion):
        consumed.compact()
    max(log.glob("*.json")).unlink()
    consumed.compact()
    consumed.holds([FIRST, LATER])
