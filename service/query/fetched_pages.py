"""Pages of table files on S3: those of some row groups side by side come with one request.

A request costs the same for a page and for some megabytes, and a server reads more than it is
asked for. So a search has the pages of several row groups fetched at once, some requests before it
comes to them. Footers are fetched like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from logstore.errors import Damaged, NotFound
from logstore.objects.parquet import footer_bytes
from logstore.table.footers import footer_of
from service.query.mapped_lines import Pages
from service.query.skip_indexes import LineMaps

if TYPE_CHECKING:
    from service.query.bucket import Get

FETCHED_BYTES: Final = 8 << 20
"""Of row groups, in a request."""
_MOST_BYTES: Final = 32 << 20  # of lines that are longer than most, which are left to DuckDB
_AT_ONCE: Final = 8
_TAIL_BYTES: Final = 128 << 10  # a row group has one KB of a footer


class PageFetcher:
    """For the searches of one node."""

    def __init__(self, get: Get) -> None:
        self.threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")
        self._get = get

    def pages(
        self, uri: str, maps: LineMaps, groups: Sequence[int], wanted: Mapping[str, str]
    ) -> Future[Pages]:
        """Messages and times of these row groups of a file, of lines with the `wanted` names.

        It raises `Damaged`, `StoreUnavailable`.
        """
        return self.threads.submit(self._pages, uri, maps, groups, wanted)

    def footer(self, uri: str) -> pq.FileMetaData:
        """What the footer of a file says. Raises `Damaged`, `StoreUnavailable`. Blocks."""
        tail = self._got(uri, f"bytes=-{_TAIL_BYTES}")
        size = footer_bytes(tail)
        if not size:
            raise Damaged(f"{uri} is not a Parquet file")
        if size > len(tail):
            tail = self._got(uri, f"bytes=-{size}")
        return footer_of(tail)

    def close(self) -> None:
        """Ends what has not begun."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _pages(
        self, uri: str, maps: LineMaps, groups: Sequence[int], wanted: Mapping[str, str]
    ) -> Pages:
        found = {group: maps.of(group) for group in groups}
        extents = [extent for one in found.values() if one and (extent := one.extent(wanted))]
        if not extents:
            return Pages(found, _nothing)
        begin, end = min(begin for begin, _ in extents), max(end for _, end in extents)
        if end - begin > _MOST_BYTES:
            return Pages(dict.fromkeys(groups))
        body = memoryview(self._got(uri, f"bytes={begin}-{end - 1}"))
        return Pages(found, lambda at, size: body[at - begin : at - begin + size])

    def _got(self, uri: str, range_: str) -> bytes:
        try:
            return self._get(uri, range_)
        except NotFound as error:
            raise Damaged(f"{uri} is gone") from error


def _nothing(_at: int, _size: int) -> bytes:
    return b""
