"""A store in a folder that hangs when the service starts: durable lines need no store."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.client.programs import until
from tests.e2e.hung_folder import FOLDER, marker
from tests.e2e.service_process import BASE, ServiceProcess

RUN = f"{BASE}/p/r"
PATIENCE_SECONDS = 60.0


@pytest.mark.in_turn(3)
def test_a_start_takes_lines_and_has_them_in_the_folder_once_that_answers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    service = ServiceProcess(
        tmp_path / "node",
        store=store,
        TAILRACE_SERVER__STORE_SECONDS="1",
        TAILRACE_SERVER__STOP_SECONDS="2",
        TAILRACE_FLUSH__SEGMENT_SECONDS="0.2",
    )
    service.module = "tests.e2e.hung_folder"
    service.settings[FOLDER] = str(store)
    service.start()  # a node registers once before it takes lines
    assert service.stop() == 0
    marker(store).touch()
    try:
        service.start()
        with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
            headers = {"content-type": "text/plain"}
            assert client.post(RUN, content=b"held\n", headers=headers).status_code == 200
            page = client.get(RUN)
            assert (page.status_code, page.json()["store"]) == (206, "silent")
            assert page.json()["logs"] == "held"
            marker(store).unlink()
            until(lambda: client.get(RUN).status_code == 200)
            assert client.get(RUN).json()["logs"] == "held"
            until(lambda: bool([*store.glob("segments/*/*.parquet")]))
    finally:
        marker(store).unlink(missing_ok=True)
        service.kill()
