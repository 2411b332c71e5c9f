"""Refusals in the log: seen, but not one line each."""

from __future__ import annotations

import pytest

from logstore.errors import JournalFull
from service.http.errors import problem


def test_clients_that_retry_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3000):
        assert problem(JournalFull("no room"), f"r{number}").status == 507
    assert 1 <= len(caplog.records) <= 20
    assert "journal-full: no room" in caplog.text
