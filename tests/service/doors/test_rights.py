"""The rights of a door's client: a token in every spelling, its pipelines, its quota."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.access.access import Access
from service.access.audit import AuditLog
from service.http.authorization import AccessControl
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.conftest import Serve

PUSH = "/loki/api/v1/push"
LOGS = "/v1/logs"
TOKEN = token_of("mine")


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[AccessControl]:
    clock = SystemClock()
    rules = written(
        tmp_path / "rules.yaml",
        rule(TOKEN, {"ingest": ["shop*"]}),
        rule(token_of("reads"), {"read": ["*"]}),
        rule(token_of("slow"), {"ingest": ["*"]}, requests_per_second=0.001),
    )
    audit = AuditLog(str(tmp_path / "audit.log"), Disk(), clock)
    made = AccessControl(Access(rules, clock), audit, clock, lambda: "id")
    yield made
    await audit.close()


def push(*services: str) -> bytes:
    streams = [
        {"stream": {"service_name": name}, "values": [["1700000000000000000", name]]}
        for name in services
    ]
    return json.dumps({"streams": streams}).encode()


def otlp(*services: str) -> bytes:
    return json.dumps(
        {
            "resourceLogs": [
                {
                    "resource": {
                        "attributes": [{"key": "service.name", "value": {"stringValue": name}}]
                    },
                    "scopeLogs": [{"logRecords": [{"timeUnixNano": "1700000000000000000"}]}],
                }
                for name in services
            ]
        }
    ).encode()


def pair(name: str, token: str) -> str:
    return base64.b64encode(f"{name}:{token}".encode()).decode()


@pytest.mark.parametrize(
    "authorization",
    [
        f"Bearer {TOKEN}",
        f"Splunk {TOKEN}",
        f"Basic {pair('anybody', TOKEN)}",
        f"Basic {pair('', TOKEN)}",
        f"ApiKey {pair('id', TOKEN)}",
    ],
)
async def test_a_token_in_every_spelling(
    direct: Serve, control: AccessControl, authorization: str
) -> None:
    served = await direct(control=control)
    headers = {"authorization": authorization, "content-type": "application/json"}
    answer = await served.client.post(PUSH, content=push("shop"), headers=headers)
    assert answer.status_code == 204
    [batch] = served.node.batches
    assert (batch.key.fqn, batch.connector) == ("shop", "loki/name of mine")


async def test_a_wrong_token_is_refused_in_the_shape_of_the_protocol(
    direct: Serve, control: AccessControl
) -> None:
    served = await direct(control=control)
    for authorization, status in [
        ("", 401),
        ("Basic !", 401),
        (f"Basic {pair('a', 'b')}", 401),
        (f"Basic {pair(TOKEN, '')}", 401),
        (f"Other {TOKEN}", 401),
        (f"Bearer {token_of('reads')}", 403),
    ]:
        headers = {"authorization": authorization} if authorization else {}
        json_headers = {**headers, "content-type": "application/json"}
        for path, kind in [(LOGS, "application/json"), (PUSH, "text/plain; charset=utf-8")]:
            answer = await served.client.post(path, content=b"{}", headers=json_headers)
            assert answer.status_code == status, (authorization, path)
            assert answer.headers["content-type"] == kind
            assert ("www-authenticate" in answer.headers) == (status == 401)
        answer = await served.client.post("/services/collector", content=b"{}", headers=headers)
        assert answer.json()["code"] == (2 if status == 401 else 4)
        answer = await served.client.post("/_bulk", content=b"\n", headers=headers)
        assert answer.json()["error"]["type"] == "security_exception"
        answer = await served.client.get("/_license", headers=headers)
        assert answer.status_code == status
    assert served.node.batches == []


async def test_records_of_other_pipelines_are_refused_and_the_others_stored(
    direct: Serve, control: AccessControl
) -> None:
    served = await direct(control=control)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    answer = await served.client.post(LOGS, content=otlp("bank", "shop"), headers=headers)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    answer = await served.client.post(PUSH, content=push("bank", "shop2"), headers=headers)
    assert answer.status_code == 400
    assert "no right to append to the pipeline 'bank'" in answer.text
    assert (
        await served.client.post(PUSH, content=push("bank"), headers=headers)
    ).status_code == 403
    day = "2023-11-14"
    assert [batch.key for batch in served.node.batches] == [
        RunKey("shop", day),
        RunKey("shop2", day),
    ]
    assert control.access.refused["scope"] == 3


async def test_a_quota_counts_at_doors(direct: Serve, control: AccessControl) -> None:
    served = await direct(control=control)
    headers = {"authorization": f"Bearer {token_of('slow')}", "content-type": "application/json"}
    answers = [
        await served.client.post(PUSH, content=push("shop"), headers=headers) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [204, 429]
    assert int(answers[1].headers["retry-after"]) > 0
