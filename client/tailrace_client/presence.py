"""Reports that a run has begun, and that its client lives.

The first report is a pipelineStatus `running` with the time of the start. It promises a heartbeat:
the same report again, as often as the service asks for, until `stop`. A run whose heartbeats end
is `lost`. A client that `rest`s promises nothing, and reports just often enough that the service
does not close the run. Nothing waits for a report for long: lines are delivered without it, and
the status at the end of the run has the start as well.

A report never takes the place of another client's: it is made only if the run has no status, an
older attempt's, or this client's own. After a deletion of the run it is made with its next lines.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, Mapping, Optional

from tailrace_client.errors import InvalidRequest, TailraceError
from tailrace_client.service import ROOT, Service, name
from tailrace_client.system import RetryPause

REPORT_SECONDS = 5.0
"""How long a report, and what waits for one, waits for the service."""
_HEARTBEAT = "tailrace-heartbeat"
_TERMINAL = frozenset({"success", "failed", "partialSuccess", "stopped"})
_LEAST_SECONDS = 0.1


def read_status(service: Service, fqn: str, run: str) -> Optional[Dict[str, Any]]:
    """The status of a run; None without one. Raises `TailraceError`."""
    path = f"{ROOT}/{name(fqn)}/pipelineStatus/{name(run)}"
    answer = service.request("GET", path, timeout_seconds=REPORT_SECONDS)
    try:
        value = json.loads(answer.body) if answer.body else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def put_status(
    service: Service, fqn: str, status: Mapping[str, Any], seconds: Optional[float] = None
) -> Mapping[str, str]:
    """Reports a status: the headers of the answer. Raises `TailraceError`."""
    answer = service.request(
        "PUT",
        f"{ROOT}/{name(fqn)}/pipelineStatus",
        json.dumps(status).encode(),
        {"Content-Type": "application/json"},
        timeout_seconds=seconds,
    )
    return answer.headers


def is_own(status: Optional[Mapping[str, Any]], started_ms: int) -> bool:
    """Whether a status was reported by the client that began the run then."""
    return status is not None and "heartbeat" in status and status.get("startDate") == started_ms


class Presence:
    """The reports of one client about one run that began at `started_ms`.

    `reported` is called when the start is reported, or need not be. Without `heartbeat` there is
    one report, if the run has no status, and the run is not lost when the client ends.

    Clients with one name as `reporter` report a run together, and under its first start: several,
    or one after another. One that `resumes` goes on with the reports of an earlier one, if any.
    """

    def __init__(
        self,
        service: Service,
        fqn: str,
        run: str,
        started_ms: int,
        *,
        heartbeat: bool = True,
        reported: Callable[[], None] = lambda: None,
        reporter: str = "",
        resumes: bool = False,
    ) -> None:
        self.started_ms = started_ms
        self._service = service
        self._fqn, self._run = fqn, run
        self._heartbeat = heartbeat
        self._reported = reported
        self._reporter = reporter
        self._resumes = resumes
        self._begun = False
        self._over = False
        self._resting = False
        self._lines = False
        self._interval: Optional[float] = None
        self._backoff = RetryPause()
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._tried = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Reports in a thread, which keeps no program from ending."""
        thread = threading.Thread(target=self._keep, name="tailrace-presence", daemon=True)
        with suppress(RuntimeError):  # the interpreter ends: the end of the run has its start
            thread.start()
            self._thread = thread

    def before_lines(self) -> None:
        """Makes an attempt before lines are sent, unless the start is reported."""
        if self._begun or self._over or self._stop.is_set():
            return
        if self._thread is None:
            self.report()
            return
        self._tried.clear()
        self._wake.set()
        self._tried.wait(REPORT_SECONDS)

    def lines_delivered(self) -> None:
        """Lines arrived: if the run was deleted, it has begun again."""
        self._lines = True

    def stop(self) -> None:
        """Makes no more reports, and waits for one that is on its way."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * REPORT_SECONDS)

    @property
    def begun(self) -> bool:
        """Whether the run has this start in its status, by this client or an earlier one."""
        return self._begun and not self._over

    @property
    def interval(self) -> Optional[float]:
        """Seconds until the next report; None if there is none."""
        return None if self._over or self._stop.is_set() else self._interval

    def rest(self) -> None:
        """Takes the promise back with the next report: the run goes on, but may be silent."""
        self._change_rest(resting=True)

    def wake(self) -> None:
        """Makes the promise again with the next report."""
        self._change_rest(resting=False)

    def _change_rest(self, *, resting: bool) -> None:
        if self._resting != resting:
            self._resting, self._interval = resting, None

    def withdraw(self) -> bool:
        """Makes no more reports, and takes the promise back: the run is not lost by its silence.

        One attempt; False if the service did not answer.
        """
        self.stop()
        with self._turn:
            try:
                found = read_status(self._service, self._fqn, self._run) if self.begun else None
                if found is not None and self._runs(found) and is_own(found, self.started_ms):
                    status = {**found, "heartbeat": False}
                    put_status(self._service, self._fqn, status, REPORT_SECONDS)
            except InvalidRequest:
                return True
            except TailraceError:
                return False
            return True

    def _runs(self, status: Mapping[str, Any]) -> bool:
        """Whether a status of this reporter says that the run goes on."""
        own = bool(self._reporter) and status.get("reporter") == self._reporter
        return own and status.get("pipelineState") == "running"

    def _knows_no_start(self, found: Optional[Mapping[str, Any]]) -> bool:
        """Takes the start that this reporter said before; whether it is needed and not there."""
        if found is not None and self._runs(found) and isinstance(found.get("startDate"), int):
            self.started_ms = found["startDate"]
        elif self._resumes and not self._begun:
            self._over = True
        return self._over

    def _keep(self) -> None:
        while not self._stop.is_set() and not self._over:
            pause = self._backoff.pause()
            if self.report():
                self._backoff.reset()
                pause = float("inf") if self._interval is None else self._interval
            self._tried.set()
            self._wake.wait(min(pause, threading.TIMEOUT_MAX))
            self._wake.clear()
        self._tried.set()

    def report(self) -> bool:
        """One attempt; False if it is to be repeated soon."""
        with self._turn:
            try:
                self._report()
            except InvalidRequest:
                self._over = True  # the service will never take it
            except TailraceError:
                return False
            if not self._begun:
                self._begun = True
                self._reported()
            return True

    def _report(self) -> None:
        found = read_status(self._service, self._fqn, self._run)
        if self._stop.is_set() or self._knows_no_start(found):
            return
        if found is not None and not self._heartbeat:
            self._over = True  # somebody has said more than that it runs
            return
        if found is not None and not is_own(found, self.started_ms):
            ended = found.get("pipelineState") in _TERMINAL or found.get("pipelineState") is None
            moment = found.get("startDate") if found.get("heartbeat") is True else None
            if moment is None and ended:
                moment = found.get("timestamp", found.get("endDate"))
            if not isinstance(moment, int) or moment >= self.started_ms:
                self._over = True  # another client reports this run
                return
        elif found is not None and found.get("pipelineState") != "running":
            self._over = True  # it has ended
            return
        elif found is None and self._begun and not self._lines:
            return  # it was deleted
        self._lines = False
        resting = self._resting
        status: Dict[str, Any] = {
            "runId": self._run,
            "pipelineState": "running",
            "startDate": self.started_ms,
            "timestamp": self.started_ms,
            "heartbeat": self._heartbeat and not resting,
        }
        if self._reporter:
            status["reporter"] = self._reporter
        headers = put_status(self._service, self._fqn, status, REPORT_SECONDS)
        with suppress(ValueError):
            asked = float(headers.get(_HEARTBEAT, ""))
            if self._heartbeat and resting == self._resting:
                self._interval = max(asked, _LEAST_SECONDS)
