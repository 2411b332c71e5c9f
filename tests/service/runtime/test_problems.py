"""Problems are said when they begin and when they are over, not in between."""

from __future__ import annotations

import logging

import pytest

from logstore.clock import SystemClock
from service.runtime.problems import ProblemLog


def test_each_problem_is_said_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problems: list[str] = []
    watch = ProblemLog(lambda: problems, SystemClock())
    for now in ([], ["disk"], ["disk"], ["disk", "store"], ["store"], [], ["disk"]):
        problems[:] = now
        watch.look()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("WARNING", "disk"),
        ("WARNING", "store"),
        ("INFO", "over: disk"),
        ("INFO", "over: store"),
        ("WARNING", "disk"),
    ]
