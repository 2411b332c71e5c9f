"""A run of the log store: append, close, read by pages, and follow live.

    with Run("http://127.0.0.1:8790", "shop.orders", "run-1") as run:
        run.append("hello\\nworld\\n")

Each append is a batch with an id that is made here and used again in every retry, so the
service stores it once, however many attempts it takes.
"""

from __future__ import annotations

import json
import ssl
from functools import partial
from types import TracebackType
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
)

from tailrace_client import system
from tailrace_client.errors import InvalidRequest, RunDeleted, TailraceError, Unavailable
from tailrace_client.presence import Presence, is_own, put_status, read_status
from tailrace_client.reading import Page, Record, follow, read_page
from tailrace_client.records import (
    BatchIds,
    attributes_header,
    encode_records,
    is_batch_id,
    records_of,
)
from tailrace_client.service import ROOT, Answer, Service, name
from tailrace_client.system import RetryPause
from tailrace_client.unfinished import UnfinishedLines, last_state

DURABILITIES = ("fast", "durable", "bulk")
OUTCOMES = ("success", "failed", "partialSuccess", "stopped")
TEXT = "text/plain; charset=utf-8"
RECORDS = "application/x-ndjson"
ATTRIBUTES = "Tailrace-Attributes"
TEXT_AND_ATTRIBUTES = f"{TEXT}; attributes=header"
"""A service that does not know `Tailrace-Attributes`, or does not get it, answers this with 415."""
_MOST_AS_RECORDS = 8 << 20
_UNSUPPORTED = 415
_Result = TypeVar("_Result")


class Receipt(NamedTuple):
    """The answer to a batch: its id, its number of lines or records, the ULID of the last one.

    `duplicate` says that the service had the batch already, from an earlier attempt.
    """

    batch: str
    lines: int
    duplicate: bool
    durability: str
    last: str


class Run:
    """The run `run` of the pipeline `fqn` at the service `url`.

    `durability` is what an acknowledgement means: `fast`, `durable` or `bulk`.
    `retry_seconds` is for how long a call goes on trying when the service is away; then it
    raises `Unavailable`. Calls may come from several threads.

    As a context manager it reports that the run has begun and, while the block runs, that its
    client lives. At the end it closes the run, with the outcome `failed` if an exception leaves the
    block, else `success`; with `report=False` it reports nothing, and closes without an outcome.
    Otherwise the first append reports the start, and nobody misses the client when it ends.

    `show` takes the line that is not finished yet, such as a progress bar: live views show it.
    """

    def __init__(
        self,
        url: str,
        fqn: str,
        run: str,
        *,
        token: Optional[str] = None,
        durability: str = "durable",
        retry_seconds: float = 60.0,
        timeout_seconds: float = 30.0,
        ssl_context: Optional[ssl.SSLContext] = None,
        ca_file: Optional[str] = None,
        compress: bool = True,
        report: bool = True,
        ids: Optional[BatchIds] = None,
    ) -> None:
        self.service = Service(
            url,
            token=token,
            timeout_seconds=timeout_seconds,
            ssl_context=ssl_context,
            ca_file=ca_file,
            compress=compress,
        )
        self.fqn, self.run = fqn, run
        self.durability = check_durability(durability)
        self.retry_seconds = retry_seconds
        self._report = report
        self._presence: Optional[Presence] = None
        self._began_ms: Optional[int] = None
        self._ids = ids or BatchIds()
        self._path = run_path(fqn, run)
        self._unfinished = self._nothing_shown()

    def _nothing_shown(self) -> UnfinishedLines:
        return UnfinishedLines(self.service, self.fqn, self.run, self._ids.mint())

    def __repr__(self) -> str:
        return f"Run({self.service.url!r}, {self.fqn!r}, {self.run!r})"

    def __enter__(self) -> Run:  # noqa: PYI034 -- `Self` is of Python 3.11
        if self._report:
            self._begin(heartbeat=True).start()
        return self

    def _begin(self, *, heartbeat: bool) -> Presence:
        self._began_ms = system.now_ms()
        self._presence = Presence(
            self.service, self.fqn, self.run, self._began_ms, heartbeat=heartbeat
        )
        return self._presence

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        outcome = "success" if kind is None else "failed"
        try:
            self.close(outcome if self._report else None)
        except TailraceError:
            if kind is None:
                raise  # else the block's own exception is the one to see
        finally:
            self.service.close()

    def append(
        self,
        text: Optional[str] = None,
        *,
        lines: Optional[Iterable[str]] = None,
        records: Optional[Iterable[Mapping[str, Any]]] = None,
        attributes: Optional[Mapping[str, str]] = None,
        batch: Optional[str] = None,
        durability: Optional[str] = None,
    ) -> Optional[Receipt]:
        """Sends one batch: `text`, `lines` without their ends, or `records`; waits for its answer.

        Records are objects with `message` and, if wanted, `ts`, `level` and `attributes`. With text
        or lines, `attributes` are of each line. Returns None if there is nothing to send. Raises
        `TailraceError`, whose `batch` is the id: after `Unavailable` the same content may be sent
        again with `batch=error.batch`. If the run was deleted before the call, the batch begins it
        again. `RunDeleted` means that the deletion came later, or that `batch` was given.
        """
        body, kind = _body(text, lines, records)
        shared = _shared(attributes, kind)
        if not body:
            return None
        if batch is not None and not is_batch_id(batch):
            raise InvalidRequest(
                f"{batch!r} is not a batch id", hint="Use the batch id that the error named."
            )
        chosen = self.durability if durability is None else check_durability(durability)
        began_ms, used = system.steady_ms(), batch or self._ids.mint()
        if self._report and self._presence is None:
            self._begin(heartbeat=False)

        def post() -> Optional[Receipt]:
            if self._presence is not None:
                self._presence.before_lines()
            return receipt_of(
                post_batch(self.service, self._path, body, kind, used, chosen, shared)
            )

        while True:
            try:
                return self._retried(post)
            except RunDeleted as error:  # noqa: PERF203
                error.batch = used
                moment_ms = error.moment_ms
                # Lines of a batch that the caller names may be from any time.
                if batch or moment_ms is None or moment_ms > began_ms:
                    raise
                used = error.next_batch or used
            except TailraceError as error:
                error.batch = used
                raise

    def show(self, line: str) -> None:
        """The line that is not finished looks like this now; empty: there is none any more.

        Live views show it below the run, at most once a second, until the next `show` or `close`.
        What precedes a carriage return is left out. Nothing of it is stored: append the line once
        it is finished. It never waits for the service, and raises nothing about it.
        """
        if "\n" in line.rstrip("\r\n"):
            raise InvalidRequest(
                "an unfinished line must be a single line", hint="Append finished lines."
            )
        state = last_state(line.rstrip("\r\n").encode("utf-8", "replace"))
        self._unfinished.show("run", state)

    def close(self, outcome: Optional[str] = None) -> str:
        """Closes the run, after it said how the run ended, if `outcome` is given.

        A run without a line and without a report is one from then on, which has ended. Returns
        `closed`, or `closing` if the service finishes it later. A closed run may be closed again; a
        later append opens it again.
        """
        if outcome is not None and outcome not in OUTCOMES:
            raise InvalidRequest(
                f"{outcome!r} is not an outcome", hint=f"One of {', '.join(OUTCOMES)}."
            )
        if self._presence is not None:
            self._presence.stop()
        shown, self._unfinished = self._unfinished, self._nothing_shown()
        shown.stop()
        close = partial(
            close_run,
            self.service,
            self.fqn,
            self.run,
            outcome,
            self._began_ms,
            system.now_ms(),
            unreported=self._report,
        )
        return self._retried(close)

    def pages(self, after: Optional[str] = None, *, limit: int = 1000) -> Iterator[Page]:
        """The run's records, page by page, up to its present end; `limit` counts lines of a page.

        `after` is the `after` of an earlier page, or the `cursor` of a record of `tail`.
        """
        place = after
        while True:
            page = self._retried(partial(read_page, self.service, self._path, place, limit))
            if page.records or page.again:
                yield page
            if page.after is None or page.after == place:
                return
            place = page.after

    def tail(self, after: Optional[str] = None, *, last: int = 100) -> Iterator[Record]:
        """The run's records as they come, each once and in order, until the run is closed.

        Without `after` it begins with the `last` lines; with `after="0"` at the beginning; with
        the `cursor` of a record behind that record. A lost connection is opened again where it
        ended. Raises `Unavailable` after `retry_seconds` without the service.
        """
        path = f"{ROOT}/logs/{name(self.fqn)}/stream/{name(self.run)}?format=ndjson&tail={last}"
        return follow(self.service, path, after, self.retry_seconds)

    def _retried(self, call: Callable[[], _Result]) -> _Result:
        backoff, until = RetryPause(), system.monotonic() + self.retry_seconds
        while True:
            try:
                return call()
            except Unavailable as error:
                pause = backoff.pause(error.retry_after)
                if system.monotonic() + pause > until:
                    raise
            system.sleep(pause)


def run_path(fqn: str, run: str) -> str:
    """The path of a run's log. Raises `InvalidRequest` for an empty name."""
    return f"{ROOT}/logs/{name(fqn)}/{name(run)}"


def check_durability(durability: str) -> str:
    """Raises `InvalidRequest` for one that the service does not know."""
    if durability not in DURABILITIES:
        raise InvalidRequest(
            f"{durability!r} is not a durability", hint=f"One of {', '.join(DURABILITIES)}."
        )
    return durability


def post_batch(
    service: Service,
    path: str,
    body: bytes,
    kind: str,
    batch: str,
    durability: str,
    attributes: str = "",
) -> Answer:
    """Sends a batch once; `attributes` is the header of its lines'. Raises `TailraceError`."""
    batched = {"Tailrace-Batch": batch, "Tailrace-Durability": durability}

    def post(body: bytes, headers: Mapping[str, str]) -> Answer:
        return service.request("POST", path, body, {**headers, **batched})

    return post_in_form(post, body, kind, attributes)[0]


def post_in_form(
    post: Callable[[bytes, Mapping[str, str]], Answer], body: bytes, kind: str, attributes: str
) -> Tuple[Answer, bool]:
    """Posts through `post(body, headers)`; whether lines had to go as records.

    Lines that have `attributes` go as text with the header. Where that is not known or not passed
    on, they go as records, which store the same. Raises `Unavailable` for too many of them.
    """
    if not attributes:
        return post(body, {"Content-Type": kind}), False
    try:
        return post(body, {"Content-Type": TEXT_AND_ATTRIBUTES, ATTRIBUTES: attributes}), False
    except InvalidRequest as error:
        if error.status != _UNSUPPORTED:
            raise
    if len(body) + body.count(b"\n") * len(attributes) > _MOST_AS_RECORDS:
        raise Unavailable(
            f"the service does not know {ATTRIBUTES}, or a proxy keeps it, and these lines are too "
            "many to be sent as records",
            hint="Update the service, or let the proxy pass the header on.",
        )
    return post(records_of(body, attributes), {"Content-Type": RECORDS}), True


def receipt_of(answer: Answer) -> Optional[Receipt]:
    """The receipt of a batch; None if it had no lines.

    Raises `Unavailable` for an answer that is no receipt: the batch may not be stored.
    """
    try:
        value = json.loads(answer.body)
        if value["batch"] is None:
            return None
        return Receipt(
            str(value["batch"]),
            int(value["lines"]),
            bool(value["duplicate"]),
            str(value["durability"]),
            str(value["last"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            "the reply to a batch is not a receipt",
            hint="Is this the address of a Tailrace service?",
        ) from error


def close_run(
    service: Service,
    fqn: str,
    run: str,
    outcome: Optional[str],
    started_ms: Optional[int] = None,
    ended_ms: Optional[int] = None,
    *,
    unreported: bool = False,
) -> str:
    """Says how a run ended, if that is known, and closes it. Raises `TailraceError`.

    A client that reported the start says when the run ended, also if it does not know how. With
    `unreported`, so does one that reported nothing, unless another did.
    """
    end = system.now_ms() if ended_ms is None else ended_ms
    status = {"runId": run, "pipelineState": outcome, "timestamp": end, "endDate": end}
    if started_ms is not None:
        status["startDate"] = started_ms
    if outcome is not None:
        put_status(service, fqn, status)
    elif started_ms is not None or unreported:
        found = read_status(service, fqn, run)
        if found is None or (started_ms is not None and is_own(found, started_ms)):
            put_status(service, fqn, status)
    answer = service.request("POST", run_path(fqn, run) + "/close", b"")
    try:
        return str(json.loads(answer.body)["state"])
    except (ValueError, KeyError, TypeError):
        return "closed"


def _shared(attributes: Optional[Mapping[str, str]], kind: str) -> str:
    if not attributes:
        return ""
    if kind != TEXT:
        raise InvalidRequest(
            "records have attributes of their own", hint="Put the attributes into each record."
        )
    header = attributes_header(attributes)
    if header is None:
        raise InvalidRequest(
            "the attributes are more than 64, or more than 4 KiB", hint="Send records."
        )
    return header


def _body(
    text: Optional[str],
    lines: Optional[Iterable[str]],
    records: Optional[Iterable[Mapping[str, Any]]],
) -> tuple[bytes, str]:
    if sum(part is not None for part in (text, lines, records)) != 1:
        raise InvalidRequest("an append takes exactly one of text, lines and records")
    if records is not None:
        try:
            return encode_records(records), RECORDS
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"records cannot be sent: {error}") from error
    if text is None:
        text = "".join(f"{line}\n" for line in lines or ())
    return text.encode("utf-8", "replace"), TEXT
