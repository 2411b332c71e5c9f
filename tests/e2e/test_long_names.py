"""Names of any length that is allowed, in every verb, over a real folder and a real bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

ROOT = BASE.removesuffix("/logs")
LONGEST = 4096
LINE: dict[str, Any] = {"content": b"line\n", "headers": {"content-type": "text/plain"}}


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.minio)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = request.getfixturevalue("bucket").environment if request.param == "bucket" else {}
    service = ServiceProcess(
        tmp_path / "node", **place, TAILRACE_SERVER__MAX_URL_BYTES=str(64 << 10)
    )
    service.start()
    yield service.url
    service.kill()


@pytest.mark.in_turn(4)
def test_every_verb_takes_names_of_every_length(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:

        def ask(method: str, path: str, expected: int = 200, **sent: Any) -> httpx.Response:
            reply = client.request(method, path, **sent)
            assert reply.status_code == expected, (method, path[-40:], size, reply.text[:300])
            return reply

        for letter in ("a", "é"):
            for size in (200, 201, 255, 256, 1024, LONGEST):
                name = letter * (size // len(letter.encode()))
                for fqn, run in ((name, "run"), ("pipeline", name)):
                    pipeline, path = quote(fqn), f"{quote(fqn)}/{quote(run)}"
                    status = {"runId": run, "pipelineState": "running", "startDate": 1767225600000}
                    ask("POST", f"{BASE}/{path}", **LINE)
                    ask("PUT", f"{ROOT}/{pipeline}/pipelineStatus", json=status)
                    ask("PUT", f"{ROOT}/progress/{path}", json={"done": 1})
                    ask("POST", f"{BASE}/{path}/close")
                    assert "line" in ask("GET", f"{BASE}/{path}").text
                    ask("HEAD", f"{BASE}/{path}/download")
                    assert ask("GET", f"{BASE}/{path}/download").content == b"line\n"
                    assert ask("GET", f"{BASE}/{pipeline}").json()["runs"] == [run]
                    assert fqn in ask("GET", BASE).json()["pipelines"]
                    ask("GET", f"{BASE}/{pipeline}/last")
                    ask("GET", "/query", params={"fqn": fqn})
                    ask("GET", f"{ROOT}/{pipeline}/pipelineStatus/{quote(run)}")
                    ask("DELETE", f"{BASE}/{path}")
                    ask("POST", f"{BASE}/{path}", **LINE)
                    ask("DELETE", f"{BASE}/{pipeline}")
                    ask("GET", f"{BASE}/{path}", 404)
                    assert fqn not in ask("GET", BASE).json()["pipelines"]
        size = LONGEST + 1
        ask("POST", f"{BASE}/{'a' * size}/run", 400, **LINE)
        ask("DELETE", f"{BASE}/{'a' * size}", 400)
