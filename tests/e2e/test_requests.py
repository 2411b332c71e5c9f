"""Requests made up from openapi.yaml, to every route of a service process: no defect answers.

Schemathesis makes them, the same ones each time. Each goes out as it is, and with the names of a
run that is there: with a token for everything, with one for other pipelines, and without a token.
Live streams are read up to their first bytes. A reply is as openapi.yaml says, and no 5xx but those
that say what is away. A run of the tests takes every other route; `make fuzz` asks all of them for
more, and others each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case
from schemathesis.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from service.access.rules import SCOPES
from service.doors.routes import OPERATIONS
from service.http.authorization import find_required_scope
from tests.e2e.service_process import BASE, ServiceProcess
from tests.seeds import some
from tests.service.access.rules_file import rule, token_of, written

_SCHEMA = schemathesis.openapi.from_path(Path(__file__).parents[2] / "openapi.yaml")
_OPERATIONS = {
    found.ok().label: found.ok()
    for found in _SCHEMA.get_all_operations()
    if isinstance(found, Ok)  # the test that counts them sees what is not
}
_STREAMS = ("/stream/{runId}", "/query/stream")
# Each starts a process that reads the whole store.
_SLOW = ("/verify",)
_STATUS = "PUT /api/v1/services/ingestionPipelines/{fqn}/pipelineStatus"
_NAMES = {"fqn": "p", "runId": "r", "group": "g"}
ALL, OTHER = token_of("every"), token_of("other")
# What a request without a token may get: it says nothing of what is stored.
_BEFORE_ACCESS = (401,)
# An error of Loki's API in its own shape: bad input, a limit of searches, a search that must wait.
_OF_LOKI = (400, 413, 422, 429, 503, 504)
# How many for each route and mode; in the long form, and from which seed.
_COUNT = int(os.environ.get("FUZZ_COUNT", "0"))
_SEED = int(os.environ.get("FUZZ_SEED", "0"))
_CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
# Of the problems with 5xx, those that are no defect.
_AWAY = {"node-not-ready", "unavailable", "store-unavailable", "outcome-unknown", "journal-full"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("requests")
    limited = {"ingest": ["bank.*"], "read": ["bank.*"], "admin": ["bank.*"]}
    process = ServiceProcess(
        folder / "data",
        TAILRACE_ACCESS__RULES=written(
            folder / "rules.yaml",
            rule(ALL, {scope: ["*"] for scope in SCOPES}),
            rule(OTHER, limited),
        ),
        TAILRACE_QUEUE__MAX_WAIT_SECONDS="0.1",
        TAILRACE_RUNS__CLOSE_WAIT_SECONDS="0.1",
    )
    process.start()
    with httpx.Client(base_url=process.url, timeout=120, headers=_bearer(ALL)) as client:
        for run in ("r", "closed"):
            bulk = {"content-type": "text/plain", "tailrace-durability": "bulk"}
            client.post(f"{BASE}/p/{run}", content=b"one\ntwo\n", headers=bulk).raise_for_status()
        client.post(f"{BASE}/p/closed/close").raise_for_status()
        client.post("/segments/next", params={"group": "g"}).raise_for_status()
    yield process
    process.kill()


def test_every_operation_is_asked() -> None:
    paths = _SCHEMA.raw_schema["paths"]
    assert len(_OPERATIONS) == sum(len(operations) for operations in paths.values()) > 40


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _examples(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode) -> int:
    if operation.path in _SLOW:
        return 1
    if _COUNT:
        return _COUNT
    # A status is the body with the most ways to be wrong; fewer miss a state that is a list.
    return 200 if operation.label == _STATUS and mode.is_negative else 8


def _takes_something(operation: APIOperation[Any, Any, Any, Any]) -> bool:
    return bool(len(operation.body) or len(operation.query) or len(operation.headers))


_CASES = [
    (label, mode)
    for label, operation in sorted(_OPERATIONS.items())
    for mode in GenerationMode
    # Nothing wrong can be given to what takes nothing; any string is a name.
    if mode.is_positive or _takes_something(operation)
    # Bytes of other protocols cannot be made up from a schema: tests/service/doors, tests/fuzz.
    if operation.path not in OPERATIONS
]


@pytest.mark.parametrize(
    ("label", "mode"), _CASES if _COUNT else some(_CASES, 3, "made-up requests")
)
def test_no_request_finds_a_defect(
    label: str, mode: GenerationMode, service: ServiceProcess
) -> None:
    operation = _OPERATIONS[label]

    @seed(_SEED)
    @settings(
        max_examples=_examples(operation, mode),
        derandomize=not _COUNT,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Case[Any]) -> None:
        _ask(case, service)
        known = {name: _NAMES[name] for name in case.path_parameters or {} if name in _NAMES}
        if known and case.method != "DELETE":
            case.path_parameters = {**case.path_parameters, **known}
            _ask(case, service)

    ask()
    assert service.running, service.output()


def _is_lokis(case: Case[Any], reply: requests.Response) -> bool:
    path: str = case.operation.path
    return path.startswith("/loki/") and reply.headers["content-type"].startswith("text/plain")


def _ask(case: Case[Any], service: ServiceProcess) -> None:
    required = find_required_scope(case.operation.path, case.method)
    for token in (ALL, OTHER, None):
        given = case.as_transport_kwargs(base_url=service.url)
        kept = {k: v for k, v in (given["headers"] or {}).items() if k.lower() != "authorization"}
        sent = {**given, "headers": kept | ({} if token is None else _bearer(token))}
        streams = case.operation.path.endswith(_STREAMS)
        with requests.request(**sent, stream=streams, timeout=120) as reply:
            if reply.status_code >= 400 and _is_lokis(case, reply):
                # Loki's clients show an error's text as it is.
                assert reply.text, sent
                assert reply.status_code in _OF_LOKI, sent
            elif reply.status_code >= 400:
                problem = reply.json()
                assert reply.headers["content-type"] == "application/problem+json", sent
                assert problem["code"] == reply.status_code, sent
                if reply.status_code >= 500:
                    assert problem["type"] in _AWAY, (sent, problem)
            if token is None and required is not None:
                assert reply.status_code in _BEFORE_ACCESS, (sent, reply.text)
            assert token != ALL or reply.status_code not in (401, 403), (sent, reply.text)
            if not streams:
                case.validate_response(reply, checks=_CHECKS)
