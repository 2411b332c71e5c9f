"""Makes objects on S3: in one request, or as an upload of parts that becomes visible at once.

    create ──► parts, some copied by the server, some sent ──► complete (with the condition)
       └── a failure aborts the upload; after a crash, `sweep` does

`plan` divides an object into parts. In both ways the object carries the mark of its write, so a
lost answer to the put or to the completion is resolved by reading the object.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.objects.s3.keys import (
    MARK,
    BucketPlace,
    ObjectProtection,
    described,
    etag_of,
)
from tailrace.logstore.objects.s3.reads import Reads
from tailrace.logstore.objects.s3.requests import (
    Meaning,
    S3Failure,
    S3RequestFailed,
    S3Requests,
    date_of,
)
from tailrace.logstore.objects.store import ObjectInfo, check_metadata

# The plan of an object that is composed: ranges that the server copies, and bytes that we send.
#
# S3 requires at least 5 MiB for all parts but the last, and at most 10,000 parts. The server copies
# stored ranges of that size, in pieces that it copies in parallel. Smaller ranges, and bytes of the
# caller, are gathered into parts that are sent. A gathered part in the middle that is too small
# takes the bytes that it lacks from the range that follows.


MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PartLimits:
    """S3's limits and our sizes, in bytes; tests make them smaller."""

    smallest: int = 5 * MIB
    count: int = 10_000
    copied: int = 256 * MIB  # 5 GiB are allowed, but take minutes
    sent: int = 16 * MIB
    single_put: int = 64 * MIB
    at_once: int = 8


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of a stored object."""

    key: str
    offset: int
    size: int
    if_match: str | None = None

    def split(self, size: int) -> tuple[StoredRange, StoredRange]:
        """The first `size` bytes, and the rest."""
        rest = replace(self, offset=self.offset + size, size=self.size - size)
        return replace(self, size=size), rest


@dataclass(frozen=True, slots=True)
class GivenBytes:
    """Bytes that the caller gave."""

    data: memoryview

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def split(self, size: int) -> tuple[GivenBytes, GivenBytes]:
        """The first `size` bytes, and the rest."""
        return GivenBytes(self.data[:size]), GivenBytes(self.data[size:])


@dataclass(frozen=True, slots=True)
class Sent:
    """A part that we send."""

    pieces: list[StoredRange | GivenBytes]

    @property
    def size(self) -> int:
        """The number of bytes of the part."""
        return sum([piece.size for piece in self.pieces])


@dataclass(slots=True)
class _Gathered:
    pieces: list[StoredRange | GivenBytes] = field(default_factory=list)
    size: int = 0

    def add(self, piece: StoredRange | GivenBytes) -> None:
        self.pieces.append(piece)
        self.size += piece.size

    def take(self) -> Sent:
        sent = Sent(self.pieces)
        self.pieces, self.size = [], 0
        return sent


def plan(
    sources: Iterable[StoredRange | GivenBytes], limits: PartLimits
) -> list[StoredRange | Sent]:
    """The parts in order: `StoredRange` is copied, `Sent` is sent. Empty ranges are left out."""
    wanted = [source for source in sources if source.size]
    total = sum([source.size for source in wanted])
    # With every part but the last this large there are never too many.
    smallest = max(limits.smallest, -(-total // limits.count))
    return list(_parts(wanted, smallest, limits))


def _parts(
    sources: list[StoredRange | GivenBytes], smallest: int, limits: PartLimits
) -> Iterator[StoredRange | Sent]:
    copied, sent = max(limits.copied, 2 * smallest), max(limits.sent, smallest)
    gathered = _Gathered()
    for source in sources:
        lacking = max(0, smallest - gathered.size) if gathered.pieces else 0
        # S3 copies ranges only of objects that are larger than the smallest part.
        if isinstance(source, StoredRange) and source.size - lacking > smallest:
            rest = source
            if lacking:
                piece, rest = source.split(lacking)
                gathered.add(piece)
            if gathered.pieces:
                yield gathered.take()
            yield from _evenly(rest, copied)
        else:
            yield from _gather(source, gathered, sent)
    if gathered.pieces:
        yield gathered.take()


def _gather(source: StoredRange | GivenBytes, gathered: _Gathered, size: int) -> Iterator[Sent]:
    rest: StoredRange | GivenBytes = source
    while rest.size:
        piece, rest = rest.split(min(rest.size, size - gathered.size))
        gathered.add(piece)
        if gathered.size == size:
            yield gathered.take()


def _evenly(source: StoredRange, largest: int) -> Iterator[StoredRange]:
    count = -(-source.size // largest)
    for left in range(count, 0, -1):
        piece, source = source.split(-(-source.size // left))
        yield piece


T = TypeVar("T")

_SENT_AT_ONCE: Final = 2
_STREAMED_BYTES: Final = 1 << 20
_NOT_THAT_LONG: Final = frozenset({"InvalidRange", "InvalidArgument", "416"})


class SourceShorter(Exception):
    """A range ends beyond its object. The store never raises it to callers."""


class _UploadRestart(Exception):
    """The whole upload must be made again."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The key, condition and metadata of a write."""

    key: str
    if_absent: bool
    if_match: str | None
    metadata: Mapping[str, str]

    @property
    def conditional(self) -> bool:
        """Whether a refusal is a legitimate outcome."""
        return self.if_absent or self.if_match is not None

    def condition(self) -> dict[str, Any]:
        """The condition as parameters of the request that makes the object."""
        absent = {"IfNoneMatch": "*"} if self.if_absent else {}
        return absent | ({} if self.if_match is None else {"IfMatch": f'"{self.if_match}"'})


class ObjectWrites:
    """Makes objects by puts and uploads."""

    def __init__(
        self,
        requests: S3Requests,
        place: BucketPlace,
        keeping: ObjectProtection,
        limits: PartLimits,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._requests = requests
        self._place = place
        self._keeping = keeping
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._reads = Reads(requests, place)

    async def put(self, target: WriteTarget, data: bytes) -> ObjectInfo:
        """Writes the object by one request. Raises as `ObjectStore.put`."""
        full = self._place.full(target.key)
        mark = self._mark(target)
        parameters = {
            "Key": full,
            "Metadata": {**target.metadata, MARK: mark},
            **self._keeping.parameters(target.key),
            **target.condition(),
        }

        async def send() -> ObjectInfo:
            answer = await self._requests.once("put_object", parameters | {"Body": _body(data)})
            return self._written(target, len(data), answer)

        return await self._requests.settle(
            f"put {target.key}",
            send,
            self._looking(target.key, mark),
            conditional=target.conditional,
        )

    async def upload(self, target: WriteTarget, parts: Sequence[StoredRange | Sent]) -> ObjectInfo:
        """Writes the object as an upload of planned parts.

        Raises as `ObjectStore.compose`, and `SourceShorter`.
        """
        mark = self._mark(target)
        for pause in self._requests.pauses():
            await self._clock.sleep(pause)
            upload_id = await self._create(target, mark)
            try:
                done = await self._all_parts(target.key, upload_id, parts)
                size = sum([part.size for part in parts])
                return await self._complete(target, mark, upload_id, done, size)
            except _UploadRestart:
                await self._abort(target.key, upload_id)
            except BaseException:
                await self._abort(target.key, upload_id)
                raise
        raise StoreUnavailable(f"compose {target.key}: other writers changed it again and again")

    async def gather(self, what: str, sent: Sent) -> bytes:
        """The bytes of a part that is sent. Raises `SourceShorter`, and as `get`."""
        found = []
        for piece in sent.pieces:
            if isinstance(piece, GivenBytes):
                found.append(bytes(piece.data))
                continue
            _, data = await self._reads.get(piece.key, piece.offset, piece.size, piece.if_match)
            if len(data) != piece.size:
                raise SourceShorter(f"{what}: {piece.key} is shorter than it was")
            found.append(data)
        return found[0] if len(found) == 1 else b"".join(found)

    async def _create(self, target: WriteTarget, mark: str) -> str:
        answer = await self._requests.ask(
            "create_multipart_upload",
            f"compose {target.key}",
            Key=self._place.full(target.key),
            Metadata={**target.metadata, MARK: mark},
            **self._keeping.parameters(target.key),
        )
        return str(answer["UploadId"])

    async def _all_parts(
        self, key: str, upload_id: str, parts: Sequence[StoredRange | Sent]
    ) -> list[dict[str, Any]]:
        sending, working = asyncio.Semaphore(_SENT_AT_ONCE), asyncio.Semaphore(self._limits.at_once)

        async def made(number: int, part: StoredRange | Sent) -> dict[str, Any]:
            request = {"Key": self._place.full(key), "UploadId": upload_id, "PartNumber": number}
            if isinstance(part, Sent):
                async with sending:
                    etag = await self._send_part(key, request, part)
            else:
                async with working:
                    etag = await self._copy_part(key, request, part)
            return {"PartNumber": number, "ETag": etag}

        return await _together([made(i, part) for i, part in enumerate(parts, 1)])

    async def _send_part(self, key: str, request: Mapping[str, Any], part: Sent) -> str:
        what = f"compose {key}"
        data = await self.gather(what, part)

        async def send() -> str:
            body = {"Body": _body(data)}
            return str((await self._requests.once("upload_part", {**request, **body}))["ETag"])

        return await self._requests.again(what, send)

    async def _copy_part(self, key: str, request: Mapping[str, Any], part: StoredRange) -> str:
        source = {"Bucket": self._place.bucket, "Key": self._place.full(part.key)}
        asked = {
            **request,
            "CopySource": source,
            "CopySourceRange": f"bytes={part.offset}-{part.offset + part.size - 1}",
        }
        if part.if_match is not None:
            asked["CopySourceIfMatch"] = f'"{part.if_match}"'

        async def send() -> str:
            try:
                answer = await self._requests.once("upload_part_copy", asked)
            except S3RequestFailed as failed:
                if failed.failure.code in _NOT_THAT_LONG:
                    raise SourceShorter(failed.failure.message) from failed
                raise
            return str(answer["CopyPartResult"]["ETag"])

        return await self._requests.again(
            f"compose {key} from {part.key}", send, conditional=part.if_match is not None
        )

    async def _complete(
        self, target: WriteTarget, mark: str, upload_id: str, parts: list[dict[str, Any]], size: int
    ) -> ObjectInfo:
        parameters = {
            "Key": self._place.full(target.key),
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": parts},
            **target.condition(),
        }
        tried = 0

        async def send() -> ObjectInfo:
            nonlocal tried
            tried += 1
            try:
                answer = await self._requests.once("complete_multipart_upload", parameters)
            except S3RequestFailed as failed:
                raise _of_completion(failed.failure, tried) from failed
            return self._written(target, size, answer)

        return await self._requests.settle(
            f"compose {target.key}",
            send,
            self._looking(target.key, mark),
            conditional=target.conditional,
        )

    async def _abort(self, key: str, upload_id: str) -> None:
        """Tries once to abort: `sweep` removes what remains, and callers get the original error."""
        try:
            await self._requests.once(
                "abort_multipart_upload", {"Key": self._place.full(key), "UploadId": upload_id}
            )
        except S3RequestFailed:
            return

    def _looking(self, key: str, mark: str) -> Callable[[], Awaitable[ObjectInfo | None]]:
        async def look() -> ObjectInfo | None:
            try:
                answer = await self._reads.answer(key)
            except NotFound:
                return None
            ours = answer.get("Metadata", {}).get(MARK) == mark
            return described(key, answer) if ours else None

        return look

    def _mark(self, target: WriteTarget) -> str:
        check_metadata(target.metadata)
        return ulid.fresh_text(self._clock, self._entropy)

    def _written(self, target: WriteTarget, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
        at = date_of(answer)
        now_ms = self._clock.now_ms() // 1000 * 1000 if at is None else at
        return ObjectInfo(target.key, size, etag_of(answer), now_ms, dict(target.metadata))


def _of_completion(failure: S3Failure, tried: int) -> Exception:
    """Translates 409 at a completion: another write came between, so this upload is void."""
    if failure.code != "ConditionalRequestConflict":
        return S3RequestFailed(failure)
    if tried == 1:
        return _UploadRestart()
    return S3RequestFailed(
        S3Failure(Meaning.UNCLEAR, failure.message, failure.code, failure.status)
    )


def _body(data: bytes) -> bytes | io.BytesIO:
    """The body in a form for which aiohttp gives no warning of large bytes."""
    return data if len(data) < _STREAMED_BYTES else io.BytesIO(data)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the rest, and is raised when they ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
