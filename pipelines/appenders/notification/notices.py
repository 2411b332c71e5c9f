"""Which notices are due: the first of a group at once, later ones together, and never too many.

A group is a rule and the values that a notice is grouped by. A group's first notice is due at
once. What comes within `every` after it is counted, and due together when that is over. Of all
groups together at most `most_per_hour` are due in an hour; the rest waits, and is counted. What
waits is in a checkpoint, so it is bounded: of more groups than that, those that had nothing new for
longest are let go.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

Key = tuple[str, ...]
_HOUR: Final = 3600.0
_MOST_GROUPS: Final = 1000
_MOST_BYTES: Final = 128 * 1024


@dataclass(slots=True)
class Notice:
    """What a group waits with: how many, and the first of them. `sent` is in epoch seconds."""

    count: int = 0
    first: dict[str, Any] | None = None
    sent: float = 0.0


class Notices:
    """The groups. Times are seconds since the epoch."""

    def __init__(self, every: float, most_per_hour: int) -> None:
        self._every = every
        self._most = most_per_hour
        self._groups: OrderedDict[Key, Notice] = OrderedDict()
        self._sent: deque[float] = deque()
        self.forgotten = 0
        """Groups that were let go with what they waited with, since there were too many."""

    def add(self, key: Key, count: int, first: Mapping[str, Any]) -> None:
        """So many of a group; `first` is what is told of them."""
        notice = self._groups.get(key)
        if notice is None:
            if len(self._groups) >= _MOST_GROUPS:
                _, gone = self._groups.popitem(last=False)
                self.forgotten += gone.count > 0
            notice = self._groups[key] = Notice()
        self._groups.move_to_end(key)
        notice.count += count
        if notice.first is None:
            notice.first = dict(first)

    def due(self, now: float) -> Iterator[tuple[Key, Notice]]:
        """What is to be sent now; each is to be `sent` before the next one is asked for."""
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
        for key, notice in list(self._groups.items()):
            if len(self._sent) >= self._most:
                return
            if notice.count and now - notice.sent >= self._every:
                yield key, notice

    def sent(self, key: Key, now: float) -> None:
        """The notice of a group was sent."""
        self._sent.append(now)
        self._groups[key] = Notice(sent=now)

    def state(self) -> dict[str, Any]:
        """What `restore` takes; JSON of bounded size. The groups that do not fit are let go."""
        groups: list[list[Any]] = []
        size = 0
        for key in reversed(list(self._groups)):
            notice = self._groups[key]
            group = [list(key), asdict(notice)]
            size += len(orjson.dumps(group))
            if size > _MOST_BYTES:
                del self._groups[key]
                self.forgotten += notice.count > 0
            else:
                groups.append(group)
        return {"groups": groups[::-1], "sent": list(self._sent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As it was."""
        self._groups = OrderedDict(
            (tuple(map(str, key)), Notice(**one)) for key, one in state.get("groups", ())
        )
        self._sent = deque(float(one) for one in state.get("sent", ()))
