"""Reading objects from S3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.objects.ranges import PIECE_BYTES, check_range
from logstore.objects.s3.errors import failure_of
from logstore.objects.s3.place import Place, described, etag_of
from logstore.objects.s3.requests import Failed, Requests
from logstore.objects.store import ObjectInfo

_PAST_THE_END: Final = 416
_BROKEN_AT_MOST: Final = 4


class Reads:
    """Reads objects whole, or in pieces; a broken answer is continued where it broke."""

    def __init__(self, requests: Requests, place: Place) -> None:
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
            except Failed as failed:  # the next request begins where this one broke
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
        except Failed as failed:
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
    """Pieces of about 1 MiB; those that came before a break are yielded first. Raises `Failed`."""
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
    return error if failure is None else Failed(failure)
