"""What S3 and DynamoDB say when they refuse, byte by byte as their APIs document errors."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from tests.faults.kinds import Kind
from tests.faults.requests import Request

_ERRORS = {
    Kind.INTERNAL_ERROR: (500, "InternalError", "We encountered an internal error."),
    Kind.ERROR_AFTER: (500, "InternalError", "We encountered an internal error."),
    Kind.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    Kind.CONFLICT: (
        409,
        "ConditionalRequestConflict",
        "The conditional request cannot succeed due to a conflicting operation.",
    ),
    Kind.ERROR_IN_200: (200, "InternalError", "We encountered an internal error."),
}
# DynamoDB knows a conflict and an error behind a 200 no more than this proxy lets it.
_DYNAMODB = {
    Kind.INTERNAL_ERROR: (500, "InternalServerError"),
    Kind.ERROR_AFTER: (500, "InternalServerError"),
    Kind.SLOW_DOWN: (400, "ProvisionedThroughputExceededException"),
}
_REASONS = {
    400: "Bad Request",
    200: "OK",
    409: "Conflict",
    500: "Internal Server Error",
    503: "Slow Down",
}
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)


def refusal(kind: Kind, request: Request, body: bytes, *, closing: bool = False) -> bytes:
    """The whole answer. `closing` ends the connection with it."""
    if request.dynamodb:
        status, code = _DYNAMODB[kind]
        error = f'{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{kind.value}"}}'
        return _response(status, error.encode(), closing, "application/x-amz-json-1.0")
    status, code, message = _ERRORS[kind]
    if kind is Kind.ERROR_IN_200 and request.batch_delete:
        document = _each_refused(body, code, message)
    else:
        document = (
            f"<Error><Code>{code}</Code><Message>{message}</Message>"
            f"<Resource>{escape(request.path)}</Resource><RequestId>FAULT</RequestId></Error>"
        ).encode()
    return _response(status, b"" if request.method == "HEAD" else _DECLARATION + document, closing)


_DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'


def _each_refused(body: bytes, code: str, message: str) -> bytes:
    """DeleteObjects answers 200 and says of every key how it went."""
    rest = f"<Code>{code}</Code><Message>{message}</Message>".encode()
    errors = b"".join(b"<Error><Key>%b</Key>%b</Error>" % (key, rest) for key in _KEY.findall(body))
    name_space = b"http://s3.amazonaws.com/doc/2006-03-01/"
    return b'<DeleteResult xmlns="%b">%b</DeleteResult>' % (name_space, errors)


def _response(status: int, body: bytes, closing: bool, kind: str = "application/xml") -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *(["Connection: close"] if closing else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
