"""Shows lines that are not finished yet in live views: progress bars and prompts.

`show` takes the present state of a stream's last line. A thread sends it once it has stood for a
second, or once a second while it changes, and sends it again at intervals, since the service
forgets lines that are not repeated. One thread is enough for many runs (`UnfinishedSender`).
Nothing depends on it: an attempt that fails is not made again, and a service that does not know
such lines is not asked twice. The line itself is delivered as any other once it is finished.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Dict, List, Optional, Tuple

from tailrace_client import system
from tailrace_client.errors import InvalidRequest, NotFound, TailraceError
from tailrace_client.service import ROOT, Service, name

MOST_CHARS = 4096
_PAUSE_SECONDS = 1.0
_REPEAT_SECONDS = 20.0
_SEND_SECONDS = 5.0
_NO_SUCH_METHOD = 405
_SENT, _FAILED, _UNKNOWN = "sent", "failed", "unknown"
_Key = Tuple[str, str]


def unfinished_path(fqn: str, run: str) -> str:
    """The path of a run's unfinished lines. Raises `InvalidRequest` for an empty name."""
    return f"{ROOT}/unfinished/{name(fqn)}/{name(run)}"


def last_state(line: bytes) -> bytes:
    """The final state of a line: the text after the last carriage return that has text after it."""
    shown = line.rstrip(b"\r")
    return shown[shown.rfind(b"\r") + 1 :]


def collapse(rest: bytes) -> bytes:
    """A line that goes on, without the states that were overwritten; it still shows that it was."""
    if not _is_overwritten(rest):
        return rest
    return b"\r" + last_state(rest) + b"\r" * rest.endswith(b"\r")


def finished(line: bytes) -> bytes:
    """The stored text of a line: the last state of an overwritten one, else all of it."""
    return last_state(line) if _is_overwritten(line) else line


def _is_overwritten(line: bytes) -> bool:
    return b"\r" in line.rstrip(b"\r")


class UnfinishedSender:
    """Sends the unfinished lines of any number of runs, from one thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._now: Dict[_Key, str] = {}
        self._sent: Dict[_Key, str] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def show(self, path: str, producer: str, line: bytes) -> None:
        """The last line of a producer looks like this now; empty: it is finished.

        `path` is `unfinished_path` of its run.
        """
        text = line[-4 * MOST_CHARS :].decode("utf-8", "replace")[-MOST_CHARS:]
        key = (path, producer)
        with self._lock:
            if text == self._now.get(key, "") or self._stopped.is_set():
                return
            self._now[key] = text
            if self._thread is None:
                thread = threading.Thread(
                    target=self._keep, name="tailrace-unfinished", daemon=True
                )
                with suppress(RuntimeError):  # the interpreter ends
                    thread.start()
                    self._thread = thread
        self._changed.set()

    def stop(self) -> None:
        """Shows nothing any more."""
        self._stopped.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_SEND_SECONDS)
        for key in [key for key, text in self._sent.items() if text]:
            if self._send(key, "") is not _SENT:
                return

    def _keep(self) -> None:
        while not self._stopped.is_set():
            repeated = not self._changed.wait(_REPEAT_SECONDS if any(self._sent.values()) else None)
            if not repeated:
                self._changed.clear()
                if self._stopped.wait(_PAUSE_SECONDS):
                    return
            for key in self._due(repeated=repeated):
                outcome = self._send(key, self._now[key])
                if outcome is _UNKNOWN:
                    return
                if outcome is _FAILED:
                    break

    def _due(self, *, repeated: bool) -> List[_Key]:
        """What is to be sent now. A line that is finished, and not shown, is forgotten."""
        with self._lock:
            for key in [key for key, text in self._now.items() if not text]:
                if not self._sent.get(key):
                    del self._now[key]
                    self._sent.pop(key, None)
            return [
                key for key, text in self._now.items() if repeated or text != self._sent.get(key)
            ]

    def _send(self, key: _Key, text: str) -> str:
        """One attempt; what came of it."""
        path, producer = key
        self._number = max(self._number + 1, system.now_ms())
        value = {"producer": producer, "number": self._number, "text": text}
        body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
        try:
            self._service.request("PUT", path, body, headers, timeout_seconds=_SEND_SECONDS)
        except NotFound:
            return _UNKNOWN
        except InvalidRequest as error:
            if error.status == _NO_SUCH_METHOD:
                return _UNKNOWN
        except TailraceError:
            return _FAILED
        self._sent[key] = text
        return _SENT


class UnfinishedLines:
    """The last lines of the streams of one producer, named `producer`, in one run."""

    def __init__(self, service: Service, fqn: str, run: str, producer: str) -> None:
        self._sender = UnfinishedSender(service)
        self._path = unfinished_path(fqn, run)
        self._producer = producer

    def show(self, stream: str, line: bytes) -> None:
        """The stream's last line looks like this now; empty: it is finished, or begins anew."""
        self._sender.show(self._path, f"{self._producer}:{stream}", line)

    def stop(self) -> None:
        """Shows nothing any more."""
        self._sender.stop()
