"""Two real processes share a pipeline and are killed -9: the short form of `make torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.torture.torture import Torture
from tests.seeds import seeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("http", [False, True], ids=["store", "http"])
def test_killed_processes_write_each_record_once(tmp_path: Path, seed: int, http: bool) -> None:
    torture = Torture(tmp_path, kills=3, seed=seed, http=http)
    torture.run()
    assert torture.faults == []
    assert torture.told
