"""Maps keys of a store to keys of its bucket, and sets headers and metadata of objects.

Every object carries `x-amz-meta-tailrace-write`, an id of the request that wrote it. With it a
writer whose answer was lost recognises its own object. `ObjectInfo` does not show it as metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tailrace.logstore.errors import InvalidName
from tailrace.logstore.objects.local_files import MAX_KEY_BYTES, check_key, is_clean
from tailrace.logstore.objects.store import ObjectInfo

MARK: Final = "tailrace-write"
_TYPES: Final = {
    "txt": "text/plain; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class ObjectProtection:
    """Encryption of every object, and the storage class of a key; None is the bucket's default."""

    encryption: str = ""
    kms_key_id: str = ""
    class_of: Callable[[str], str | None] = lambda _: None

    def parameters(self, key: str) -> dict[str, Any]:
        """The parameters of a request that makes the object; `key` is the store's."""
        found: dict[str, Any] = {
            "ContentType": _TYPES.get(key.rpartition(".")[2], "application/octet-stream")
        }
        if self.encryption:
            found["ServerSideEncryption"] = self.encryption
        if self.kms_key_id:
            found["SSEKMSKeyId"] = self.kms_key_id
        kept = self.class_of(key)
        return found | ({"StorageClass": kept} if kept is not None else {})


class BucketPlace:
    """A bucket and a prefix: keys of the store to keys of the bucket, and back."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""

    def may_have(self, prefix: str, folders: str) -> bool:
        """Whether keys can begin with `prefix`, whose whole folders are `folders`."""
        return is_clean(folders) and len((self.prefix + prefix).encode()) <= MAX_KEY_BYTES

    def full(self, key: str) -> str:
        """The bucket's key. Raises `InvalidName` for a key that no object can have."""
        check_key(key)
        full = self.prefix + key
        if len(full.encode()) > MAX_KEY_BYTES:
            raise InvalidName(
                f"a key has at most {MAX_KEY_BYTES} bytes with the store's prefix", field="key"
            )
        return full

    def own(self, full: str) -> str:
        """The store's key of a bucket's key."""
        return full[len(self.prefix) :]

    def uri(self, key: str) -> str:
        """The object's address, as Spark, DuckDB and deltalake understand it."""
        return f"s3://{self.bucket}/{self.prefix}{key}"


def described(key: str, answer: Mapping[str, Any]) -> ObjectInfo:
    """The object that an answer to HEAD or GET describes; the size is that of the whole object."""
    metadata = {name: value for name, value in answer.get("Metadata", {}).items() if name != MARK}
    total = answer.get("ContentRange", "").rpartition("/")[2]
    size = int(total) if total else int(answer["ContentLength"])
    return ObjectInfo(key, size, etag_of(answer), seconds_ms(answer["LastModified"]), metadata)


def listed(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """The object that an entry of a listing describes."""
    return ObjectInfo(key, int(entry["Size"]), etag_of(entry), seconds_ms(entry["LastModified"]))


def etag_of(answer: Mapping[str, Any]) -> str:
    """The answer's ETag without the quotes of HTTP."""
    return str(answer["ETag"]).strip('"')


def seconds_ms(time: datetime) -> int:
    """Milliseconds, cut to whole seconds, as HEAD gives them; listings are cut alike."""
    return int(time.timestamp()) * 1000
