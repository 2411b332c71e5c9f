"""A client of OpenMetadata's first generation whose node is killed before its reply arrives.

Or while it arrives: a client takes the cookie of a reply's head, and sends again without a body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.killed_in_reply import ARMED
from tests.e2e.service_process import ServiceProcess

KEY = RunKey("service.pipeline", "6f1c2ab0-9a6e-4a68-8a43-0c1b9d0e7f11")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    yield service
    if service.running:
        service.kill()
    assert "Traceback" not in service.output()


def _post(client: httpx.Client, **body: object) -> dict[str, object]:
    content = json.dumps({"connectorId": "host-17", "timestamp": 1, **body})
    reply = client.post(
        run_path(KEY), content=content, headers={"Content-Type": "application/json"}
    )
    assert reply.status_code == 200, reply.text
    answer: dict[str, object] = reply.json()
    return answer


@pytest.mark.in_turn(3)
def test_a_reply_lost_to_kill_9_leaves_one_copy(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, timeout=120) as client:
        _post(client)
        for number in range(3):
            heard = httpx.Cookies(client.cookies)
            sent = _post(client, logs="the same line\n")
            assert sent["duplicate"] is False
            # The client never saw that reply: neither its body nor its cookie.
            client.cookies = heard
            service.kill()
            service.start()
            again = _post(client, logs="the same line\n")
            assert again == {**sent, "duplicate": True}
            text = client.get(run_path(KEY, verb="download")).text
            assert text == "the same line\n" * (number + 1)


@pytest.mark.in_turn(4)
def test_kill_9_amid_a_reply_leaves_one_copy(service: ServiceProcess, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    service.kill()
    service.settings[ARMED] = str(armed)
    service.module = "tests.e2e.killed_in_reply"
    service.start()
    with httpx.Client(base_url=service.url, timeout=120) as client:
        _post(client)
        for number in range(3):
            armed.touch()
            with pytest.raises(httpx.TransportError):
                _post(client, logs="the same line\n")
            assert not armed.exists()
            service.kill()  # what is left to do is to hear that it is gone
            service.start()
            assert _post(client, logs="the same line\n")["duplicate"] is True
            text = client.get(run_path(KEY, verb="download")).text
            assert text == "the same line\n" * (number + 1)
    assert service.stop() == 0
