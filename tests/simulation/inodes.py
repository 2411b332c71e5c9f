"""Files and folders that remember what of them is on the disk and what is not yet.

After a power cut, of the changes since the last sync:

- writes to a file: each is lost, kept, cut at any byte, or kept in some of its 4 KiB
  pages and in some sectors of others, independently of one another; elsewhere there is
  what was there before, zeros where there was nothing;
- changes of a folder's name: those up to any moment are kept, for each name on its
  own; but a rename that took away the old name did set the new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_numbers = itertools.count(2)


@dataclass(frozen=True)
class Write:
    """Bytes put at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Cut:
    """The file's size set."""

    size: int


class Inode:
    """The bytes of a file: as programs see them, and as the disk has them."""

    def __init__(self, durable: bytes = b"", modified_ns: int = 0, number: int = 0) -> None:
        self.number = number or next(_numbers)
        self.modified_ns = modified_ns
        self.current = bytearray(durable)
        self._durable = bytearray(durable)
        self._pending: list[Write | Cut] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Inode:
        twin = Inode(bytes(self._durable), self.modified_ns, self.number)
        twin.current = self.current.copy()
        twin._pending = self._pending.copy()
        memo[id(self)] = twin
        return twin

    def append(self, data: bytes) -> None:
        self.write_at(data, len(self.current))

    def write_at(self, data: bytes, offset: int) -> None:
        change = Write(offset, data)
        _apply(change, self.current)
        self._pending.append(change)

    def truncate(self, size: int) -> None:
        change = Cut(size)
        _apply(change, self.current)
        self._pending.append(change)

    def sync(self) -> None:
        for change in self._pending:
            _apply(change, self._durable)
        self._pending.clear()

    def fail_sync(self) -> None:
        """As Linux does it: the pages count as clean, and no later sync writes them."""
        self._pending.clear()

    def after_power_cut(self, dice: Random) -> Inode:
        kept = bytearray(self._durable)
        for change in self._pending:
            _apply_some(change, kept, dice)
        return Inode(bytes(kept), self.modified_ns, self.number)


def _apply(change: Write | Cut, data: bytearray) -> None:
    if isinstance(change, Cut):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
        return
    data.extend(bytes(max(0, change.offset - len(data))))
    data[change.offset : change.offset + len(change.data)] = change.data


def _apply_some(change: Write | Cut, data: bytearray, dice: Random) -> None:
    fate = dice.choice(("lost", "whole", "cut", "pages"))
    if fate == "lost":
        return
    if fate == "whole" or isinstance(change, Cut):
        _apply(change, data)
    elif fate == "cut":
        _apply(Write(change.offset, change.data[: dice.randrange(len(change.data) + 1)]), data)
    else:
        _apply(Write(change.offset, _some_pages(change, data, dice)), data)


def _some_pages(change: Write, old: bytearray, dice: Random) -> bytes:
    """What stands in the place of a write: new, old or mixed content for each page."""
    end = change.offset + len(change.data)
    kept = old[change.offset : end]
    kept.extend(bytes(len(change.data) - len(kept)))
    for page in range(change.offset - change.offset % PAGE_BYTES, end, PAGE_BYTES):
        fate = dice.choice(("old", "new", "mixed"))
        step = SECTOR_BYTES if fate == "mixed" else PAGE_BYTES
        for sector in range(page, page + PAGE_BYTES, step):
            if fate == "new" or (fate == "mixed" and dice.random() < 0.5):
                low, high = max(sector - change.offset, 0), max(sector + step - change.offset, 0)
                kept[low:high] = change.data[low:high]
    return bytes(kept)


Node: TypeAlias = "Inode | Folder"


@dataclass(frozen=True)
class Rename:
    """What ties the two names of a rename together; compared by identity."""

    target: Name

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(eq=False)
class Name:
    """What a name in a folder stood for, from the last sync until now."""

    durable: Node | None = None
    changes: list[tuple[Node | None, Rename | None]] = field(default_factory=list)
    must_keep: int = 0  # changes that are on the disk, since the other half of a rename is

    @property
    def current(self) -> Node | None:
        return self.changes[-1][0] if self.changes else self.durable

    def sync(self) -> None:
        self._bind(len(self.changes))
        self.durable = self.current
        self.changes.clear()
        self.must_keep = 0

    def keep(self, count: int) -> None:
        """The first `count` changes are on the disk, and so are the renames they began."""
        if count > self.must_keep:
            self.must_keep = count
            self._bind(count)

    def kept(self) -> Node | None:
        return self.changes[self.must_keep - 1][0] if self.must_keep else self.durable

    def _bind(self, count: int) -> None:
        for _, rename in self.changes[:count]:
            if rename is not None and rename.target is not self:
                rename.target.keep(rename.target.place_of(rename))

    def place_of(self, rename: Rename) -> int:
        places = [i + 1 for i, change in enumerate(self.changes) if change[1] is rename]
        return places[0] if places else 0


class Folder:
    """Names, each with its own history."""

    def __init__(self) -> None:
        self.names: dict[str, Name] = {}

    def get(self, name: str) -> Node | None:
        found = self.names.get(name)
        return found.current if found is not None else None

    def set(self, name: str, node: Node | None, rename: Rename | None = None) -> None:
        self.name(name).changes.append((node, rename))

    def name(self, name: str) -> Name:
        return self.names.setdefault(name, Name())

    def entries(self) -> Iterator[tuple[str, Node]]:
        for name, entry in list(self.names.items()):
            if entry.current is not None:
                yield name, entry.current

    def sync(self) -> None:
        for entry in self.names.values():
            entry.sync()

    def decide(self, dice: Random) -> None:
        """Throws the dice for every name, here and below."""
        for entry in self.names.values():
            entry.keep(dice.randrange(entry.must_keep, len(entry.changes) + 1))
            nodes = [entry.durable, *[node for node, _ in entry.changes]]
            for node in dict.fromkeys(nodes):  # each once, in an order that repeats itself
                if isinstance(node, Folder):
                    node.decide(dice)

    def after_power_cut(self, copy_of: Callable[[Inode], Inode]) -> Folder:
        """What is left once `decide` has spoken; all of it is on the disk."""
        folder = Folder()
        for name, entry in self.names.items():
            node = entry.kept()
            if isinstance(node, Folder):
                folder.names[name] = Name(node.after_power_cut(copy_of))
            elif node is not None:
                folder.names[name] = Name(copy_of(node))
        return folder
