"""The routes between nodes as real processes have them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.logstore import ulid as ulids
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.access.rules_file import rule, token_of, written
from tests.service.peers.processes import Nodes, running

SECRET = "a secret that all nodes share"
LAZY = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "3600",
    "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
    "TAILRACE_SERVER__STOP_SECONDS": "60",  # what a busy machine may take to store everything
}


def node(tmp_path: Path, name: str, secret: str = SECRET) -> ServiceProcess:
    return ServiceProcess(
        tmp_path / name,
        store=tmp_path / "store",
        TAILRACE_NODE_ID=name,
        TAILRACE_NODES__SECRET=secret,
        **LAZY,
    )


@pytest.fixture(scope="module")
def cluster_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes") / "store"


@pytest.fixture(scope="module")
def cluster(cluster_store: Path) -> Iterator[Nodes]:
    nodes = node(cluster_store.parent, "a"), node(cluster_store.parent, "b")
    with running(*nodes):
        yield nodes


@pytest.fixture
def two(cluster: Nodes) -> Nodes:
    """Both run, for all tests; each test has its pipeline."""
    for one in cluster:
        if not one.running:
            one.start()
    return cluster


@pytest.fixture
def fqn(request: pytest.FixtureRequest) -> str:
    return f"svc.{request.node.name}"


@pytest.fixture
def path(fqn: str) -> str:
    return f"{BASE}/{fqn}/run"


def post(service: ServiceProcess, path: str, text: str, batch: str | None = None) -> None:
    headers = {"content-type": "text/plain"} | ({"tailrace-batch": batch} if batch else {})
    httpx.post(f"{service.url}{path}", content=text, headers=headers, timeout=60).raise_for_status()


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=60)


def lines(service: ServiceProcess, path: str, **params: str) -> str:
    reply = httpx.get(f"{service.url}{path}", params=params, timeout=60)
    return str(reply.raise_for_status().json()["logs"])


@pytest.mark.in_turn(3)
def test_each_reads_what_the_other_has_just_taken(two: Nodes, path: str) -> None:
    a, b = two
    post(a, path, "one\n")
    post(b, path, "two\n")
    big = "".join(f"{n} {'x' * 200}\n" for n in range(20_000))  # beyond what comes at once
    post(b, path, big)
    for service in two:
        whole = _get(f"{service.url}{path}/download").raise_for_status().text
        assert sorted(whole.splitlines()) == sorted(["one", "two", *big.splitlines()])
    records = httpx.get(f"{a.url}{path}", params={"format": "ndjson", "tail": "2"}, timeout=60).text
    assert records.count('"message"') == 2


def test_who_is_killed_is_silent_and_is_read_again_when_it_returns(two: Nodes, path: str) -> None:
    a, b = two
    post(b, path, "two\n")
    assert lines(a, path) == "two"
    b.kill()
    post(a, path, "one\n")
    assert lines(a, path) == "one"
    said = _get(f"{a.url}/health/ready").text
    assert "is silent" in said
    b.start()
    assert sorted(lines(b, path).splitlines()) == ["one", "two"]


def test_who_stood_still_is_heard_again_though_nobody_reads(two: Nodes, path: str) -> None:
    a, b = two
    post(a, path, "one\n")
    os.kill(b.pid, signal.SIGSTOP)
    assert lines(a, path) == "one"
    assert "is silent" in _get(f"{a.url}/health/ready").text
    os.kill(b.pid, signal.SIGCONT)
    while "is silent" in _get(f"{a.url}/health/ready").text:
        time.sleep(0.05)


def events(
    service: ServiceProcess, fqn: str, last: str | None, run: str = "run", form: str = "text"
) -> Generator[tuple[str, str]]:
    """The events of a stream of text, or of records: cursor and line."""
    headers = {} if last is None else {"last-event-id": last}
    url = f"{service.url}{BASE}/{fqn}/stream/{run}?format={form}"
    with httpx.stream("GET", url, headers=headers, timeout=60) as reply:
        cursor = ""
        for line in reply.iter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                cursor = value
            elif field == "data":
                yield cursor, value


def test_a_live_reader_gets_each_line_once_whoever_takes_it(
    two: Nodes, fqn: str, path: str
) -> None:
    """It changes nodes in between, and batches are sent again at the other node."""
    found: list[str] = []
    last: str | None = None
    ulid = ulids.lowest_at(time.time_ns() // 1_000_000)
    for turn in range(6):
        stream = events(two[turn % 2], fqn, last)
        for number in range(4):
            name = f"{turn}.{number}"
            batch = ulids.encode(ulid | (turn * 10 + number + 1) << ulids.LINE_BITS)
            post(two[number % 2], path, f"{name} one\n{name} two\n", batch)
            if number >= 2:
                post(two[(number + 1) % 2], path, f"{name} one\n{name} two\n", batch)
            for _ in range(2):
                last, line = next(stream)
                found.append(line)
        stream.close()
    wanted = [
        f"{turn}.{number} {word}"
        for turn in range(6)
        for number in range(4)
        for word in ("one", "two")
    ]
    assert found == wanted


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("form", ["text", "ndjson"])
def test_a_live_reader_that_changes_nodes_at_each_line_gets_each_once(
    two: Nodes, fqn: str, path: str, form: str
) -> None:
    """Each node shows its own lines first, so a place within a group is not the same number."""
    path, wanted = f"{path}-{form}", []
    for number in range(3):
        for name, service in zip("ab", two, strict=True):
            texts = [f"{name}{number} {line}" for line in range(3)]
            wanted += texts
            post(service, path, "".join([f"{text}\n" for text in texts]))
    found: list[str] = []
    last: str | None = None
    for turn in range(len(wanted)):
        stream = events(two[turn % 2], fqn, last, run=f"run-{form}", form=form)
        last, line = next(stream)
        found.append(json.loads(line)["message"] if form == "ndjson" else line)
        stream.close()
    assert sorted(found) == sorted(wanted)


def test_a_record_of_several_lines_is_whole_for_a_reader_that_changes_nodes_in_it(
    two: Nodes, fqn: str, path: str
) -> None:
    wanted, found = [], []
    for number in range(2):
        for name, service in zip("ab", two, strict=True):
            records = [[f"{name}{number}{one} {line}" for line in range(3)] for one in range(2)]
            wanted += records
            body = "".join([json.dumps({"message": "\n".join(lines)}) + "\n" for lines in records])
            headers = {"content-type": "application/x-ndjson"}
            httpx.post(
                f"{service.url}{path}", content=body, headers=headers, timeout=60
            ).raise_for_status()
    last: str | None = None
    for turn in range(sum(map(len, wanted))):
        stream = events(two[turn % 2], fqn, last)
        last, line = next(stream)
        found.append(line)
        stream.close()
    assert sorted(found[at : at + 3] for at in range(0, len(found), 3)) == sorted(wanted)


def test_a_copy_that_comes_long_after_its_batch_is_not_repeated_live(
    two: Nodes, fqn: str, path: str
) -> None:
    """More batches lie between than a cursor names; the reader stays at the node of the copy."""
    a, b = two
    ulid = ulids.lowest_at(time.time_ns() // 1_000_000)
    batches = [ulids.encode(ulid | (number + 1) << ulids.LINE_BITS) for number in range(20)]
    stream, found = events(a, fqn, None), []
    for number, batch in enumerate(batches):
        post(b, path, f"{number}\n", batch)
        found.append(next(stream)[1])
    post(a, path, "0\n", batches[0])
    post(a, path, "last\n")
    found.append(next(stream)[1])
    stream.close()
    assert found == [*[f"{number}" for number in range(20)], "last"]


def test_lists_have_runs_that_only_another_node_holds(two: Nodes, fqn: str, path: str) -> None:
    a, b = two
    post(b, path, "two\n")
    assert fqn in _get(f"{a.url}{BASE}").json()["pipelines"]
    listed = _get(f"{a.url}{BASE}/{fqn}").json()
    assert [(run["runId"], run["lines"], run["state"]) for run in listed["details"]] == [
        ("run", 1, "open")
    ]
    newest = _get(f"{a.url}{BASE}/{fqn}/last").raise_for_status()
    assert newest.json()["ingestion_task"] == "two"


def found(service: ServiceProcess, **params: str) -> tuple[int, list[str], dict[str, Any]]:
    """Status, messages and stats of a search."""
    reply = httpx.get(f"{service.url}/query", params={"format": "ndjson", **params}, timeout=60)
    *records, stats = [json.loads(line) for line in reply.text.splitlines()]
    return reply.status_code, [record["message"] for record in records], stats["stats"]


@pytest.mark.in_turn(3)
def test_a_search_has_what_any_node_has_just_taken(two: Nodes, fqn: str, path: str) -> None:
    a, b = two
    post(a, path, "one\n")
    batch = ulids.encode(ulids.lowest_at(time.time_ns() // 1_000_000) | 1 << ulids.LINE_BITS)
    for service in two:
        post(service, path, "both\n", batch)
    post(b, path, "two\n")
    for service in two:
        status, messages, stats = found(service, fqn=fqn)
        assert (status, sorted(messages)) == (200, ["both", "one", "two"])
        assert stats["complete"]
        assert found(service, fqn=fqn, q="two")[1] == ["two"]
    httpx.delete(f"{a.url}{path}", timeout=60).raise_for_status()
    assert [found(service, fqn=fqn)[1] for service in two] == [[], []]
    b.kill()
    post(a, path, "again\n")
    status, messages, stats = found(a, fqn=fqn)
    assert (status, messages) == (206, ["again"])
    assert "records of the node b-" in stats["missing"][0]


@pytest.mark.in_turn(3)
def test_a_close_and_a_deletion_reach_both(two: Nodes, path: str) -> None:
    a, b = two
    post(a, path, "one\n")
    post(b, path, "two\n")
    assert httpx.post(f"{a.url}{path}/close", timeout=30).json()["state"] == "closed"
    assert _get(f"{b.url}{path}").json()["state"] == "closed"
    b.kill()
    reply = httpx.delete(f"{a.url}{path}", timeout=60)
    assert reply.status_code == 202
    assert [name.partition("-")[0] for name in reply.json()["silent"]] == ["b"]
    b.start()
    assert _get(f"{b.url}{path}").status_code == 404


def test_a_live_reader_hears_at_another_node_that_its_run_is_closed(
    two: Nodes, fqn: str, path: str
) -> None:
    """That node has no line of the run: it says so before the run is closed."""
    a, b = two
    post(a, path, "one\n")
    stream = events(b, fqn, None)
    assert next(stream)[1] == "one"
    assert httpx.post(f"{a.url}{path}/close", timeout=30).json()["state"] == "closed"
    assert [line for _, line in stream] == [""]  # `complete`, and the end


@pytest.mark.parametrize("secret", ["x", "another secret, as long"])
def test_a_question_without_the_secret_is_refused(two: Nodes, secret: str) -> None:
    headers = {"authorization": f"Bearer {secret}", "tailrace-instance": "x"}
    for verb in ("hot", "hello", "nothing"):
        reply = httpx.post(f"{two[0].url}/internal/{verb}", headers=headers, timeout=60)
        assert reply.status_code == 401
        assert SECRET not in reply.text


@pytest.mark.in_turn(3)
def test_a_token_with_the_scope_node_is_as_good_as_the_secret(tmp_path: Path) -> None:
    """So a secret is replaced: nodes with the new one ask those that have the old one still."""
    tokens = {scope: token_of(scope) for scope in ("node", "admin", "ingest")}
    rules = [rule(token, {scope: ["*"]}) for scope, token in tokens.items()]
    b = ServiceProcess(
        tmp_path / "b",
        store=tmp_path / "store",
        TAILRACE_NODE_ID="b",
        TAILRACE_NODES__SECRET=SECRET,
        TAILRACE_ACCESS__RULES=written(tmp_path / "rules.yaml", *rules),
        **LAZY,
    )
    a = node(tmp_path, "a", secret=tokens["node"])
    with running(a, b):
        for token, status in ((tokens["admin"], 403), (token_of("unknown"), 401), (SECRET, 409)):
            asked = {"authorization": f"Bearer {token}"}
            reply = httpx.post(f"{b.url}/internal/hot", headers=asked, timeout=60)
            assert reply.status_code == status
        headers = {"authorization": f"Bearer {tokens['ingest']}", "content-type": "text/plain"}
        path = f"{BASE}/svc.p/run"
        httpx.post(
            f"{b.url}{path}", content="at b\n", headers=headers, timeout=60
        ).raise_for_status()
        while "at b" not in _get(f"{a.url}{path}").text:  # until it has read the register
            time.sleep(0.05)
        refused = (tmp_path / "b" / "audit.log").read_text().splitlines()
        assert [json.loads(line)["path"] for line in refused] == ["/internal/hot"] * 2


def test_a_node_without_a_secret_has_no_such_routes(tmp_path: Path) -> None:
    alone = node(tmp_path, "alone", secret="")
    alone.start()
    try:
        assert httpx.post(f"{alone.url}/internal/hello", timeout=60).status_code == 404
        assert not (tmp_path / "store" / "coordination" / "peers").exists()
    finally:
        alone.stop()


@pytest.mark.in_turn(3)
def test_a_stop_that_has_stored_everything_leaves_the_register(
    two: Nodes, cluster_store: Path, path: str
) -> None:
    a, b = two
    post(b, path, "two\n")
    assert b.stop() == 0
    entries = [entry.name for entry in (cluster_store / "coordination" / "peers").iterdir()]
    assert len(entries) == 1
    assert entries[0].startswith("a-")
    assert lines(a, path) == "two"
