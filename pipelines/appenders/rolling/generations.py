"""Files of several runs: a run that was deleted and made again begins a file there.

Most paths that tell runs apart tell their generations as well (`paths`). Elsewhere, as in
`{fqn}.log`, the file that grows has the lines of the deleted run. It is rolled before the first
line of the run's next generation: once for each path, run and deletion. Which these were is in the
appender's state: the last `_MOST` of them, as hashes, so that a checkpoint stays small. One that
is forgotten rolls a file once more, and mixes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.ulid import encode
from pipelines.appenders.rolling.paths import Indexes, PathTemplate, pairs_of
from pipelines.deletions import Deleted

_MOST: Final = 1000
_HASH_BYTES: Final = 8


class Generations:
    """For which generations files of a path were rolled; `known` as an earlier one gave it."""

    def __init__(self, template: PathTemplate, known: Iterable[str] = ()) -> None:
        self._template = template
        self._known = dict.fromkeys(known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def known(self) -> list[str]:
        """What is to be in the appender's state."""
        return list(self._known)

    def begin(
        self, events: pa.Table, groups: Sequence[tuple[str, Indexes]], deleted: Deleted
    ) -> list[str]:
        """The paths whose files are to be rolled before these events are written.

        `deleted` covers none of the events. The paths count as rolled from here on.
        """
        if not deleted or self._template.tells_runs:
            return []
        place, pairs = pairs_of(events)
        names = [self._name(fqn, run, deleted) for fqn, run in pairs]
        if not any(names):
            return []
        found = [(path, self._hashes(path, names, place[rows])) for path, rows in groups]
        to_roll = [path for path, hashes in found if not hashes <= self._known.keys()]
        for _, hashes in found:
            for one in hashes:
                self._known.pop(one, None)
                self._known[one] = None
        for one in list(self._known)[:-_MOST]:
            del self._known[one]
        return to_roll

    def _name(self, fqn: str, run: str, deleted: Deleted) -> str:
        """The deletion that a run has behind it and that no path tells; empty: none."""
        whole, own = deleted.get((fqn, None), 0), deleted.get((fqn, run), 0)
        if own > whole:
            return f"{encode(own)} {run} {fqn}"
        return f"{encode(whole)} {fqn}" if whole and not self._template.tells_pipelines else ""

    def _hashes(self, path: str, names: Sequence[str], chosen: Indexes) -> set[str]:
        found = [names[one] for one in np.unique(chosen).tolist() if names[one]]
        texts = [f"{name} {path}".encode() for name in found]
        return {blake2b(text, digest_size=_HASH_BYTES).hexdigest() for text in texts}
