"""Runs of pods by their labels, as Airflow, Dagster, Argo and jobs of Kubernetes set them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tailrace.forwarder.naming import Namer, RunName
from tailrace.forwarder.pods import PodNames, api_server
from tailrace.logstore.errors import InvalidInput, Unavailable
from tests.forwarder.engine.world import World
from tests.forwarder.entries.packing import source
from tests.servers.openssl import Authority
from tests.simulation.clocks import ManualClock

UID = "0f3bd7f0-5a8d-4b0a-9c1e-0a4f6e1d2c3b"
ARGO = "workflows.argoproj.io/"


def pod(labels: dict[str, str], *containers: str, uid: str = UID) -> dict[str, Any]:
    """As the API server lists it."""
    return {
        "metadata": {"name": "a-pod", "namespace": "data", "uid": uid, "labels": labels},
        "spec": {"containers": [{"name": name} for name in containers or ("main",)]},
    }


def body(*pods: dict[str, Any]) -> bytes:
    return json.dumps({"kind": "PodList", "items": pods}).encode()


def path(container: str = "main", restart: int = 0, uid: str = UID) -> str:
    return f"/var/log/pods/data_a-pod_{uid}/{container}/{restart}.log"


def namer(list_pods: Callable[[], bytes], clock: ManualClock | None = None) -> Namer:
    pods = PodNames(list_pods, (clock or ManualClock()).monotonic)
    return Namer(source(template="kubernetes", fqn=""), host="node-1", pods=pods)


@pytest.mark.parametrize(
    ("labels", "fqn", "run"),
    [
        (
            {"dag_id": "etl", "task_id": "load", "run_id": "manual__1", "try_number": "2"},
            "etl.load",
            "manual__1/attempt=2/a-pod",
        ),
        (
            {"dag_id": "etl", "task_id": "g.load", "run_id": "r", "map_index": "7"},
            "etl.g.load",
            "r/map_index=7/a-pod",
        ),
        ({"dagster/job": "daily", "dagster/run-id": "6f0c"}, "daily", "6f0c/a-pod"),
        (
            {"dagster/job": "daily", "dagster/run-id": "6f0c", "dagster/op": "load"},
            "daily.load",
            "6f0c/a-pod",
        ),
        (
            {f"{ARGO}workflow": "etl-x7", f"{ARGO}workflow-template": "etl"},
            "data.etl",
            "etl-x7/a-pod",
        ),
        ({f"{ARGO}workflow": "n-1", f"{ARGO}cron-workflow": "n"}, "data.n", "n-1/a-pod"),
        ({f"{ARGO}workflow": "once"}, "data.once", "once/a-pod"),
        (
            {"batch.kubernetes.io/job-name": "report-29391840"},
            "data.report",
            "report-29391840/a-pod",
        ),
        ({"job-name": "migrate-2"}, "data.migrate-2", "migrate-2/a-pod"),
        ({"app": "web"}, "data.a-pod.main", f"{UID}/0"),
        ({"dag_id": "etl"}, "data.a-pod.main", f"{UID}/0"),
    ],
)
def test_labels_name_the_run(labels: dict[str, str], fqn: str, run: str) -> None:
    assert namer(lambda: body(pod(labels))).name(path(), "id") == (fqn, run)


def test_restarts_and_containers_are_told_apart() -> None:
    named = namer(lambda: body(pod({"job-name": "j"}, "main", "proxy")))
    assert named.name(path("proxy"), "id") == ("data.j.proxy", "j/a-pod")
    assert named.name(path("main", 3), "id") == ("data.j.main", "j/a-pod/3")
    # The kubelet rotates it: the same run.
    rotated = f"{path('main', 3)}.20260102-030405.gz"
    assert named.name(rotated, "id") == ("data.j.main", "j/a-pod/3")


def test_each_pod_is_looked_up_once() -> None:
    lists: list[int] = []

    def list_pods() -> bytes:
        lists.append(1)
        return body(pod({"job-name": "j"}))

    named = namer(list_pods)
    gone = "aaaaaaaa-0000-0000-0000-000000000000"
    for _ in range(3):
        assert named.name(path(), "id").fqn == "data.j"
        assert named.name(path(uid=gone), "id").fqn == "data.a-pod.main"
    assert len(lists) == 2


def test_files_wait_while_the_api_server_does_not_answer() -> None:
    clock, answers = ManualClock(), [OSError("refused"), ValueError("no JSON"), None]

    def list_pods() -> bytes:
        error = answers.pop(0)
        if error is not None:
            raise error
        return body(pod({"job-name": "j"}))

    named = namer(list_pods, clock)
    for _ in range(2):  # the second one asks nothing
        with pytest.raises(Unavailable, match="refused") as caught:
            named.name(path(), "id")
        assert "may list pods" in str(caught.value.hint)
    clock.pass_seconds(11)
    with pytest.raises(Unavailable, match="no JSON"):
        named.name(path(), "id")
    clock.pass_seconds(11)
    assert named.name(path(), "id") == ("data.j", "j/a-pod")


def test_a_name_outlives_the_pod_and_a_restart_of_the_forwarder() -> None:
    named = namer(lambda: body())
    named.remember(path(), RunName("data.j", "j/a-pod"))
    assert named.name(path(), "id") == ("data.j", "j/a-pod")


class Cluster(World):
    """A machine whose API server answers once `pods` are there."""

    pods: bytes | None = None

    def namer(self) -> Namer:
        return Namer(self.config, host="here", pods=PodNames(self.list_pods, self.clock.monotonic))

    def list_pods(self) -> bytes:
        if self.pods is None:
            raise OSError("refused")
        return self.pods


def test_lines_of_a_new_pod_wait_for_the_api_server_and_are_read_once(tmp_path: Path) -> None:
    include = [str(tmp_path / "logs" / "*" / "*" / "*.log")]
    world = Cluster(tmp_path, include=include, template="kubernetes", fqn="")
    world.path(f"data_a-pod_{UID}/main").mkdir(parents=True)
    lines = world.lines(f"data_a-pod_{UID}/main/0.log", 0, 50)
    for _ in range(3):
        world.poll()
    assert world.store.lines() == []
    assert len([said for said in world.said if "refused" in said]) == 1
    world.pods = body(pod({"job-name": "j"}))
    world.settle(60)
    assert world.store.lines("j/a-pod") == lines
    assert world.store.runs() == ["j/a-pod"]


# --- the API server -------------------------------------------------------------------------------


@contextmanager
def api(context: ssl.SSLContext, asked: list[tuple[str, str]]) -> Iterator[str]:
    """The port of a server with TLS that has one pod."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body(pod({"job-name": "j"})))

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield str(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.openssl
def test_it_lists_the_pods_of_its_machine_with_the_token_of_its_account(tmp_path: Path) -> None:
    authority, asked = Authority(tmp_path, "cluster"), list[tuple[str, str]]()
    (tmp_path / "token").write_text("a-token\n")
    (tmp_path / "ca.crt").write_bytes(authority.file.read_bytes())
    with api(authority.certificate("api", "IP:127.0.0.1"), asked) as port:
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            "NODE_NAME": "node-1",
        }
        list_pods = api_server(environment, str(tmp_path))
        assert namer(list_pods).name(path(), "id") == ("data.j", "j/a-pod")
        ((target, token),) = asked
        assert token == "Bearer a-token"
        assert urlsplit(target).path == "/api/v1/pods"
        assert parse_qs(urlsplit(target).query) == {"fieldSelector": ["spec.nodeName=node-1"]}
        (tmp_path / "ca.crt").write_bytes(Authority(tmp_path, "other").file.read_bytes())
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            namer(list_pods).name(path(), "id")
    assert len(asked) == 1


def test_outside_of_a_cluster_it_is_refused() -> None:
    with pytest.raises(InvalidInput, match="KUBERNETES_SERVICE_HOST is not set"):
        api_server({"NODE_NAME": "a"})
    with pytest.raises(InvalidInput, match="NODE_NAME is not set"):
        api_server({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
