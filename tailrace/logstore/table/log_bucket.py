"""The files of a table's log in a bucket, by requests that block only their own thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tailrace.logstore.objects.s3.client import BlockingBucket
from tailrace.logstore.table.log import LogFile, Look, commit_name

_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class BucketLogFolder:
    """The files below `prefix`, which ends in `/`."""

    bucket: BlockingBucket
    prefix: str

    def list(self, start: str) -> Iterator[LogFile]:
        """As `LogFolder.list`, with a thousand files per request."""
        pages = self.bucket.pages(
            "list the table's log",
            Prefix=self.prefix,
            StartAfter=self.prefix + start,  # no name is just a version
            MaxKeys=_PAGE,
        )
        for page in pages:
            for entry in page.get("Contents", []):
                name = entry["Key"][len(self.prefix) :]
                modified_ms = int(entry["LastModified"].timestamp() * 1000)
                yield LogFile(name, int(entry["Size"]), modified_ms, entry.get("ETag", ""))

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `LogFolder.get`."""
        end = "" if size is None else offset + size - 1
        wanted = f"bytes={offset}-{end}" if offset or size is not None else ""
        return self.bucket.get(f"get {name} of the table's log", self.prefix + name, wanted)

    def look(self, version: int) -> Look:
        """As `LogFolder.look`, by one listing."""
        current, name, newer, rest = None, commit_name(version), False, []
        for file in self.list(f"{version:020}"):
            if file.name == name:
                current = file
            elif file.name[0].isdigit():
                newer = newer or file.name.endswith(".json")
                rest.append(file)
        return Look(current, newer, tuple(rest))
