"""What the proxy knows of a request: enough to choose a fault for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from tests.faults.http1 import Head

_UPLOAD = re.compile("uploadId=[^&]*")
_CHECKSUMS = "x-amz-checksum-crc32", "content-md5"  # DeleteObjects has to have one


@dataclass(frozen=True)
class Request:
    """A request's head, read as S3's REST API means it; `query` holds the parameters' names."""

    head: Head
    method: str
    path: str
    query: frozenset[str]

    @staticmethod
    def of(head: Head) -> Request:
        """Raises `BrokenMessage` if the first line is no request."""
        method, target = head.request_line()
        url = urlsplit(target)
        names = frozenset(parse_qs(url.query, keep_blank_values=True))
        return Request(head, method, url.path, names)

    @property
    def name(self) -> str:
        """What schedules count by: the same request tried again has the same name.

        With the query, so that parts of an upload are different requests, and with the checksum
        of the keys to delete, which are in the body; without the upload's id, which is another
        for each try; without the bucket, which tests name as they come.
        """
        _, _, key = self.head.request_line()[1].removeprefix("/").partition("/")
        deleted = map(self.head.value, _CHECKSUMS) if self.batch_delete else ()
        return " ".join([self.method, _UPLOAD.sub("uploadId", key), *filter(None, deleted)])

    @property
    def write(self) -> bool:
        """Whether it changes something."""
        return self.method in ("PUT", "POST", "DELETE")

    @property
    def dynamodb(self) -> bool:
        """Whether it is none of S3's: DynamoDB's say in a header what they want."""
        return self.operation != ""

    @property
    def operation(self) -> str:
        """DynamoDB's, like `PutItem`; empty for S3."""
        return (self.head.value("x-amz-target") or "").rpartition(".")[2]

    @property
    def completion(self) -> bool:
        """Whether it makes an object of an upload's parts."""
        return self.method == "POST" and "uploadId" in self.query

    @property
    def copy(self) -> bool:
        """Whether the server copies: a whole object, or a range as a part."""
        return self.method == "PUT" and self.head.value("x-amz-copy-source") is not None

    @property
    def batch_delete(self) -> bool:
        """Whether it deletes many keys."""
        return self.method == "POST" and "delete" in self.query

    @property
    def conditional_write(self) -> bool:
        """Whether it writes an object only if something holds of its key."""
        if not (self.completion or (self.method == "PUT" and "partNumber" not in self.query)):
            return False
        conditions = self.head.value("if-match"), self.head.value("if-none-match")
        return any(value is not None for value in conditions)

    @property
    def expects_leave(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return (self.head.value("expect") or "").lower() == "100-continue"
