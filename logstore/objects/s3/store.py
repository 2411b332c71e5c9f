"""The object store on S3, or on any server that speaks it and honours conditional writes.

`open_s3` opens it by its settings. In the package `logstore.objects.s3`, `requests` has the
retries, `writes` makes objects, `plan` divides them into parts, and `place` has keys and headers.
An ETag is a hash of the bytes only for an object of one part, and with `aws:kms` not even then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from logstore import keys
from logstore.clock import Clock, Entropy
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.objects.ranges import check_range, length_of
from logstore.objects.remote import DateSample
from logstore.objects.s3.blocking import BlockingBucket
from logstore.objects.s3.check import Check
from logstore.objects.s3.client import open_client
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.lifecycle import Lifecycle
from logstore.objects.s3.lists import BlockingLists, Lists, Uploads
from logstore.objects.s3.place import Keeping, Place
from logstore.objects.s3.plan import Given, PartLimits, Sent, Stored, plan
from logstore.objects.s3.reads import Reads
from logstore.objects.s3.requests import Requests, Tries
from logstore.objects.s3.settings import S3Settings
from logstore.objects.s3.writes import SourceShorter, Target, Writes
from logstore.objects.store import Body, Listing, ObjectInfo, Part
from logstore.table.layout import level_of

_HEADS_AT_ONCE = 16


class S3Store:
    """`ObjectStore` in a bucket, below a prefix. The caller closes the client."""

    def __init__(
        self,
        client: Any,
        place: Place,
        clock: Clock,
        entropy: Entropy,
        *,
        blocking: BlockingBucket,
        keeping: Keeping | None = None,
        tries: Tries | None = None,
        limits: PartLimits | None = None,
        uploads_by_prefix: bool = True,
    ) -> None:
        """`uploads_by_prefix`: the server lists uploads of a prefix, as AWS and unlike MinIO."""
        self.place = place
        self._clock = clock
        self._entropy = entropy
        self.keeping = keeping or Keeping()
        self.requests = Requests(client, place.bucket, clock, entropy, tries or Tries())
        self._limits = limits or PartLimits()
        self._reads = Reads(self.requests, place)
        self._lists = Lists(self.requests, place)
        self._blocking_lists = BlockingLists(blocking, place)
        blocking.sent = self.requests.count
        self._uploads = Uploads(self.requests, place, by_prefix=uploads_by_prefix)
        self._writes = Writes(self.requests, place, self.keeping, self._limits, clock, entropy)

    @property
    def newest_date(self) -> DateSample | None:
        """The last sample of the store's clock."""
        return self.requests.newest

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        self.place.full(key)
        target = Target(key, if_absent, if_match, metadata or {})
        if memoryview(body).nbytes <= self._limits.single_put:
            data = body if isinstance(body, bytes) else bytes(body)
            return await self._writes.put(target, data)
        return await self._made(target, [Given(memoryview(body).cast("B"))])

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        return await self._reads.get(key, offset, size, if_match)

    def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        return self._reads.stream(key, offset, size, if_match)

    async def head(self, key: str) -> ObjectInfo:
        return await self._reads.head(key)

    async def compose(
        self,
        key: str,
        parts: Sequence[Part | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        self.place.full(key)
        target = Target(key, if_absent, if_match, metadata or {})
        try:
            return await self._made(target, await self._spans(parts, trusting=True))
        except SourceShorter:
            pass
        try:
            return await self._made(target, await self._spans(parts, trusting=False))
        except SourceShorter as error:
            raise StoreUnavailable(f"compose {key}: a source changes: {error}") from error

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._lists.objects(prefix, after)

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        return self._blocking_lists.objects(prefix, after)

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._lists.folders(prefix, after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._lists.delete(keys)

    async def sweep(self, before_ms: int) -> int:
        return await self._uploads.sweep(before_ms)

    def uri(self, key: str) -> str:
        return self.place.uri(key)

    async def check(self) -> None:
        """Checks once all that the store relies on. Raises as `Check.run`."""
        requests = self.requests.with_tries(Tries(1))
        await Check(requests, self.place, self.keeping, self._clock, self._entropy).run()

    async def expire(self, prefix: str, days: int) -> bool:
        """As `Lifecycle.expire`, for what is below `prefix/`."""
        return await Lifecycle(self.requests, self.place, prefix).expire(days)

    async def _made(self, target: Target, sources: Sequence[Stored | Given]) -> ObjectInfo:
        """Writes the object: a put for one part that is sent, an upload for everything else."""
        parts = plan(sources, self._limits)
        if not parts:
            return await self._writes.put(target, b"")
        if len(parts) == 1 and isinstance(parts[0], Sent):
            data = await self._writes.gather(f"compose {target.key}", parts[0])
            return await self._writes.put(target, data)
        return await self._writes.upload(target, parts)

    async def _spans(
        self, parts: Sequence[Part | bytes], *, trusting: bool
    ) -> Sequence[Stored | Given]:
        """Ranges with their true sizes. With `trusting`, a given size is not looked up.

        A range that takes several requests is pinned to the present version of its object.
        """
        asked = {
            part.key
            for part in parts
            if isinstance(part, Part) and not (trusting and self._is_plain(part))
        }
        found = await self._heads(sorted(asked))
        return [
            _source(part, found.get(part.key))
            if isinstance(part, Part)
            else Given(memoryview(part))
            for part in parts
        ]

    def _is_plain(self, part: Part) -> bool:
        if part.size is None:
            return False
        return part.size <= self._limits.copied or part.if_match is not None

    async def _heads(self, keys: Sequence[str]) -> Mapping[str, ObjectInfo]:
        at_once = asyncio.Semaphore(_HEADS_AT_ONCE)

        async def head(key: str) -> ObjectInfo:
            async with at_once:
                return await self._reads.head(key)

        results = await asyncio.gather(*[head(key) for key in keys], return_exceptions=True)
        found = {}
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            found[key] = result
        return found


def _source(part: Part, info: ObjectInfo | None) -> Stored:
    check_range(part.offset, part.size)
    if info is None:
        assert part.size is not None
        return Stored(part.key, part.offset, part.size, part.if_match)
    if part.if_match not in (None, info.etag):
        raise PreconditionFailed(f"{part.key} is not as it was")
    size = length_of(info.size, part.offset, part.size)
    return Stored(part.key, part.offset, size, info.etag)


@asynccontextmanager
async def open_s3(
    settings: S3Settings, place: Place, clock: Clock, entropy: Entropy
) -> AsyncIterator[S3Store]:
    """The store at `place` while the block runs, in the loop that runs the block.

    Sends nothing to the server. Raises `InvalidInput` for invalid settings.
    """
    credentials = Credentials(settings)
    async with open_client(settings, credentials, clock) as client:
        yield S3Store(
            client,
            place,
            clock,
            entropy,
            blocking=BlockingBucket(settings, credentials, place.bucket),
            keeping=keeping_of(settings),
            tries=Tries(settings.attempts, settings.backoff_milliseconds / 1000),
            limits=PartLimits(single_put=settings.multipart_bytes),
            uploads_by_prefix=not settings.endpoint_url,
        )


def keeping_of(settings: S3Settings) -> Keeping:
    """Encryption for all objects, and a storage class for large ones that are rarely read.

    Fresh files of the table are rewritten when their hour is over. Where a class is paid
    for by the month, an object that lives for an hour costs more in it than in STANDARD.
    """
    large = settings.large_class

    def class_of(key: str) -> str | None:
        old = key.startswith(f"{keys.TABLE}/date=") and level_of(key) > 0
        return large if large != "STANDARD" and (old or key.endswith("/logs.txt")) else None

    return Keeping(settings.encryption, settings.kms_key_id, class_of)
