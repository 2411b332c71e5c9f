"""Skip indexes of the table's files, for all searches of a node.

An index is optional: what cannot be read, or does not come in time, leaves its file to be read
whole. So none of its errors reaches a search. One that is missing or damaged is looked for
again after a while, since a compactor makes indexes behind its commits.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from logstore.clock import Clock
from logstore.errors import Damaged
from logstore.search.needs import Needs, Wanted
from logstore.table.pages.line_map import LineMap
from logstore.table.skip_index import Head
from logstore.table.snapshot import TableFile

log = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 60.0
ENTRY_BYTES: Final = 512
"""What something that is remembered takes beside its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class LineMaps:
    """The maps of a file's lines, by the number of the row group.

    `head` is that of its index, and `size` that of the file. `of` gives a map, None if there is
    none or it does not read; it blocks.
    """

    head: Head
    size: int
    of: Callable[[int], LineMap | None]

    def has(self, group: int) -> bool:
        """Whether there is one."""
        return self.head.maps[group][1] > 0

    @property
    def group_bytes(self) -> int:
        """About how many bytes of the file a row group takes."""
        return self.size // max(len(self.head.rows), 1)


class SkipIndexes(ABC):
    """The indexes of a store. For several threads."""

    @property
    @abstractmethod
    def damaged(self) -> int:
        """How many were found damaged."""

    @abstractmethod
    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        """What the indexes that there are say, by the file's path. Blocks in a thread."""

    @abstractmethod
    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        """What can be said at once of files to which a search will come, in this order.

        What is not is fetched. Blocks in a thread, but for no fetch.
        """

    @abstractmethod
    def maps(self, file: TableFile) -> LineMaps | None:
        """Those of a file, if its index was asked."""

    @abstractmethod
    def close(self) -> None:
        """Ends what is under way; what waits for it goes on without."""


class ReadIndexes(SkipIndexes):
    """Those of one place, of which at most `budget` bytes stay in memory."""

    def __init__(self, clock: Clock, budget: int) -> None:
        self._damaged = 0
        self._clock = clock
        self._budget = budget
        self._aside: OrderedDict[str, float] = OrderedDict()
        self._changing = Lock()

    @property
    def damaged(self) -> int:
        return self._damaged

    def _is_aside(self, path: str) -> bool:
        """Whether the index was missing or damaged a moment ago."""
        since = self._clock.monotonic() - _AGAIN_SECONDS
        return self._aside.get(path, since) > since

    def _set_aside(self, path: str, error: Exception) -> None:
        """Notes an index that is missing or damaged."""
        with self._changing:
            if self._is_aside(path):  # another thread came upon it at the same time
                return
            if isinstance(error, Damaged):
                self._damaged += 1
                log.warning("%s is read whole: %s", path, error)
            self._aside[path] = self._clock.monotonic()
            self._aside.move_to_end(path)
            if len(self._aside) * ENTRY_BYTES > self._budget:
                self._aside.popitem(last=False)


class NearestIndexes(SkipIndexes):
    """Those that are `here` where `is_here` says so, unless they do not read; others elsewhere."""

    def __init__(
        self, here: SkipIndexes, elsewhere: SkipIndexes, is_here: Callable[[TableFile], bool]
    ) -> None:
        self._here = here
        self._elsewhere = elsewhere
        self._is_here = is_here

    @property
    def damaged(self) -> int:
        return self._here.damaged + self._elsewhere.damaged

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        found = self._near(files, needs)
        far = [file for file in files if file.path not in found]
        return {**found, **self._elsewhere.which(far, needs)} if far else found

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        found = self._near(files, needs)
        far = [file for file in files if file.path not in found]
        return {**found, **self._elsewhere.ahead(far, needs)} if far else found

    def maps(self, file: TableFile) -> LineMaps | None:
        found = self._here.maps(file) if self._is_here(file) else None
        return self._elsewhere.maps(file) if found is None else found

    def close(self) -> None:
        self._here.close()
        self._elsewhere.close()

    def _near(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        return self._here.which([file for file in files if self._is_here(file)], needs)
