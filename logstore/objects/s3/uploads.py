"""Uploads that were begun and never completed: those of a crash, and of Spark's committers.

They cost as objects do, and no listing of objects shows them. AWS lists those below a prefix.
MinIO takes a prefix for a whole key, so there the uploads of the whole bucket are listed and ours
selected. MinIO drops them when it restarts, and removes them after a day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from logstore.objects.s3.place import Place, seconds_ms
from logstore.objects.s3.requests import Failed, Requests


class Uploads:
    """All uploads below the store's prefix, whoever began them."""

    def __init__(self, requests: Requests, place: Place, *, by_prefix: bool) -> None:
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
            except Failed as failed:
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
