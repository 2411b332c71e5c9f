"""Checks at the start, with probe objects, that a server does what the store relies on.

A server that accepts `If-None-Match` and ignores it would silently lose acknowledged data, weeks
later. Each condition is therefore tried against an object that does not fulfil it. Encryption and
storage class are tried with objects that ask for them. The probes are removed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logstore import ulid
from logstore.clock import Clock, Entropy
from logstore.errors import InvalidInput, StoreUnavailable
from logstore.objects.s3.errors import Failure, Meaning
from logstore.objects.s3.place import Keeping, Place
from logstore.objects.s3.requests import Failed, Requests

PROBES: Final = ".probe"
_OTHER_ETAG: Final = '"00000000000000000000000000000000"'
# What time heals: a clock that is set, a key store that comes back.
_NOT_FOR_EVER: Final = frozenset({"RequestTimeTooSkewed"})
_FORBIDDEN: Final = 403
_HINT: Final = "Use AWS S3, MinIO, or another server that honours conditional writes."


class Check:
    """The check of one place; `tries` is how often its requests are retried."""

    def __init__(
        self, requests: Requests, place: Place, keeping: Keeping, clock: Clock, entropy: Entropy
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
                f"the store does not honour {what}: writers would overwrite one another",
                field="store",
                hint=_HINT,
            )

    async def _ask(self, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """The answer, or None if a condition was not fulfilled."""
        failure: Failure | None = None
        for pause in self._requests.pauses():
            await self._clock.sleep(pause)
            try:
                return await self._requests.once(operation, parameters)
            except Failed as failed:
                failure = failed.failure
            if failure.meaning is Meaning.CONDITION:
                return None
            if failure.code in _NOT_FOR_EVER:
                break
            if failure.meaning in (Meaning.FINAL, Meaning.ABSENT) or failure.status == _FORBIDDEN:
                raise self._said(operation, failure)
        assert failure is not None
        raise StoreUnavailable(
            f"the store {self._place.uri('')} was not checked: {failure.message}",
            hint=failure.hint,
        )

    def _said(self, operation: str, failure: Failure) -> InvalidInput:
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
        except Failed:  # what led here is what must be heard of
            return

    def _large(self) -> str:
        return f"{self._probe}-large/logs.txt"

    def _full(self, key: str) -> str:
        return self._place.full(key)
