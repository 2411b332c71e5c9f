"""Seeded histories; `make torture OF=forwarder` runs many more, and real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forwarder.engine.histories import History
from tests.seeds import some

# Each found a defect: lines twice, in another order, a loss that was none, or no rest.
_SEEDS = [7, 9, 12, 16, 18, 32, 1021, 1025, 1040, 1091, 1115, 1164, 3227, 4051]

_LINKED = range(24)


@pytest.mark.parametrize("seed", some(_SEEDS, 3, "histories of a forwarder"))
def test_history(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    history.run(60)


@pytest.mark.parametrize("seed", some(_LINKED, 1, "histories of symbolic links"))
def test_history_of_symbolic_links(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed, linked=True)
    history.run(60)
