"""All files that are known, and how one is found again: by its place, its path, its content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forwarder.engine.tracked import NOWHERE, Tracked
from forwarder.files.finder import Found

_KEY = 16


@dataclass(frozen=True, slots=True)
class Shadow:
    """A file that holds what another holds, or the beginning of it, and is not read itself."""

    found: Found
    of: Tracked
    end: int
    """Of its content."""


class Registry:
    """The files of all sources. A place, device and inode, has one file; a path one at most."""

    def __init__(self) -> None:
        self.files: dict[str, Tracked] = {}
        self.awake: dict[str, Tracked] = {}
        self.shadows: dict[tuple[str, int, int], Shadow] = {}
        self._places: dict[tuple[str, int, int], Tracked] = {}
        self._paths: dict[tuple[str, str], Tracked] = {}
        self._contents: dict[tuple[str, bytes], dict[str, Tracked]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def add(self, file: Tracked) -> None:
        """A file that is known from now on."""
        self.files[file.id] = file
        file.awake = self.awake
        self.awake[file.id] = file
        if file.place != NOWHERE:
            self._places.setdefault((file.source, *file.place), file)
        if not file.over:
            self._paths.setdefault((file.source, file.path), file)
        self.index(file, b"")

    def remove(self, file: Tracked) -> None:
        """Nothing is known of it any more."""
        self.files.pop(file.id, None)
        self.awake.pop(file.id, None)
        self.leave_place(file)
        for key in [key for key, each in self._paths.items() if each is file]:
            del self._paths[key]
        self._bucket(file.source, file.fingerprint).pop(file.id, None)

    def at_place(self, source: str, place: tuple[int, int]) -> Tracked | None:
        """The file that has this device and inode."""
        return self._places.get((source, *place))

    def at_path(self, source: str, path: str) -> Tracked | None:
        """The file that was seen last under this path, wherever it is now."""
        return self._paths.get((source, path))

    def move(self, file: Tracked, found: Found) -> None:
        """The file is there now."""
        if file.place != found.place:
            self.leave_place(file)
            file.place = found.place
        self._places[file.source, *file.place] = file
        file.path = found.path
        self._paths[file.source, file.path] = file
        self.shadows.pop((file.source, *found.place), None)
        file.lost_sight = False

    def leave_place(self, file: Tracked) -> None:
        """The file's content is not there any more."""
        key = (file.source, *file.place)
        if self._places.get(key) is file:
            del self._places[key]
        file.place = NOWHERE

    def index(self, file: Tracked, before: bytes) -> None:
        """Its fingerprint is not `before` any more."""
        if before[:_KEY] != file.fingerprint[:_KEY]:
            self._bucket(file.source, before).pop(file.id, None)
        self._bucket(file.source, file.fingerprint)[file.id] = file

    def similar(self, source: str, fingerprint: bytes) -> list[Tracked]:
        """Files of which one fingerprint begins with the other. None has an empty one."""
        if len(fingerprint) >= _KEY:
            near = list(self._bucket(source, fingerprint).values())
            near += [each for each in self._short(source) if each not in near]
        else:
            near = [each for each in self.files.values() if each.source == source]
        return [
            each
            for each in near
            if each.fingerprint
            and fingerprint[: len(each.fingerprint)] == each.fingerprint[: len(fingerprint)]
        ]

    def of_source(self, source: str) -> list[Tracked]:
        """All files of a source."""
        return [file for file in self.files.values() if file.source == source]

    def of_run(self, fqn: str, run: str) -> Iterator[Tracked]:
        """All files whose lines are in a run."""
        return (file for file in self.files.values() if file.run == run and file.fqn == fqn)

    def shadows_of(self, file: Tracked) -> list[Shadow]:
        """The files that hold what it holds."""
        return [shadow for shadow in self.shadows.values() if shadow.of is file]

    def _bucket(self, source: str, fingerprint: bytes) -> dict[str, Tracked]:
        key = fingerprint[:_KEY] if len(fingerprint) >= _KEY else b""
        return self._contents.setdefault((source, key), {})

    def _short(self, source: str) -> Iterator[Tracked]:
        return iter(self._contents.get((source, b""), {}).values())
