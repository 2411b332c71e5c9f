"""Every route of openapi.yaml refuses who may not use it, and lets pass who may."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import httpx
import pytest
import yaml

from service.access.access import Access
from service.access.audit import AuditLog
from service.doors.routes import OPERATIONS
from service.http.app import Application, HttpApi, build_app
from service.http.authorization import AccessControl, Pipelines, find_required_scope
from service.http.internal import internal_routes
from service.metrics.http import HTTP
from service.peers.rpc import ASKER, PATH, Contacts
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import NotAuthenticated
from tailrace.logstore.filesystem import Disk
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.memory_node import MemoryNode
from tests.simulation.clocks import ManualClock

ROOT = Path(__file__).parents[3]
SCOPES = ("ingest", "read", "consume", "admin", "metrics", "node")
PATTERNED = ("ingest", "read", "admin", "consume")
MINE, OTHERS = "shop.orders", "bank.orders"
LOGS = "/api/v1/services/ingestionPipelines/logs"
AUDITED = {
    *[("DELETE", path) for path in (f"{LOGS}/{{fqn}}", f"{LOGS}/{{fqn}}/{{runId}}")],
    ("DELETE", "/segments/groups/{group}"),
    *[("POST", f"/segments/groups/{{group}}/{verb}") for verb in ("reset", "retry")],
    *[("POST", f"/leases/{verb}") for verb in ("fail", "purge", "reopen", "reset")],
    *[("POST", f"/pipelines/{{name}}/{verb}") for verb in ("disable", "enable", "pause")],
    *[
        ("POST", f"/pipelines/{{name}}/{verb}")
        for verb in ("redeliver", "replay", "resume", "skip")
    ],
    ("POST", "/verify"),
}
MOVE_BY_ACCESS = {"tailrace_access_refused"}
PUBLIC = {
    *("/api/v1/system/version", "/health/live", "/health/ready"),
    *("/ready", "/loki/api/v1/status/buildinfo"),
}


class Operation(NamedTuple):
    """A method of a path of openapi.yaml."""

    method: str
    path: str

    def url(self, fqn: str) -> str:
        """Its URL for the pipeline, with some name for each other parameter."""
        return re.sub(r"\{\w+\}", "name", self.path.replace("{fqn}", fqn))


def operations() -> Iterator[Operation]:
    paths = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    for path, methods in paths.items():
        for method in methods:
            if method in ("get", "post", "put", "delete", "patch"):
                yield Operation(method.upper(), path)
                if method == "get":
                    yield Operation("HEAD", path)


CLOSED = [op for op in operations() if op.path not in PUBLIC]


def needed(op: Operation) -> tuple[str, ...]:
    required = find_required_scope(op.path, op.method)
    assert required is not None, f"{op} is open to everybody"
    return required.scopes


class Guarded(NamedTuple):
    client: httpx.AsyncClient
    audit: Path
    control: AccessControl

    async def ask(self, op: Operation, token: str | None, fqn: str = MINE) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return await self.client.request(op.method, op.url(fqn), headers=headers)


def everything(tmp_path: Path, *tokens: Any) -> tuple[Application, AccessControl]:
    """An app with all routes; what is behind those of searches and queues is not there."""
    clock = SystemClock()
    access = Access(written(tmp_path / "rules.yaml", *tokens), clock)
    control = AccessControl(
        access, AuditLog(str(tmp_path / "audit.log"), Disk(), clock), clock, lambda: "id"
    )
    nothing = cast("Any", lambda: None)
    api = HttpApi(
        query=nothing,
        live=nothing,
        queue=nothing,
        contents=nothing,
        leases=nothing,
        pipelines=nothing,
        verification=nothing,
        erasure=nothing,
        control=control,
    )
    node = MemoryNode()
    node.tail.stop()  # so that live streams end at once
    return build_app(node, api), control


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    app, control = everything(
        tmp_path,
        *[rule(token_of(f"only{scope}"), {scope: ["*"]}) for scope in SCOPES],
        *[
            rule(token_of(f"but{scope}"), {other: ["*"] for other in SCOPES if other != scope})
            for scope in SCOPES
        ],
        rule(
            token_of("mine"),
            {scope: ["shop.*"] for scope in ("ingest", "read", "admin", "consume")},
        ),
        rule(token_of("exact"), {"read": ["a"]}),
    )
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        yield Guarded(client, tmp_path / "audit.log", control)
    app.append.shut()
    await control.audit.close()


def test_there_are_operations_and_all_that_is_open_is_meant_to_be() -> None:
    assert len(CLOSED) > 60
    assert {
        op.path for op in operations() if find_required_scope(op.path, op.method) is None
    } == PUBLIC


def test_what_is_in_the_audit_log_is_what_deletes_and_what_admin_alone_may_change() -> None:
    audited = set()
    for op in CLOSED:
        required = find_required_scope(op.path, op.method)
        assert required is not None
        if required.audited:
            assert required.scopes == ("admin",), op
            audited.add((op.method, op.path))
        else:
            reads = op.method in ("GET", "HEAD")
            assert op.method != "DELETE"
            assert reads or required.scopes != ("admin",), op
    assert audited == AUDITED


async def test_each_refuses_who_has_no_token_or_none_that_is_known(guarded: Guarded) -> None:
    tokens = (None, token_of("unknown"), token_of("onlyread", "1"), "eyJhbGciOiJub25lIn0.e30.")
    for op, token in product(CLOSED, tokens):
        reply = await guarded.ask(op, token)
        assert reply.status_code == 401, (op, token)
        assert reply.headers["www-authenticate"].startswith("Bearer")
        problem = reply.headers["content-type"] == "application/problem+json"
        assert problem == (op.path not in OPERATIONS), "doors answer in their protocols' shapes"


async def test_each_refuses_a_token_without_the_scope(guarded: Guarded) -> None:
    for op in CLOSED:
        scopes = needed(op)
        for scope in SCOPES:
            reply = await guarded.ask(op, token_of(f"only{scope}"))
            assert reply.status_code != 401, (op, scope)
            assert (reply.status_code == 403) == (scope not in scopes), (op, scope, reply.text)
        if len(scopes) == 1:
            assert (await guarded.ask(op, token_of(f"but{scopes[0]}"))).status_code == 403, op


async def test_each_refuses_a_token_without_the_pipeline(guarded: Guarded) -> None:
    token = token_of("mine")
    for op in CLOSED:
        required = find_required_scope(op.path, op.method)
        assert required is not None
        mine, others = [await guarded.ask(op, token, fqn) for fqn in (MINE, OTHERS)]
        assert mine.status_code != 401
        if required.pipelines is Pipelines.NAMED:
            assert "{fqn}" in op.path
            assert (mine.status_code == 403, others.status_code) == (False, 403), op
        else:
            assert (mine.status_code == 403) == (required.pipelines is Pipelines.EVERY), op


async def test_names_are_compared_decoded(guarded: Guarded) -> None:
    """`a/b` and `a%2Fb` are one name, which is not under `shop.`, however it is written."""
    base = "/api/v1/services/ingestionPipelines/logs"
    headers = {"authorization": f"Bearer {token_of('mine')}", "content-type": "text/plain"}
    cases = {
        f"{base}/shop.orders/r": 200,
        f"{base}/%73hop.orders/r": 200,
        f"{base}/shop.a/b/r": 200,
        f"{base}/shop.a%2Fb/r": 200,
        f"{base}/bank/shop.orders/r": 403,
        f"{base}/bank%2Fshop.orders/r": 403,
        f"{base}/shop%252Eorders/r": 403,
        f"{base}/shop%2Forders/r": 403,
        f"{base}//shop.orders/r": 403,
    }
    for url, status in cases.items():
        reply = await guarded.client.post(url, content=b"line\n", headers=headers)
        assert reply.status_code == status, url
        reply = await guarded.client.get(url, headers=headers)
        assert (reply.status_code == 403) == (status == 403), url


async def test_a_slash_between_names_and_one_in_a_name_are_told_apart(guarded: Guarded) -> None:
    """`a/b` is the run `b` of `a`; `a%2Fb`, and what stands before a run's id, is a pipeline."""
    base = "/api/v1/services/ingestionPipelines/logs"
    headers = {"authorization": f"Bearer {token_of('exact')}"}
    for path, refused in (("a", 0), ("a/b", 0), ("a%2Fb", 1), ("a%2Fb/r", 1), ("a/b/r", 1)):
        reply = await guarded.client.get(f"{base}/{path}", headers=headers)
        assert (reply.status_code == 403) == bool(refused), path


async def test_nothing_is_deleted_before_the_audit_log_has_it(guarded: Guarded) -> None:
    run = f"{LOGS}/{MINE}/r"
    headers = {"authorization": f"Bearer {token_of('mine')}", "content-type": "text/plain"}
    assert (await guarded.client.post(run, content=b"line\n", headers=headers)).status_code == 200
    guarded.audit.unlink(missing_ok=True)
    guarded.audit.mkdir()  # so that it cannot be written
    reply = await guarded.client.delete(run, headers=headers)
    assert (reply.status_code, reply.json()["type"]) == (503, "unavailable")
    assert (await guarded.client.get(run, headers=headers)).status_code == 200
    guarded.audit.rmdir()
    assert (await guarded.client.delete(run, headers=headers)).status_code == 200
    lost, first = [json.loads(line) for line in guarded.audit.read_text().splitlines()[:2]]
    assert (lost["event"], lost["count"]) == ("lines-lost", 1)  # of the one that was refused
    assert (first["event"], first["method"], first["path"]) == ("deleted", "DELETE", run)
    assert (await guarded.client.get(run, headers=headers)).status_code == 404


async def test_the_audit_log_names_pipeline_and_run_whole_and_no_token(guarded: Guarded) -> None:
    names = ["trl_orders", "eyJ-pipeline", "a" * 3000, "shop/orders"]
    secret = "trl_4f0c21d9ab_" + "a1" * 32
    jwt = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln"
    for number, fqn in enumerate([*names, secret, jwt]):
        url = f"{LOGS}/{quote(fqn, safe='')}/trl_run"
        method = ("GET", "POST")[number % 2]
        assert (await guarded.client.request(method, url, content=b"line\n")).status_code == 401
    await guarded.control.audit.close()
    lines = [json.loads(line) for line in guarded.audit.read_text().splitlines()]
    assert {line["fqn"] for line in lines} == {*names, "(a token)"}
    assert {line["run"] for line in lines if line["method"] != "POST"} == {"trl_run"}
    assert secret not in guarded.audit.read_text()
    assert jwt not in guarded.audit.read_text()
    assert all("trl_orders" in line["path"] for line in lines if line["fqn"] == "trl_orders")


async def test_what_masks_the_audit_log_takes_time_in_proportion_to_the_text(
    guarded: Guarded,
) -> None:
    """What goes back over the text would take hours, and this test its time limit."""
    text = b"eyJ" * 1_000_000 + b"trl_ab" * 500_000
    scope = {
        "type": "http",
        "method": "GET",
        "headers": [],
        "client": ("10.0.0.1", 1),
        "raw_path": text,
        "query_string": text,
        "path_params": {"fqn": text.decode()},
    }
    guarded.control.refused(scope, NotAuthenticated("no"))
    await guarded.control.audit.close()
    (line,) = guarded.audit.read_text().splitlines()
    assert json.loads(line)["status"] == 401


async def test_other_methods_say_nothing_of_what_is_stored(guarded: Guarded) -> None:
    for op in CLOSED:
        for method in ("OPTIONS", "TRACE", "PATCH"):
            reply = await guarded.client.request(method, op.url(MINE))
            assert reply.status_code in (401, 403, 405), (method, op)


async def test_refusals_are_counted_by_their_reason(guarded: Guarded) -> None:
    (metric,) = [metric for metric in HTTP if metric.name in MOVE_BY_ACCESS]
    counters = SimpleNamespace(access_refused=guarded.control.access.refused)

    def shown() -> Any:
        return metric.read(cast("Any", SimpleNamespace(http=counters)))

    assert shown() == {}
    page = Operation("GET", "/api/v1/services/ingestionPipelines/logs/{fqn}/{runId}")
    for token in (None, token_of("unknown"), token_of("onlyingest"), token_of("onlyread")):
        await guarded.ask(page, token)
    assert shown() == {"no-token": 1, "invalid-token": 1, "scope": 1}


async def test_a_node_with_another_secret_is_a_line_of_the_audit_log_once_an_hour(
    tmp_path: Path,
) -> None:
    """It asks every second."""
    clock = ManualClock()
    rules = written(tmp_path / "rules.yaml", rule(token_of("mine"), {"read": ["*"]}))
    access = Access(rules, clock)
    audit = AuditLog(str(tmp_path / "audit.log"), Disk(), clock)
    control = AccessControl(access, audit, clock, lambda: "id")

    async def answer(verb: str, body: bytes) -> bytes:
        raise AssertionError("it was let in")

    contacts = Contacts(cast("Any", None), clock)
    routes = internal_routes(["right"], lambda: "i", answer, contacts, control)
    app = build_app(MemoryNode(), HttpApi(control=control, clock=clock, routers=(routes,)))
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        headers = {"authorization": "Bearer wrong", ASKER: "http://10.0.0.9:8790"}
        for seconds in (*[1] * 20, 3600, 1):
            reply = await client.post(f"{PATH}lines", headers=headers)
            assert reply.status_code == 401
            clock.pass_seconds(seconds)
    await audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    found = [(one["event"], one["asker"], one.get("left_out")) for one in lines]
    assert found == [
        ("refused", "http://10.0.0.9:8790", None),
        ("refused", "http://10.0.0.9:8790", 20),
    ]
    assert "the secret differs" in lines[0]["reason"]
    assert "wrong" not in (tmp_path / "audit.log").read_text()
