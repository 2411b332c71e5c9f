"""Reads, lists and deletes objects on S3, and aborts abandoned uploads.

`Reads` reads objects whole or in pieces, `Lists` lists keys and deletes them, both a thousand at a
time. `Uploads` finds uploads that were begun and never completed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from tailrace.logstore.errors import PreconditionFailed, StoreUnavailable
from tailrace.logstore.objects.s3.client import BlockingBucket, following
from tailrace.logstore.objects.s3.keys import BucketPlace, described, etag_of, listed, seconds_ms
from tailrace.logstore.objects.s3.requests import (
    S3RequestFailed,
    S3Requests,
    failure_of,
    failure_of_key,
)
from tailrace.logstore.objects.store import PIECE_BYTES, ListedKey, Listing, ObjectInfo, check_range

_PAST_THE_END: Final = 416
_BROKEN_AT_MOST: Final = 4


class Reads:
    """Reads objects whole, or in pieces; a broken answer is continued where it broke."""

    def __init__(self, requests: S3Requests, place: BucketPlace) -> None:
        self._requests = requests
        self._place = place

    async def head(self, key: str, if_match: str | None = None) -> ObjectInfo:
        """As `ObjectStore.head`."""
        return described(key, await self.answer(key, if_match))

    async def answer(self, key: str, if_match: str | None = None) -> Mapping[str, Any]:
        """The whole answer to HEAD."""
        parameters = _parameters(self._place.full(key), if_match)
        return await self._requests.ask("head_object", f"head {key}", **parameters)

    async def get(
        self, key: str, offset: int, size: int | None, if_match: str | None
    ) -> tuple[ObjectInfo, bytes]:
        """As `ObjectStore.get`."""
        check_range(offset, size)
        parameters = _parameters(self._place.full(key), if_match)
        if size == 0:
            return await self.head(key, if_match), b""
        parameters |= _range(offset, size)

        async def send() -> tuple[ObjectInfo, bytes] | None:
            answer = await self._unless_past_the_end(parameters)
            if answer is None:
                return None
            return described(key, answer), await _all_of(answer["Body"])

        found = await self._requests.again(f"get {key}", send, conditional=if_match is not None)
        return found if found is not None else (await self.head(key, if_match), b"")

    async def stream(
        self, key: str, offset: int, size: int | None, if_match: str | None
    ) -> AsyncIterator[bytes]:
        """As `ObjectStore.stream`: all pieces are of one version of the object, or it fails."""
        check_range(offset, size)
        etag, broken = if_match, 0
        while size is None or size > 0:
            opened = await self._open(key, offset, size, etag, pinned=if_match is None)
            if opened is None:
                return
            body, etag, size = opened
            begun = offset
            try:
                async for piece in _pieces(body):
                    offset, size = offset + len(piece), size - len(piece)
                    yield piece
            except S3RequestFailed as failed:  # the next request begins where this one broke
                broken = broken + 1 if offset == begun else 0
                if broken == _BROKEN_AT_MOST:
                    raise failed.failure.error(f"get {key}") from failed
            finally:
                body.close()

    async def _open(
        self, key: str, offset: int, size: int | None, if_match: str | None, *, pinned: bool
    ) -> tuple[Any, str, int] | None:
        """The body, the object's ETag, the body's length; None past the object's end.

        With `pinned`, it was not the caller but we who required the same version as before.
        """
        parameters = _parameters(self._place.full(key), if_match) | _range(offset, size)

        async def send() -> tuple[Any, str, int] | None:
            answer = await self._unless_past_the_end(parameters)
            if answer is None:
                return None
            return answer["Body"], etag_of(answer), int(answer["ContentLength"])

        try:
            return await self._requests.again(f"get {key}", send, conditional=if_match is not None)
        except PreconditionFailed:
            if not pinned:
                raise
            raise StoreUnavailable(f"get {key}: it changed while it was read") from None

    async def _unless_past_the_end(self, parameters: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return await self._requests.once("get_object", parameters)
        except S3RequestFailed as failed:
            if failed.failure.status == _PAST_THE_END:
                return None
            raise


def _parameters(full: str, if_match: str | None) -> dict[str, Any]:
    return {"Key": full} | ({} if if_match is None else {"IfMatch": f'"{if_match}"'})


def _range(offset: int, size: int | None) -> dict[str, Any]:
    if size is not None:
        return {"Range": f"bytes={offset}-{offset + size - 1}"}
    return {"Range": f"bytes={offset}-"} if offset else {}


async def _all_of(body: Any) -> bytes:
    try:
        return bytes(await body.read())
    except Exception as error:
        raise _broken(error) from error
    finally:
        body.close()


async def _pieces(body: Any) -> AsyncIterator[bytes]:
    """Pieces of about 1 MiB; those that came before a break are yielded first. Raises
    `S3RequestFailed`."""
    piece = bytearray()
    try:
        while read := await body.read(PIECE_BYTES - len(piece)):
            piece += read
            if len(piece) == PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    except Exception as error:
        if piece:
            yield bytes(piece)
        raise _broken(error) from error
    if piece:
        yield bytes(piece)


def _broken(error: Exception) -> Exception:
    failure = failure_of(error)
    return error if failure is None else S3RequestFailed(failure)


# Uncompleted uploads are those of a crash, and of Spark's committers. They cost as objects do, and
# no listing of objects shows them. AWS lists those below a prefix. MinIO takes a prefix for a whole
# key, so on MinIO the uploads of the whole bucket are listed and ours selected. MinIO drops them
# when it restarts, and removes them after a day.


_AT_ONCE: Final = 1000


class Lists:
    """Keys in order, page by page; and deletes in batches."""

    def __init__(self, requests: S3Requests, place: BucketPlace) -> None:
        self._requests = requests
        self._place = place

    async def objects(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        if not self._place.may_have(prefix, prefix[: prefix.rfind("/") + 1]):
            return
        start = _start(prefix, after)
        if start is None:
            return
        async for page in self._pages(prefix, start, {}):
            for info in _objects(self._place, page):
                yield info

    async def folders(self, prefix: str, after: str) -> AsyncIterator[str]:
        """As `ObjectStore.folders`."""
        if not self._place.may_have(prefix, prefix):
            return
        # `0` follows `/`: nothing that begins with `{after}/` is above it, and all else is.
        start = f"{prefix}{after}0" if after else ""
        async for page in self._pages(prefix, start, {"Delimiter": "/"}):
            for entry in page.get("CommonPrefixes", []):
                yield self._place.own(entry["Prefix"])[len(prefix) : -1]

    async def delete(self, keys: Sequence[str]) -> None:
        """As `ObjectStore.delete`."""
        left = list(dict.fromkeys(self._full(key) for key in keys))
        while left:
            batch, left = left[:_AT_ONCE], left[_AT_ONCE:]
            await self._delete(batch)

    def _full(self, key: str) -> str:
        """The bucket's key: of an object, or of a marker that Spark puts for a folder (`x/`)."""
        marker = "/" * key.endswith("/")
        return self._place.full(key.removesuffix("/")) + marker

    async def _delete(self, keys: list[str]) -> None:
        """Deletes the keys; asks again for those that the server did not delete."""
        left = keys

        async def send() -> None:
            nonlocal left
            asked = {"Objects": [{"Key": key} for key in left], "Quiet": True}
            answer = await self._requests.once("delete_objects", {"Delete": asked})
            failed = [entry for entry in answer.get("Errors", []) if not _is_gone(entry)]
            left = [entry["Key"] for entry in failed]
            if failed:
                raise S3RequestFailed(failure_of_key(failed[0]))

        await self._requests.again(f"delete {len(keys)} objects", send)

    async def _pages(
        self, prefix: str, start: str, parameters: Mapping[str, Any]
    ) -> AsyncIterator[Mapping[str, Any]]:
        place = self._place
        parameters = {"Prefix": place.prefix + prefix, **parameters}
        more = {"StartAfter": place.prefix + start} if start else {}
        while True:
            page = await self._requests.ask(
                "list_objects_v2", f"list {prefix}", **parameters, **more
            )
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": following(f"list {prefix}", page)}


def _start(prefix: str, after: str) -> str | None:
    """Where a list begins: "" at its prefix, None if `after` is above all keys of the prefix.

    MinIO lists nothing for a start that is not below the prefix.
    """
    if after.startswith(prefix):
        return after
    return "" if after < prefix else None


def _is_gone(entry: Mapping[str, Any]) -> bool:
    return entry.get("Code") in ("NoSuchKey", "NoSuchVersion")


def _objects(place: BucketPlace, page: Mapping[str, Any]) -> Iterator[ObjectInfo]:
    for entry in page.get("Contents", []):
        key = place.own(entry["Key"])
        if key and not key.endswith("/"):  # Hadoop's markers of folders are no objects
            yield listed(key, entry)


class BlockingLists:
    """Lists objects, for callers that work in a thread of their own."""

    def __init__(self, bucket: BlockingBucket, place: BucketPlace) -> None:
        self._bucket = bucket
        self._place = place

    def objects(self, prefix: str, after: str) -> Listing:
        """As `ObjectStore.listed`."""
        if not self._place.may_have(prefix, prefix[: prefix.rfind("/") + 1]):
            return
        behind: str | None = after
        while behind is not None and (start := _start(prefix, behind)) is not None:
            behind = yield from self._objects(prefix, start)

    def _objects(self, prefix: str, start: str) -> Generator[ListedKey, str | None, str | None]:
        """Lists to the end, or until a key is sent, which it returns."""
        root = self._place.prefix
        more = {"StartAfter": root + start} if start else {}
        for page in self._bucket.pages(f"list {prefix}", Prefix=root + prefix, **more):
            for info in _objects(self._place, page):
                if (behind := (yield ListedKey(info.key, info.size))) is not None:
                    return behind
        return None


class Uploads:
    """The uncompleted uploads below the store's prefix, of all programs."""

    def __init__(self, requests: S3Requests, place: BucketPlace, *, by_prefix: bool) -> None:
        self._requests = requests
        self._place = place
        self._by_prefix = by_prefix

    async def sweep(self, before_ms: int) -> int:
        """Aborts uploads that were begun before that time; returns how many."""
        swept = 0
        async for upload in self._begun():
            if seconds_ms(upload["Initiated"]) < before_ms:
                swept += await self._abort(upload["Key"], upload["UploadId"])
        return swept

    async def _abort(self, full: str, upload_id: str) -> bool:
        """Aborts an upload; returns whether it still existed."""

        async def send() -> bool:
            try:
                await self._requests.once(
                    "abort_multipart_upload", {"Key": full, "UploadId": upload_id}
                )
            except S3RequestFailed as failed:
                if failed.failure.code == "NoSuchUpload":
                    return False
                raise
            return True

        return await self._requests.again(f"abort an upload of {self._place.own(full)}", send)

    async def _begun(self) -> AsyncIterator[Mapping[str, Any]]:
        asked: dict[str, Any] = {"Prefix": self._place.prefix} if self._by_prefix else {}
        more: dict[str, Any] = {}
        while True:
            page = await self._requests.ask(
                "list_multipart_uploads", "list uploads", **asked, **more
            )
            for upload in page.get("Uploads", []):
                if upload["Key"].startswith(self._place.prefix):
                    yield upload
            if not page.get("IsTruncated"):
                return
            more = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }
