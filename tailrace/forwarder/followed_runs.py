"""Reports of the runs whose files are followed: that they began, and that a forwarder reads them.

A run is reported as the client's own are (`tailrace_client.presence`), from one thread for all of
them. It is reported if its file appeared while its folder was watched: the begin of an older file
is unknown. Reports from before a restart continue under their start.

Lines are signs of life, so a run with lines costs nothing. The promise of a file that is still for
`_STILL_SECONDS` rests until it grows: then a report every few hours keeps the service from closing
the run while its file is followed. All promises are withdrawn when the forwarder is stopped: only a
forwarder that died leaves runs that are lost.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from tailrace.logstore.clock import Clock
from tailrace_client.presence import Presence
from tailrace_client.service import Service
from tailrace_client.system import RetryPause

REPORTER: Final = "forwarder"
_STILL_SECONDS: Final = 3600.0
_FIRST_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.2
_Key = tuple[str, str]


@dataclass(slots=True)
class _Followed:
    """A run, what reports it, and when: seconds of the monotonic clock."""

    presence: Presence
    backoff: RetryPause
    due: float
    heard: float


class FollowedRuns:
    """The runs of one forwarder. Its calls are of the engine's thread."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[_Key, _Followed] = {}
        self._stopped = threading.Event()
        self._there = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, fqn: str, run: str, *, resumes: bool) -> None:
        """A file of the run is followed from now on; `resumes`: it was before this process."""
        now = self._clock.monotonic()
        with self._lock:
            if (fqn, run) not in self._runs:
                self._add((fqn, run), now, resumes=resumes)

    def heard(self, fqn: str, run: str) -> None:
        """Lines of the run arrived."""
        now = self._clock.monotonic()
        with self._lock:
            found = self._runs.get((fqn, run))
            if found is None:
                return
            dormant = now - found.heard > _STILL_SECONDS
            found.heard = now
            found.presence.lines_delivered()
            if dormant:
                found.presence.wake()
                found.due = now
                self._there.set()

    def end(self, fqn: str, run: str) -> int | None:
        """The run has no file any more: when it began, 0 if that is not reported.

        None if it is not followed.
        """
        with self._lock:
            found = self._runs.pop((fqn, run), None)
        if found is None:
            return None
        found.presence.stop()
        return found.presence.started_ms if found.presence.begun else 0

    def stop(self, seconds: float) -> None:
        """Withdraws the promises, as far as there is time."""
        until = self._clock.monotonic() + seconds
        self._stopped.set()
        self._there.set()
        if self._thread is not None:
            self._thread.join(seconds)
        for found in self._runs.values():
            if self._clock.monotonic() > until or not found.presence.withdraw():
                return

    def _add(self, key: _Key, now: float, *, resumes: bool) -> None:
        presence = Presence(
            self._service, *key, self._clock.now_ms(), reporter=REPORTER, resumes=resumes
        )
        self._runs[key] = _Followed(presence, RetryPause(), now + _FIRST_SECONDS, now)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="run-reports", daemon=True)
            self._thread.start()
        self._there.set()

    def _keep(self) -> None:
        while not self._stopped.is_set():
            now = self._clock.monotonic()
            with self._lock:
                due = [found for found in self._runs.values() if found.due <= now]
                first = min([found.due for found in self._runs.values()], default=now + 60.0)
            for found in due:
                if self._stopped.is_set():
                    return
                self._report(found)
            if not due:
                self._there.wait(min(max(first - now, _LOOK_SECONDS), 60.0))
                self._there.clear()

    def _report(self, found: _Followed) -> None:
        now, presence = self._clock.monotonic(), found.presence
        heard = found.heard
        interval = presence.interval if presence.begun else None
        if now - heard > _STILL_SECONDS:
            presence.rest()
        elif interval is not None and now - heard < interval:
            self._put_off(found, heard, heard + interval)  # its lines say that it lives
            return
        if not presence.report():
            found.due = now + found.backoff.pause()
            return
        found.backoff.reset()
        interval = presence.interval
        self._put_off(found, heard, float("inf") if interval is None else now + interval)

    def _put_off(self, found: _Followed, heard: float, due: float) -> None:
        """Sets when the run is looked at again, unless it woke since it was `heard`."""
        with self._lock:
            if found.heard == heard or found.heard - heard <= _STILL_SECONDS:
                found.due = due
