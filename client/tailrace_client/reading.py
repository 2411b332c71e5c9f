"""Reading a run: pages of records, and a live view that resumes exactly.

A page is ndjson: an object per record, and `{"stats": {…}}` at the end. A page without it
broke off, and is read again. The live view is server-sent events, one per record; the `id` of
each is the place after the record.

While the service's store does not answer, a live view has the records that nodes hold. It may begin
again before them once the store answers (`event: again`); those that came are then left out.
"""

from __future__ import annotations

import json
from http.client import HTTPResponse
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Set, Tuple
from urllib.parse import urlencode

from tailrace_client import system
from tailrace_client.errors import NotFound, Unavailable
from tailrace_client.service import Service
from tailrace_client.system import RetryPause

_READ_SECONDS = 60.0  # several heartbeats: silence beyond it is a dead connection
_LONGEST_PAUSE_SECONDS = 5.0


class Record(NamedTuple):
    """One record of a run. `ts` is RFC 3339 text; `cursor` is the place after it, in `tail`.

    `carried`: the line continues the record before it, and has that record's level.
    """

    ulid: str
    ts: str
    level: Optional[str]
    message: str
    attributes: Optional[Mapping[str, str]]
    cursor: Optional[str] = None
    carried: bool = False


class Page(NamedTuple):
    """Records in the order of the run's log; `after` is where the next page begins.

    `after` is None if no more records exist for now. `state` is `open`, `closing` or `closed`, or
    `unknown` if the service's store does not answer: the records are those that its nodes hold.
    `again`: the page begins before the records of the pages with `unknown` that came last, and they
    do not count.
    """

    records: Tuple[Record, ...]
    after: Optional[str]
    state: str
    again: bool = False


def read_page(service: Service, path: str, after: Optional[str], limit: int) -> Page:
    """One page. Raises `TailraceError`; `Unavailable` for one that broke off."""
    query = {"format": "ndjson", "limit": str(limit)}
    if after is not None:
        query["after"] = after
    answer = service.request("GET", f"{path}?{urlencode(query)}")
    try:
        objects = [json.loads(line) for line in answer.body.split(b"\n") if line]
        records = tuple(_record(value) for value in objects if "ulid" in value)
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable("a page ended early, or is not a page of records") from error
    last = objects[-1] if objects else {}
    if "error" in last:
        raise Unavailable(f"a page ended early: {last['error'].get('detail')}")
    if "stats" not in last:
        raise Unavailable("a page ended early")
    stats = last["stats"]
    following = stats.get("after")
    again = stats.get("again") is True
    return Page(records, following and str(following), str(stats.get("state", "")), again)


def has_batch(service: Service, path: str, batch: str) -> bool:
    """Whether a run has a batch's first record. Raises `TailraceError` if that is unknown."""
    # The ULID of a batch's first record is the batch's id.
    query = urlencode({"at": batch, "limit": 1, "format": "ndjson"})
    try:
        answer = service.request("GET", f"{path}?{query}")
    except NotFound as error:
        if error.type == "not-found":
            return False
        raise
    try:
        objects = [json.loads(line) for line in answer.body.split(b"\n") if line]
        found = any(value.get("ulid") == batch for value in objects)
        whole = "stats" in objects[-1]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Unavailable("a page ended early, or is not a page of records") from error
    if not found and not whole:
        raise Unavailable("a page ended early")
    return found


def _record(value: Mapping[str, Any], cursor: Optional[str] = None) -> Record:
    return Record(
        value["ulid"],
        value["ts"],
        value.get("level"),
        value["message"],
        value.get("attributes"),
        cursor,
        value.get("carried") is True,
    )


class StreamEvent(NamedTuple):
    """A server-sent event; `id` is the last one seen, also if this event has none."""

    name: str
    data: str
    id: Optional[str]


def parse_events(lines: Iterator[bytes]) -> Iterator[StreamEvent]:
    """Events of a stream's lines, as the HTML standard says. One without its end is left out."""
    event, data, last = "", [], None  # type: str, list[str], Optional[str]
    for raw in lines:
        if not raw.endswith(b"\n"):
            return  # broke off inside the line
        line = raw.rstrip(b"\r\n").decode("utf-8", "replace")
        if not line:
            if data or event:
                yield StreamEvent(event or "message", "\n".join(data), last)
            event, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            event = value
        elif field == "id":
            last = value


def follow(
    service: Service, address: str, after: Optional[str], patience_seconds: float
) -> Iterator[Record]:
    """Records as they come, until the run is complete, over lost connections."""
    stream = _LiveStream(service, address, after)
    backoff = RetryPause(longest=_LONGEST_PAUSE_SECONDS)
    while True:
        cursor, retry_after = stream.cursor, None
        try:
            yield from stream.connection()
            if stream.complete:
                return
            problem = Unavailable("the stream ended before the run did")
        except Unavailable as error:
            problem, retry_after = error, error.retry_after
        if system.monotonic() - stream.heard_at > patience_seconds:
            raise problem
        if stream.cursor != cursor:
            backoff.reset()
        system.sleep(backoff.pause(retry_after))


class _LiveStream:
    """A live view over connections; `cursor` is after the last record that was given."""

    def __init__(self, service: Service, address: str, cursor: Optional[str]) -> None:
        self.cursor = cursor
        self.complete = False
        self.heard_at = system.monotonic()
        self._service = service
        self._address = address
        self._without_store = False
        self._held: Set[str] = set()
        """The records that came while the store was silent, until another one comes."""
        self._known: Set[str] = set()
        """The records that may come again."""

    def connection(self) -> Iterator[Record]:
        """The records of one connection. Raises `TailraceError`."""
        headers = {"Accept": "text/event-stream"}
        self._without_store = False
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
        with self._service.stream(
            self._address, headers, timeout_seconds=_READ_SECONDS
        ) as response:
            for event in parse_events(self._lines(response)):
                if event.name == "complete":
                    self.complete = True
                    return
                if event.name == "error":
                    raise Unavailable(f"the stream ended: {_said(event.data)}")
                if event.name == "silent":
                    self._without_store = json.loads(event.data).get("store") is True
                elif event.name == "again":
                    self._known |= self._held
                elif event.name == "message":
                    self.cursor = event.id
                    record = _record(json.loads(event.data), event.id)
                    if self._is_new(record.ulid):
                        yield record

    def _is_new(self, ulid: str) -> bool:
        known = ulid in self._known
        self._known.discard(ulid)
        if self._without_store:
            self._held.add(ulid)
        else:
            self._held.clear()
        return not known

    def _lines(self, response: HTTPResponse) -> Iterator[bytes]:
        for line in iter(response.readline, b""):
            self.heard_at = system.monotonic()  # a heartbeat is a sign of life, too
            yield line


def _said(data: str) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data
    return str(value.get("message") or data) if isinstance(value, dict) else data
