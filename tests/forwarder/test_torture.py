"""The short form of `make torture OF=forwarder`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forwarder.torture import Torture


@pytest.mark.in_turn(4)
@pytest.mark.logrotate
def test_killed_under_rotation(tmp_path: Path) -> None:
    done = Torture(tmp_path, 15, with_logrotate=True).run(4)
    assert done["forwarder kills"] == 4
    assert done["rotations"] > 3


@pytest.mark.logrotate
def test_killed_under_rotation_of_a_log_that_is_written(tmp_path: Path) -> None:
    done = Torture(tmp_path, 15, with_logrotate=True, writing=True).run(2)
    assert done["forwarder kills"] == 2
    assert done["rotations"] > 1
