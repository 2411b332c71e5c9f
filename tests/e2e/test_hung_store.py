"""Reads over a MinIO that is frozen: they have what the journal holds, and say what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
import pytest

from tailrace.cli.main import main
from tailrace_client import Run
from tests.e2e.hung_store import Freezer, service_over, start_all
from tests.e2e.processes import wait_for
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.minio import Minio, memory_folder, running_minio
from tests.service.peers.processes import Nodes

pytestmark = pytest.mark.minio
PLAIN = {"content-type": "text/plain"}
PATIENCE_SECONDS = 60.0
HELD = ["new 0", "new 1", "new 2"]
STORED = ["stored 0", "stored 1"]


@pytest.fixture(scope="module")
def server() -> Iterator[Minio]:
    """A server of these tests alone, for they freeze it."""
    with running_minio(memory_folder()) as running:
        yield running


@pytest.fixture(scope="module")
def nodes(server: Minio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A node that holds nothing, and one that only reads.

    The first, and a node that has left, have brought runs into the store.
    """
    folder, bucket = tmp_path_factory.mktemp("hung"), server.bucket()
    theirs, ours = service_over(bucket, folder / "theirs"), service_over(bucket, folder / "ours")
    reads = service_over(bucket, folder / "reads", TAILRACE_SERVER__ROLE="query")
    start_all(theirs, ours)
    for node, run in ((theirs, "theirs"), (ours, "ours")):
        with client_of(node) as client:
            for fqn in ("read", "followed", "emptied"):
                append(client, f"{BASE}/{fqn}/{run}", b"stored 0\nstored 1\n")
    assert (theirs.stop(), ours.stop()) == (0, 0)
    start_all(ours, reads)
    journal = ours.data / "journal"
    wait_for(lambda: len(list(journal.glob("*.wal"))) == 1)  # the one before was let go
    yield ours, reads
    Freezer(server).thaw()
    ours.kill()
    reads.kill()


@pytest.fixture
def service(nodes: Nodes) -> ServiceProcess:
    """The node that takes lines."""
    return nodes[0]


@pytest.fixture
def reader(nodes: Nodes) -> ServiceProcess:
    """The node that only reads."""
    return nodes[1]


@pytest.fixture
def frozen(server: Minio, nodes: Nodes) -> Iterator[Freezer]:
    """The store answers until a test freezes it, and again when the test is over."""
    found = Freezer(server)
    yield found
    found.thaw()
    for node in nodes:
        with client_of(node) as client:
            wait_for(lambda: answers_again(client))


def client_of(service: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS)


def append(client: httpx.Client, run: str, text: bytes) -> None:
    assert client.post(run, content=text, headers=PLAIN).status_code == 200


def answers_again(client: httpx.Client) -> bool:
    """Whether the node has found that its store answers."""
    return client.get(BASE).status_code == 200


def records(reply: httpx.Response) -> tuple[list[str], dict[str, Any]]:
    """The messages, and the stats at the end."""
    found = [json.loads(line) for line in reply.text.splitlines()]
    return [record["message"] for record in found[:-1]], found[-1]["stats"]


@pytest.mark.in_turn(4)
def test_reads_have_what_the_journal_holds_and_say_so(
    service: ServiceProcess, frozen: Freezer
) -> None:
    with client_of(service) as client:
        run = f"{BASE}/held/new"
        frozen.freeze()
        append(client, run, b"new 0\nnew 1\nnew 2\n")

        page = client.get(run)
        assert (page.status_code, page.headers["tailrace-store"]) == (206, "silent")
        assert page.json()["logs"].splitlines() == HELD
        assert (page.json()["store"], page.json()["state"]) == ("silent", "unknown")
        assert page.json()["after"] is None

        found, stats = records(client.get(run, params={"format": "ndjson"}))
        assert (found, stats["store"], stats["complete"]) == (HELD, "silent", False)
        ordered = client.get(run, params={"order": "ulid"})
        assert (ordered.status_code, ordered.json()["logs"].splitlines()) == (206, HELD)

        for form in ({}, {"order": "ulid"}):
            text = client.get(f"{run}/download", params=form)
            assert (text.status_code, text.headers["tailrace-store"]) == (206, "silent")
            assert text.text.splitlines() == HELD
            assert "etag" not in text.headers
        found, stats = records(client.get(f"{run}/download", params={"format": "ndjson"}))
        assert (found, stats["store"], stats["complete"]) == (HELD, "silent", False)

        runs = client.get(f"{BASE}/held")
        assert (runs.status_code, runs.json()["store"]) == (206, "silent")
        assert runs.json()["runs"] == ["new"]
        pipelines = client.get(BASE)
        assert (pipelines.status_code, pipelines.json()["pipelines"]) == (206, ["held"])

        last = client.get(f"{BASE}/held/last")
        assert (last.status_code, last.headers["tailrace-store"]) == (206, "silent")
        assert last.headers["tailrace-run"] == "new"
        assert last.json()["ingestion_task"].splitlines() == HELD
        assert client.get(f"{BASE}/held/last/download").text.splitlines() == HELD

        events = client.get(f"{run}/next", params={"format": "json", "escape": "false"})
        assert [event["log"]["message"] for event in events.json()] == HELD
        assert (events.status_code, events.headers["tailrace-store"]) == (206, "silent")

        assert "does not answer" in " ".join(client.get("/health/ready").json()["problems"])
        nothing = client.get(f"{BASE}/held/nobody-knows")
        assert (nothing.status_code, nothing.json()["type"]) == (503, "store-unavailable")
        for key in (run, f"{BASE}/held/nobody-knows"):
            assert client.post(f"{key}/close").json()["state"] == "closing"

        frozen.thaw()
        wait_for(lambda: client.get(run).json().get("state") == "closed")
        page = client.get(run)
        assert (page.status_code, page.json()["logs"].splitlines()) == (200, HELD)
        assert "store" not in page.json()
        assert client.get(f"{run}/download").text.splitlines() == HELD


@pytest.mark.in_turn(3)
def test_searches_have_what_the_journal_holds_and_say_so(
    service: ServiceProcess, frozen: Freezer
) -> None:
    with client_of(service) as client:
        frozen.freeze()
        append(client, f"{BASE}/found/new", b"new 0\nnew 1\nnew 2\n")
        asked = {"fqn": "found"}
        for q in ({}, {"q": "new"}, {"q": "/new [012]/"}):
            found = client.get("/query", params=asked | q | {"order": "asc"})
            assert (found.status_code, found.headers["tailrace-store"]) == (206, "silent")
            messages, stats = records(found)
            assert messages == HELD
            assert (stats["complete"], stats["store"]) == (False, "silent")
            assert stats["missing"] == ["the object store"]
        counts = client.get("/query/histogram", params=asked)
        assert (counts.status_code, counts.json()["stats"]["store"]) == (206, "silent")
        assert sum(bucket["count"] for bucket in counts.json()["buckets"]) == 3
        fields = client.get("/query/fields", params=asked)
        assert (fields.status_code, fields.json()["records"]) == (206, 3)
        values = client.get("/query/values", params=asked | {"field": "run"})
        assert (values.status_code, values.json()["records"]) == (206, 3)
        frozen.thaw()
        wait_for(lambda: answers_again(client))
        both = {"q": "(fqn:found) OR (fqn:read run:ours)", "order": "asc"}
        messages, stats = records(client.get("/query", params=both))
        assert messages == STORED + HELD
        assert stats["complete"]


def test_a_node_that_only_reads_has_what_the_others_hold_and_says_so(
    service: ServiceProcess, reader: ServiceProcess, frozen: Freezer
) -> None:
    run, asked = f"{BASE}/asked/new", {"fqn": "asked", "order": "asc"}
    with client_of(service) as client, client_of(reader) as reading:
        frozen.freeze()
        append(client, run, b"new 0\nnew 1\nnew 2\n")
        page = reading.get(run)
        assert (page.status_code, page.json()["store"]) == (206, "silent")
        assert page.json()["logs"].splitlines() == HELD
        text = reading.get(f"{run}/download")
        assert (text.status_code, text.headers["tailrace-store"]) == (206, "silent")
        assert text.text.splitlines() == HELD
        runs = reading.get(f"{BASE}/asked")
        assert (runs.status_code, runs.json()["store"], runs.json()["runs"]) == (
            *(206, "silent"),
            ["new"],
        )
        found, stats = records(reading.get("/query", params=asked))
        assert (found, stats["complete"], stats["store"]) == (HELD, False, "silent")
        with reading.stream("GET", f"{BASE}/asked/stream/new", params={"format": "text"}) as reply:
            shown = until(frames(reply), "text", HELD)
            assert '"store":true' in shown.said
        nothing = reading.get(f"{BASE}/asked/nobody-knows")
        assert (nothing.status_code, nothing.json()["type"]) == (503, "store-unavailable")
        assert "Traceback" not in service.output(), "it was asked, and holds nothing"
        frozen.thaw()
        wait_for(lambda: answers_again(reading))
        assert reading.get(run).status_code == 200
        assert records(reading.get("/query", params=asked))[0] == HELD


def test_live_searches_begin_without_the_store_and_go_on_with_it(
    nodes: Nodes, frozen: Freezer
) -> None:
    """At the node that takes the lines, and at one that asks it."""
    run, asked = f"{BASE}/live/new", {"fqn": "live", "window": "0"}
    with ExitStack() as ends:
        client, *_ = clients = [ends.enter_context(client_of(node)) for node in nodes]
        frozen.freeze()
        replies = [
            ends.enter_context(one.stream("GET", "/query/stream", params=asked)) for one in clients
        ]
        assert [reply.status_code for reply in replies] == [200, 200]
        streams = [frames(reply) for reply in replies]
        append(client, run, b"new 0\n")
        for events in streams:
            assert '"store":true' in until(events, "ndjson", ["new 0"]).said
        append(client, run, b"new 1\nnew 2\n")
        for events in streams:
            assert until(events, "ndjson", HELD[2:]).lines == HELD[1:]
        frozen.thaw()
        for one in clients:
            wait_for(lambda: answers_again(one))  # noqa: B023
        append(client, run, b"new 3\n")
        for events in streams:
            rest = until(events, "ndjson", ["new 3"])
            assert rest.lines == ["new 3"], "each line once"
            assert "event: gap" not in rest.said
            if '{"nodes":[]}' not in rest.said:  # it may come behind the line
                assert any('{"nodes":[]}' in frame for frame in events), "all answer again"


def test_the_command_line_prints_what_is_held_and_says_so(
    service: ServiceProcess, frozen: Freezer, capfd: pytest.CaptureFixture[str]
) -> None:
    url, run = ["--url", service.url], ["printed", "new"]
    with client_of(service) as client:
        frozen.freeze()
        append(client, f"{BASE}/printed/new", b"new 0\nnew 1\nnew 2\n")
    assert main(["tail", *run, "--no-follow", "-n", "-1", *url]) == 0
    printed = capfd.readouterr()
    assert printed.out.splitlines() == HELD
    assert "the object store does not answer" in printed.err
    assert main(["query", "--fqn", "printed", "--run", "new", "--order", "asc", *url]) == 2
    printed = capfd.readouterr()
    assert printed.out.splitlines() == HELD
    assert printed.err == "warning: partial: could not read the object store\n"
    assert main(["query", "--fqn", "printed", "--histogram", *url]) == 2
    printed = capfd.readouterr()
    assert " 3 " in printed.out
    assert "could not read the object store" in printed.err
    assert main(["tail", "printed", "unknown", "--no-follow", *url]) == 1
    assert "does not answer" in capfd.readouterr().err


def test_no_cursor_skips_what_is_stored(service: ServiceProcess, frozen: Freezer) -> None:
    with client_of(service) as client:
        runs = {name: f"{BASE}/read/{name}" for name in ("new", "theirs", "ours")}
        frozen.freeze()
        cursors = {}
        for name, run in runs.items():
            append(client, run, b"new 0\nnew 1\nnew 2\n")
            page = client.get(run, params={"limit": 2})
            assert (page.status_code, page.json()["logs"].splitlines()) == (206, HELD[:2])
            cursors[name] = page.json()["after"]
            rest = client.get(run, params={"after": cursors[name]})
            assert (rest.status_code, rest.json()["logs"].splitlines()) == (206, HELD[2:])
        frozen.thaw()
        wait_for(lambda: answers_again(client))
        rest_of = {name: read_on(client, run, cursors[name]) for name, run in runs.items()}
        for name, run in runs.items():
            page = client.get(run, params={"after": cursors[name]})
            again = page.json().get("again"), page.headers.get("tailrace-store")
            assert again == ((True, "again") if name == "ours" else (None, None))
        assert rest_of["new"] == HELD[2:]
        assert rest_of["theirs"] == STORED + HELD[2:], "what another node stored comes afterwards"
        assert rest_of["ours"] == STORED + HELD, "no cursor can leave these out: all come again"
        for name in ("theirs", "ours"):
            assert client.get(runs[name]).json()["logs"].splitlines() == STORED + HELD


def read_on(client: httpx.Client, run: str, after: str | None) -> list[str]:
    """All lines behind a cursor, page by page."""
    found: list[str] = []
    while after is not None:
        page = client.get(run, params={"after": after}).json()
        found += page["logs"].splitlines()
        after = page["after"]
    return found


@pytest.mark.parametrize("form", ["json", "text", "ndjson"])
def test_a_live_stream_shows_what_is_held_and_goes_on(
    service: ServiceProcess, frozen: Freezer, form: str
) -> None:
    with client_of(service) as client:
        run, stream = f"{BASE}/followed/{form}", f"{BASE}/followed/stream/{form}"
        frozen.freeze()
        append(client, run, b"new 0\nnew 1\n")
        with client.stream("GET", stream, params={"format": form}) as reply:
            events = frames(reply)
            shown = until(events, form, HELD[:2])
            assert '"store":true' in shown.said
            append(client, run, b"new 2\n")
            assert until(events, form, HELD[2:]).lines == HELD[2:]
            frozen.thaw()
            wait_for(lambda: answers_again(client))
            append(client, run, b"new 3\n")
            rest = until(events, form, ["new 3"])
            assert '{"nodes":[]}' in rest.said, "all answer again"
            assert rest.lines == ["new 3"], "each line once"


def test_a_live_stream_begins_again_if_the_store_has_lines_before(
    service: ServiceProcess, frozen: Freezer
) -> None:
    with client_of(service) as client:
        run, stream = f"{BASE}/followed/ours", f"{BASE}/followed/stream/ours"
        frozen.freeze()
        append(client, run, b"new 0\nnew 1\nnew 2\n")
        tail = Run(service.url, "followed", "ours").tail()
        assert [next(tail).message for _ in HELD] == HELD
        with client.stream("GET", stream, params={"format": "text"}) as reply:
            events = frames(reply)
            assert until(events, "text", HELD).lines == HELD
            frozen.thaw()
            rest = until(events, "text", STORED + HELD)
            assert "event: again" in rest.said
            assert rest.lines == STORED + HELD
        append(client, run, b"new 3\n")
        found = [next(tail).message for _ in range(3)]
        assert found == [*STORED, "new 3"], "the client leaves out what comes again"


@pytest.mark.in_turn(3)
def test_an_emptied_view_is_filled_also_by_another_connection(
    service: ServiceProcess, frozen: Freezer
) -> None:
    """The place of the connection before is behind lines that the view does not have any more."""
    with client_of(service) as client:
        run, stream = f"{BASE}/emptied/ours", f"{BASE}/emptied/stream/ours"
        frozen.freeze()
        append(client, run, b"new 0\nnew 1\nnew 2\n")
        with client.stream("GET", stream) as reply:
            events = frames(reply)
            assert until(events, "json", HELD).lines == HELD
            frozen.thaw()
            emptied = next(frame for frame in events if '"replay":true' in frame)
        last = emptied.partition("id: ")[2].splitlines()[0]
        with client.stream("GET", stream, headers={"last-event-id": last}) as reply:
            assert until(frames(reply), "json", HELD).lines == STORED + HELD


class Shown(NamedTuple):
    """Lines of a stream, and all else that it said."""

    lines: list[str]
    said: str


def frames(reply: httpx.Response) -> Iterator[str]:
    """The events and comments of a stream, as they come."""
    held = ""
    for text in reply.iter_text():
        held += text
        while "\n\n" in held:
            frame, _, held = held.partition("\n\n")
            yield frame


def until(events: Iterator[str], form: str, last: list[str]) -> Shown:
    """What a stream sends, up to these lines."""
    lines: list[str] = []
    said: list[str] = []
    for frame in events:
        data = frame.partition("data: ")[2]
        if form == "json" and "event: logs" in frame:
            lines += json.loads(data)["logs"].splitlines()
        elif form != "json" and data and "event:" not in frame:
            lines.append(json.loads(data)["message"] if form == "ndjson" else data)
        else:
            said.append(frame)
        if lines[-len(last) :] == last:
            break
    return Shown(lines, " ".join(said))
