"""Defines a door: it decodes the requests of one protocol, and makes their replies.

A request has several outcomes, since its records may be of many runs: each batch was stored, was
known already, or was refused. A refusal is for good, or for now: then the client sends the request
again, and its batches that were stored are recognised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from service.doors.records import DoorRecords, RunRecords
from service.doors.repeats import Storing
from service.http.body import Bounds
from service.http.decode import INFLATERS
from service.http.errors import HttpError, classify
from service.ingest.batch import AppendReceipt
from tailrace.logstore.errors import JournalFailed, JournalFull, TailraceError

Headers = list[tuple[bytes, bytes]]
RETRYABLE: Final = (429, 502, 503, 504)
Inflate: TypeAlias = Callable[[bytes, Bounds, str], bytes]


class Reply(NamedTuple):
    """A response ready to be sent, but for its length."""

    status: int
    headers: Headers
    body: bytes


@dataclass(slots=True)
class DoorRequest:
    """A request whose body has arrived and is inflated; `size` stays when the body is dropped."""

    method: str
    path: str
    parameters: Mapping[str, str]
    header: Callable[[bytes], bytes | None]
    body: bytes = b""
    size: int = 0


@dataclass(slots=True)
class Outcome:
    """The results of the batches of a request."""

    receipts: list[tuple[RunRecords, AppendReceipt]] = field(default_factory=list)
    refused: list[tuple[Sequence[int], Exception]] = field(default_factory=list)
    """The numbers of records, and the error that refused them."""

    @property
    def stored(self) -> int:
        """Returns how many records were stored by this request."""
        return sum(receipt.records for _, receipt in self.receipts if not receipt.duplicate)

    @property
    def repeated(self) -> int:
        """Returns how many records were known already."""
        return sum(receipt.records for _, receipt in self.receipts if receipt.duplicate)

    @property
    def refusals(self) -> int:
        """Returns how many records were refused."""
        return sum(len(places) for places, _ in self.refused)

    def for_now(self) -> Exception | None:
        """Returns an error after which the client may send the request again."""
        return next((e for _, e in self.refused if status_of(e) in RETRYABLE), None)

    def of_whole(self, count: int) -> Exception | None:
        """Returns the error of all `count` records: one for now, of a defect, or of each."""
        defect = next((e for _, e in self.refused if status_of(e) >= 500), None)
        all_refused = self.refused and self.refusals == count
        return self.for_now() or defect or (self.refused[0][1] if all_refused else None)

    def reasons(self) -> str:
        """Returns the reasons of the refusals as one text."""
        return "; ".join(dict.fromkeys(str(error) for _, error in self.refused))[:1000]


class Door(ABC):
    """One protocol."""

    name: str

    @abstractmethod
    def path_of(self, method: str, path: str) -> str | None:
        """Returns the pattern of a path if the request is this door's."""

    def inflater(self, request: DoorRequest) -> Inflate | None:
        """Returns what undoes the Content-Encoding gzip or zstd. Raises `HttpError`."""
        encoding = (request.header(b"content-encoding") or b"identity").strip().lower()
        if encoding == b"identity":
            return None
        inflate = INFLATERS.get(encoding)
        if inflate is None:
            shown = encoding.decode("latin-1")[:100]
            message = f"Content-Encoding {shown!r} is not known"
            raise HttpError(415, message, hint="Send gzip or zstd.")
        return inflate

    def probe(self, request: DoorRequest) -> Reply | None:  # noqa: ARG002
        """Answers a request that stores nothing; None for any other. It has no body yet."""
        return None

    @abstractmethod
    def decode(self, request: DoorRequest, bounds: Bounds, now: int) -> DoorRecords:
        """Decodes the body, in a thread if it is large. Raises `TailraceError`, `HttpError`."""

    def stale(self, records: DoorRecords) -> bool:  # noqa: ARG002
        """Returns true if the records must be decoded again: others were stored meanwhile."""
        return False

    def begun(
        self,
        records: DoorRecords,  # noqa: ARG002
        storing: Sequence[tuple[RunRecords, Storing]],  # noqa: ARG002
    ) -> Collection[Storing]:
        """Notes the appends that have begun; returns others for which the reply waits."""
        return ()

    @abstractmethod
    def reply(self, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
        """Returns the answer, once all batches have their outcome."""

    @abstractmethod
    def refusal(self, request: DoorRequest, status: int, error: BaseException) -> Reply:
        """Returns the answer to a request of which nothing was stored."""


def status_of(error: BaseException) -> int:
    """Returns the status of an error towards clients of doors.

    They give up on 500 and 507, so a node that cannot write now says 503.
    """
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, JournalFull | JournalFailed):
        return 503
    return classify(error)[0] if isinstance(error, TailraceError) else 500


def message_of(error: BaseException) -> str:
    """Returns the error's message and hint; those of a defect are in the log alone."""
    if not isinstance(error, TailraceError | HttpError):
        return "the service failed to answer"
    return f"{error}. {error.hint}" if error.hint else str(error)


def media_type(value: bytes | None) -> bytes:
    """Returns the media type of a Content-Type, without its parameters."""
    return (value or b"").partition(b";")[0].strip().lower()
