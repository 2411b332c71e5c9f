"""The object store on S3, or on any server with its API that honours conditional writes.

`open_s3` opens it from settings, `Check` tests the server at the start, and `LifecycleRules` sets
the expiry of old run logs. Other modules of `tailrace.logstore.objects.s3`: `requests` has the
retries, `writes` plans the parts of objects and makes them, `reads` reads and lists them, and
`keys` has keys and headers. An ETag is a hash of the bytes only for an object of one part, and with
`aws:kms` not even then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import InvalidInput, PreconditionFailed, StoreUnavailable
from tailrace.logstore.objects.s3.client import BlockingBucket, open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.keys import BucketPlace, ObjectProtection
from tailrace.logstore.objects.s3.reads import BlockingLists, Lists, Reads, Uploads
from tailrace.logstore.objects.s3.requests import Meaning, S3Failure, S3RequestFailed, S3Requests
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.s3.writes import (
    GivenBytes,
    ObjectWrites,
    PartLimits,
    Sent,
    SourceShorter,
    StoredRange,
    WriteTarget,
    plan,
)
from tailrace.logstore.objects.store import (
    Body,
    DateSample,
    Listing,
    ObjectInfo,
    ObjectPart,
    check_range,
    length_of,
)
from tailrace.logstore.retry import Tries
from tailrace.logstore.table.schema import level_of

# The check at the start: probe objects show that a server does what the store relies on.
#
# A server that accepts `If-None-Match` and ignores it would silently lose acknowledged data, weeks
# later. Each condition is therefore tried against an object that does not fulfil it. Encryption and
# storage class are tried with objects that ask for them. The probes are removed afterwards.


PROBES: Final = ".probe"
_OTHER_ETAG: Final = '"00000000000000000000000000000000"'
# Errors that pass with time: a clock that is set, a key store that comes back.
_NOT_FOR_EVER: Final = frozenset({"RequestTimeTooSkewed"})
_FORBIDDEN: Final = 403
_HINT: Final = "Use AWS S3, MinIO, or another server that honours conditional writes."


class Check:
    """The check of one place; `tries` is how often its requests are retried."""

    def __init__(
        self,
        requests: S3Requests,
        place: BucketPlace,
        keeping: ObjectProtection,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._requests = requests
        self._place = place
        self._keeping = keeping
        self._clock = clock
        self._probe = f"{PROBES}/{ulid.fresh_text(clock, entropy)}"

    async def run(self) -> None:
        """Runs the check.

        Raises `InvalidInput` with a hint for what the server refuses, `StoreUnavailable`.
        """
        await self._ask("list_objects_v2", Prefix=self._place.prefix, MaxKeys=1)
        try:
            await self._puts()
            await self._completions()
            await self._class()
        finally:
            await self._clean()

    async def _puts(self) -> None:
        first = await self._put({"IfNoneMatch": "*"}, b"1")
        await self._refused("If-None-Match on a put", self._put({"IfNoneMatch": "*"}, b"2"))
        await self._refused("If-Match on a put", self._put({"IfMatch": _OTHER_ETAG}, b"3"))
        if first is None or await self._put({"IfMatch": first["ETag"]}, b"4") is not None:
            return
        # A balancer that asks again after a lost answer hears 412 of its own success.
        found = await self._ask("head_object", Key=self._full(self._probe))
        if found is None or found["ETag"] == first["ETag"]:
            raise InvalidInput("the store refuses an If-Match that holds", hint=_HINT)

    async def _completions(self) -> None:
        key = self._full(self._probe)
        about = self._keeping.parameters(self._probe)
        upload = await self._ask("create_multipart_upload", Key=key, **about)
        assert upload is not None
        part = {"Key": key, "UploadId": upload["UploadId"], "PartNumber": 1}
        try:
            source = {"Bucket": self._place.bucket, "Key": key}
            await self._refused(
                "x-amz-copy-source-if-match on a copied part",
                self._ask(
                    "upload_part_copy", **part, CopySource=source, CopySourceIfMatch=_OTHER_ETAG
                ),
            )
            sent = await self._ask("upload_part", **part, Body=b"5")
            assert sent is not None
            done = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]}
            await self._refused(
                "If-None-Match on a completion",
                self._ask(
                    "complete_multipart_upload",
                    Key=key,
                    UploadId=upload["UploadId"],
                    MultipartUpload=done,
                    IfNoneMatch="*",
                ),
            )
        finally:
            await self._try("abort_multipart_upload", {"Key": key, "UploadId": upload["UploadId"]})

    async def _class(self) -> None:
        key = self._large()
        about = self._keeping.parameters(key)
        if "StorageClass" in about:
            await self._ask("put_object", Key=self._full(key), Body=b"6", **about)

    async def _put(self, condition: Mapping[str, str], body: bytes) -> dict[str, Any] | None:
        about = self._keeping.parameters(self._probe)
        return await self._ask(
            "put_object", Key=self._full(self._probe), Body=body, **about, **condition
        )

    async def _refused(self, what: str, asked: Any) -> None:
        if await asked is not None:
            raise InvalidInput(
                f"the store does not honour {what}: writers would overwrite each other",
                field="store",
                hint=_HINT,
            )

    async def _ask(self, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """The answer, or None if a condition was not fulfilled."""
        failure: S3Failure | None = None
        for pause in self._requests.pauses():
            await self._clock.sleep(pause)
            try:
                return await self._requests.once(operation, parameters)
            except S3RequestFailed as failed:
                failure = failed.failure
            if failure.meaning is Meaning.CONDITION:
                return None
            if failure.code in _NOT_FOR_EVER:
                break
            if failure.meaning in (Meaning.FINAL, Meaning.ABSENT) or failure.status == _FORBIDDEN:
                raise self._said(operation, failure)
        assert failure is not None
        raise StoreUnavailable(
            f"the store {self._place.uri('')} was not checked: {failure.message}", hint=failure.hint
        )

    def _said(self, operation: str, failure: S3Failure) -> InvalidInput:
        return InvalidInput(
            f"the store {self._place.uri('')} refuses {operation}: {failure.message}",
            field="store",
            hint=failure.hint or "Correct `store` and the section `s3`.",
        )

    async def _clean(self) -> None:
        """Removes the probes; one that remains is small and has a telling name."""
        for key in (self._probe, self._large()):
            await self._try("delete_object", {"Key": self._full(key)})

    async def _try(self, operation: str, parameters: Mapping[str, Any]) -> None:
        try:
            await self._requests.once(operation, parameters)
        except S3RequestFailed:  # what led here is what must be heard of
            return

    def _large(self) -> str:
        return f"{self._probe}-large/logs.txt"

    def _full(self, key: str) -> str:
        return self._place.full(key)


# Our one rule in the lifecycle of a bucket that may be shared: old run logs expire.
#
# S3 can only replace the whole configuration. So it is read, our earlier rule is replaced by the
# new one, and the result is written if it differs. Two programs that do so at the same moment may
# overwrite each other's change; the next start makes it again.


_ABSENT: Final = "NoSuchLifecycleConfiguration"
_SIZE: Final = "TransitionDefaultMinimumObjectSize"
_READ: Final = ("Rules", _SIZE)


class LifecycleRules:
    """The expiry rule for objects below a prefix of the store."""

    def __init__(self, requests: S3Requests, place: BucketPlace, prefix: str) -> None:
        self._requests = requests
        self._prefix = f"{place.prefix}{prefix}/"
        self._id = f"tailrace {self._prefix}"

    async def expire(self, days: int) -> bool:
        """Makes objects expire after `days`, or never for 0; returns whether the bucket changed.

        Raises `StoreUnavailable`, also without permission.
        """
        kept = await self._read()
        before = kept.get("Rules", [])
        rules = [rule for rule in before if rule.get("ID") != self._id]
        if days:
            rules.append(self._rule(days))
        if _comparable(rules) == _comparable(before):
            return False
        await self._write({**kept, "Rules": rules})
        return True

    def _rule(self, days: int) -> dict[str, Any]:
        return {
            "ID": self._id,
            "Status": "Enabled",
            "Filter": {"Prefix": self._prefix},
            "Expiration": {"Days": days},
        }

    async def _read(self) -> dict[str, Any]:
        async def send() -> dict[str, Any]:
            try:
                found = await self._requests.once("get_bucket_lifecycle_configuration", {})
            except S3RequestFailed as failed:
                if failed.failure.code == _ABSENT:
                    return {}
                raise
            return {name: found[name] for name in _READ if name in found}

        return await self._requests.again("the bucket's lifecycle", send)

    async def _write(self, wanted: dict[str, Any]) -> None:
        what = "the bucket's lifecycle"
        if not wanted["Rules"]:
            await self._requests.ask("delete_bucket_lifecycle", what)
            return
        size = {_SIZE: wanted[_SIZE]} if _SIZE in wanted else {}
        rules = {"Rules": wanted["Rules"]}
        await self._requests.ask(
            "put_bucket_lifecycle_configuration", what, LifecycleConfiguration=rules, **size
        )


def _comparable(rules: list[dict[str, Any]]) -> list[str]:
    return sorted([repr(sorted(rule.items())) for rule in rules])


_HEADS_AT_ONCE = 16


class S3Store:
    """`ObjectStore` in a bucket, below a prefix. The caller closes the client."""

    def __init__(
        self,
        client: Any,
        place: BucketPlace,
        clock: Clock,
        entropy: Entropy,
        *,
        blocking: BlockingBucket,
        keeping: ObjectProtection | None = None,
        tries: Tries | None = None,
        limits: PartLimits | None = None,
        uploads_by_prefix: bool = True,
    ) -> None:
        """`uploads_by_prefix`: the server lists uploads of a prefix, as AWS and unlike MinIO."""
        self.place = place
        self._clock = clock
        self._entropy = entropy
        self.keeping = keeping or ObjectProtection()
        self.requests = S3Requests(client, place.bucket, clock, entropy, tries or Tries())
        self._limits = limits or PartLimits()
        self._reads = Reads(self.requests, place)
        self._lists = Lists(self.requests, place)
        self._blocking_lists = BlockingLists(blocking, place)
        blocking.sent = self.requests.count
        self._uploads = Uploads(self.requests, place, by_prefix=uploads_by_prefix)
        self._writes = ObjectWrites(
            self.requests, place, self.keeping, self._limits, clock, entropy
        )

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
        target = WriteTarget(key, if_absent, if_match, metadata or {})
        if memoryview(body).nbytes <= self._limits.single_put:
            data = body if isinstance(body, bytes) else bytes(body)
            return await self._writes.put(target, data)
        return await self._made(target, [GivenBytes(memoryview(body).cast("B"))])

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
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        self.place.full(key)
        target = WriteTarget(key, if_absent, if_match, metadata or {})
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
        """As `LifecycleRules.expire`, for objects below `prefix/`."""
        return await LifecycleRules(self.requests, self.place, prefix).expire(days)

    async def _made(
        self, target: WriteTarget, sources: Sequence[StoredRange | GivenBytes]
    ) -> ObjectInfo:
        """Writes the object: a put for one part that is sent, an upload for everything else."""
        parts = plan(sources, self._limits)
        if not parts:
            return await self._writes.put(target, b"")
        if len(parts) == 1 and isinstance(parts[0], Sent):
            data = await self._writes.gather(f"compose {target.key}", parts[0])
            return await self._writes.put(target, data)
        return await self._writes.upload(target, parts)

    async def _spans(
        self, parts: Sequence[ObjectPart | bytes], *, trusting: bool
    ) -> Sequence[StoredRange | GivenBytes]:
        """Ranges with their true sizes. With `trusting`, a given size is not looked up.

        A range that takes several requests is pinned to the present version of its object.
        """
        asked = {
            part.key
            for part in parts
            if isinstance(part, ObjectPart) and not (trusting and self._is_plain(part))
        }
        found = await self._heads(sorted(asked))
        return [
            _source(part, found.get(part.key))
            if isinstance(part, ObjectPart)
            else GivenBytes(memoryview(part))
            for part in parts
        ]

    def _is_plain(self, part: ObjectPart) -> bool:
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


def _source(part: ObjectPart, info: ObjectInfo | None) -> StoredRange:
    check_range(part.offset, part.size)
    if info is None:
        assert part.size is not None
        return StoredRange(part.key, part.offset, part.size, part.if_match)
    if part.if_match not in (None, info.etag):
        raise PreconditionFailed(f"{part.key} has changed")
    size = length_of(info.size, part.offset, part.size)
    return StoredRange(part.key, part.offset, size, info.etag)


@asynccontextmanager
async def open_s3(
    settings: S3Settings, place: BucketPlace, clock: Clock, entropy: Entropy
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


def keeping_of(settings: S3Settings) -> ObjectProtection:
    """Encryption for all objects, and a storage class for large ones that are rarely read.

    Fresh files of the table are rewritten when their hour is over. Where a class is paid
    for by the month, an object that lives for an hour costs more in it than in STANDARD.
    """
    large = settings.large_class

    def class_of(key: str) -> str | None:
        old = key.startswith(f"{keys.TABLE}/date=") and level_of(key) > 0
        return large if large != "STANDARD" and (old or key.endswith("/logs.txt")) else None

    return ObjectProtection(settings.encryption, settings.kms_key_id, class_of)
