"""Byte ranges and validators of RFC 9110, as far as a log's text needs them.

One range is served; a request for several gets the whole text, which the RFC allows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from service.http.errors import HttpError

_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.IGNORECASE)
_MAX_DIGITS = 18


class Span(NamedTuple):
    """Bytes from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def parse_range(header: str | None, size: int) -> Span | None:
    """The span that a Range header asks of `size` bytes; None if all are to be sent.

    Raises `HttpError` 416 if the range begins past the end.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last = match.groups()
    if not (first or last) or max(len(first), len(last)) > _MAX_DIGITS:
        return None
    if not first:
        span = Span(max(0, size - int(last)), size - 1)
        return _satisfiable(span, size, empty=int(last) == 0)
    if last and int(last) < int(first):
        return None
    return _satisfiable(Span(int(first), min(int(last or size), size - 1)), size)


def _satisfiable(span: Span, size: int, *, empty: bool = False) -> Span:
    if empty or span.first >= size:
        raise HttpError(
            416,
            f"the range begins past the end of {size} bytes",
            headers=[("content-range", f"bytes */{size}")],
        )
    return span


def matches(header: str | None, etags: list[str]) -> bool:
    """Whether an If-None-Match or If-Range header names one of the (quoted) ETags."""
    if header is None:
        return False
    given = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in given or any(tag in given for tag in etags)


def accepts_gzip(header: str | None) -> bool:
    """Whether Accept-Encoding asks for gzip by name, and not with a weight of zero."""
    for part in (header or "").lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
