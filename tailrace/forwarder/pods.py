"""Names the runs of Kubernetes' pods by their labels, which the API server has.

The path of a pod's log has its namespace, name, uid, container and restart. Its labels say of what
it is a run:

| labels | pipeline | run begins with |
| --- | --- | --- |
| `dag_id`, `task_id`, `run_id` of Airflow | `DAG.TASK` | `RUN/map_index=N/attempt=N` |
| `dagster/job`, `dagster/run-id`, `dagster/op` | `JOB.OP` | `RUN` |
| Argo's `workflow`, and its template's or cron workflow's | `NAMESPACE.TEMPLATE` | `WORKFLOW` |
| `batch.kubernetes.io/job-name` | `NAMESPACE.JOB`, without a CronJob's number | `JOB` |

The run ends with the pod's name, and with the number of the restart if it is not the first start.
With several containers the pipeline ends with the container's name. A pod without such labels, or
one that the API server does not know, is named by its path alone.

A pod is looked up once: all pods of this machine are listed when an unknown one appears. While the
API server does not answer, files of unknown pods wait, since a run must not change its name.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import orjson

from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import InvalidInput, Unavailable

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
PodRun: TypeAlias = tuple[str, str]
"""Pipeline and run."""
_ARGO: Final = "workflows.argoproj.io"
_CRON: Final = re.compile(r"(.+)-\d{7,}")
_ANSWER_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0
_MOST_PODS: Final = 10_000
_HINT: Final = (
    "Its files wait. The forwarder needs a service account that may list pods, and NODE_NAME"
    " (docs/operate/kubernetes.md)."
)


@dataclass(frozen=True, slots=True)
class PodPath:
    """What the path of a container's log says."""

    namespace: str
    pod: str
    uid: str
    container: str
    restart: str


class PodNames:
    """Names runs of pods; `list_pods` returns the API server's list of those of this machine."""

    def __init__(self, list_pods: Callable[[], bytes], monotonic: Callable[[], float]) -> None:
        self._list = list_pods
        self._now = monotonic
        self._pods: BoundedCache[str, Mapping[str, Any]] = BoundedCache(_MOST_PODS)
        self._named: BoundedCache[tuple[str, str, str], PodRun] = BoundedCache(_MOST_PODS)
        self._unknown: BoundedCache[str, bool] = BoundedCache(_MOST_PODS)
        self._failed: tuple[float, str] | None = None

    def remember(self, path: PodPath, run: PodRun) -> None:
        """Keeps the name that a file got earlier, since its pod may be gone from the server."""
        self._named.put((path.uid, path.container, path.restart), run)

    def name(self, path: PodPath) -> PodRun | None:
        """The run by the labels; None without any. Raises `Unavailable` without an answer."""
        known = self._named.get((path.uid, path.container, path.restart))
        if known is not None:
            return known
        pod = self._pods.get(path.uid)
        if pod is None and path.uid not in self._unknown:
            self._refresh(path)
            pod = self._pods.get(path.uid)
            if pod is None:
                self._unknown.put(path.uid, True)
        return None if pod is None else run_of(pod, path)

    def _refresh(self, path: PodPath) -> None:
        now = self._now()
        if self._failed is not None and now - self._failed[0] < _AGAIN_SECONDS:
            raise self._unanswered(path, self._failed[1])
        try:
            found = orjson.loads(self._list())["items"]
            pods = {item["metadata"]["uid"]: item for item in found}
        except (OSError, URLError, ValueError, TypeError, KeyError) as error:
            self._failed = now, str(error)
            raise self._unanswered(path, str(error)) from error
        self._failed = None
        for uid, pod in pods.items():
            self._pods.put(uid, pod)

    def _unanswered(self, path: PodPath, why: str) -> Unavailable:
        return Unavailable(
            f"the API server does not say of what {path.namespace}/{path.pod} is a run: {why}",
            hint=_HINT,
        )


def run_of(pod: Mapping[str, Any], path: PodPath) -> PodRun | None:
    """The run that the pod's labels name; None without such labels."""
    labels = pod["metadata"].get("labels") or {}
    found = _by_labels(labels, path.namespace)
    if found is None:
        return None
    fqn, run = found
    several = len(pod.get("spec", {}).get("containers", ())) > 1
    restarted = f"/{path.restart}" if path.restart != "0" else ""
    return f"{fqn}.{path.container}" if several else fqn, f"{run}/{path.pod}{restarted}"


def _by_labels(labels: Mapping[str, str], namespace: str) -> PodRun | None:
    def get(name: str, form: str = "{}") -> str:
        return form.format(labels[name]) if labels.get(name) else ""

    if get("dag_id") and get("task_id") and get("run_id"):
        attempt = get("map_index", "/map_index={}") + get("try_number", "/attempt={}")
        return f"{get('dag_id')}.{get('task_id')}", f"{get('run_id')}{attempt}"
    if get("dagster/job") and get("dagster/run-id"):
        return get("dagster/job") + get("dagster/op", ".{}"), get("dagster/run-id")
    workflow = get(f"{_ARGO}/workflow")
    if workflow:
        of = get(f"{_ARGO}/cron-workflow") or get(f"{_ARGO}/workflow-template") or workflow
        return f"{namespace}.{of}", workflow
    job = get("batch.kubernetes.io/job-name") or get("job-name")
    if job:
        cron = _CRON.fullmatch(job)
        return f"{namespace}.{cron[1] if cron else job}", job
    return None


def api_server(
    environment: Mapping[str, str] = os.environ, account: str = ACCOUNT
) -> Callable[[], bytes]:
    """Lists the pods of the machine NODE_NAME with the service account of this pod.

    Raises `InvalidInput` outside of a cluster. The list raises `OSError`.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    node = environment.get("NODE_NAME")
    if not host or not node:
        missing = "NODE_NAME" if host else "KUBERNETES_SERVICE_HOST"
        raise InvalidInput(
            f"template kubernetes: {missing} is not set",
            field="template",
            hint="It is for a pod of a DaemonSet; the template pods needs no API server.",
        )
    host = f"[{host}]" if ":" in host else host
    port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    selector = quote(f"spec.nodeName={node}", safe="")
    url = f"https://{host}:{port}/api/v1/pods?fieldSelector={selector}"

    def list_pods() -> bytes:
        # Both are replaced while the pod runs.
        with open(f"{account}/token", encoding="ascii") as file:
            headers = {"Authorization": f"Bearer {file.read().strip()}"}
        trusted = ssl.create_default_context(cafile=f"{account}/ca.crt")
        with urlopen(
            Request(url, headers=headers),
            timeout=_ANSWER_SECONDS,
            context=trusted,
        ) as answer:
            body: bytes = answer.read()
            return body

    return list_pods
