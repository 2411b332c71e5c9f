"""Refusals in the log: seen, but not one line each, and without what a client made up."""

from __future__ import annotations

import re

import pytest

from service.http.errors import problem
from tailrace.logstore.errors import JournalFull
from tests.service.http.conftest import Serve
from tests.service.http.memory_node import MemoryNode


def test_clients_that_retry_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3000):
        assert problem(JournalFull("no room"), f"r{number}").status == 507
    assert 1 <= len(caplog.records) <= 20
    assert "journal-full: no room" in caplog.text


@pytest.mark.parametrize("sent", ["two words", "a\tb", "x" * 1000, "\x1b[2J"])
async def test_a_request_id_that_is_no_plain_token_is_replaced(direct: Serve, sent: str) -> None:
    served = await direct(MemoryNode(refusal=JournalFull("x")))
    response = await served.post("/p/r", b"x", x_request_id=sent, content_type="text/plain")
    made = response.headers["x-request-id"]
    assert re.fullmatch(r"[\w-]+", made)
    assert made not in sent
    assert response.json()["request_id"] == made
