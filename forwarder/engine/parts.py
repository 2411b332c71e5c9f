"""What the engine works with: its sources, the parts that others made, and what it counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forwarder.config.source import Source
from forwarder.engine.registry import Registry
from forwarder.engine.stillness import unchanged
from forwarder.engine.tracked import Tracked
from forwarder.entries.overwritten import Rest
from forwarder.files.finder import Finder
from forwarder.files.globs import Glob
from forwarder.files.handles import Handles
from forwarder.files.links import Confines
from forwarder.model import Cursor, FileFacts, FileState, Packed


class Packer(Protocol):
    """Makes the body of a batch of a range of a file's content."""

    longest: int

    def pack(
        self, data: bytes, start: Cursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """The first entries of `data`; None if none is complete."""
        ...

    def rest(self, data: bytes, start: Cursor) -> Rest:
        """The unfinished end of `data`, which has no complete entry."""
        ...


class Checkpoints(Protocol):
    """The log of file states; see `forwarder.checkpoints`."""

    @property
    def files(self) -> Mapping[str, FileState]: ...

    def put(self, state: FileState) -> None: ...

    def forget(self, id: str) -> None: ...  # noqa: A002 -- the field's own name

    def sync(self) -> None: ...

    def close(self) -> None: ...


class RunReports(Protocol):
    """Says of runs that they began, and that their files are followed; see `followed_runs`."""

    def begin(self, fqn: str, run: str, *, resumes: bool) -> None: ...

    def heard(self, fqn: str, run: str) -> None: ...

    def end(self, fqn: str, run: str) -> int | None: ...


class Clock(Protocol):
    """Wall time in milliseconds, and seconds that never step backwards."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SourceParts:
    """A source with what finds, names and packs its files.

    `name(path, id)` gives the fqn and the run of a file's lines, `facts(path)` what its records say
    of the file.
    """

    config: Source
    finder: Finder
    archives: tuple[Glob, ...]
    packer: Packer
    name: Callable[[str, str], tuple[str, str]]
    facts: Callable[[str], FileFacts]
    confines: Confines

    def leads(self, path: str) -> bool:
        """Whether a path is of the source or its archives, or a folder in which such may be."""
        return self.finder.leads(path) or any(glob.leads(path) for glob in self.archives)

    def folders(self) -> set[str]:
        """The folders in which something new can be of interest, those that exist."""
        found = self.finder.folders()
        for glob in self.archives:
            found.update(glob.folders(lambda _path, _error: None))
        return found

    @property
    def compression(self) -> bool:
        """Whether a file's first bytes say if it is compressed."""
        return self.config.compression != "" or self.config.encoding != "nop"


@dataclass(slots=True)
class Tally:
    """What happened to the files of a source. Numbers only grow."""

    lost_bytes: int = 0
    """Seen in a file, and gone before they were read."""
    duplicate_files: int = 0
    """Files that held what another holds, and were not read."""
    truncations: int = 0
    rotations: int = 0
    open_errors: int = 0
    damaged: int = 0
    """Compressed files that were not what was written."""
    scans: int = 0
    scan_seconds: float = 0.0
    matched_files: int = 0
    acknowledged_bytes: int = 0
    acknowledged_records: int = 0
    duplicate_batches: int = 0
    """Batches that the service had already: an answer or this process was lost."""
    dropped_records: int = 0
    """Their run was deleted."""
    failed_files: int = 0
    """Files that were stopped because the service refuses a batch of theirs for ever."""
    replaced: int = 0
    truncated: int = 0
    unparsed: int = 0


@dataclass(slots=True)
class Shared:
    """What all parts of the engine use."""

    sources: Mapping[str, SourceParts]
    registry: Registry
    handles: Handles
    checkpoints: Checkpoints
    clock: Clock
    mint: Callable[[], str]
    correct: Callable[[int], None]
    """Takes the service's time, in ms, where this machine's is wrong: later ids go by it."""
    say: Callable[[str], None]
    show: Callable[[str, str, str, bytes], None] = lambda *_: None
    """Shows the last line of a file, by fqn, run and id, while it is not finished."""
    reports: RunReports | None = None
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    rescan: set[str] = field(default_factory=set)
    """Sources that are to be scanned again, soon."""
    changed: dict[str, Tracked] = field(default_factory=dict)
    """Files whose state is to be put into the checkpoint log."""
    unsaved: bool = False
    """What changed is to be synced at once."""
    with_archives: set[str] = field(default_factory=set)
    """Sources of which all archives are known."""
    quiet: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """By source, the folders of its last scan and when they were changed before it."""

    def follow(self, file: Tracked, *, resumes: bool = False) -> None:
        """The file's run is to be reported, as far as it is known."""
        source = self.sources[file.source]
        if self.reports is None or not source.config.report_runs:
            return
        named = bool(file.fingerprint) or source.name(file.named, "-") == (file.fqn, file.run)
        if named:  # else the first bytes of the file decide which run it is
            self.reports.begin(file.fqn, file.run, resumes=resumes)

    def change(self, file: Tracked) -> None:
        """The file's state is to be saved."""
        self.changed[file.id] = file

    def count_lost(self, file: Tracked, size: int) -> None:
        """Counts bytes of a file that are gone and that nobody read.

        It is synced at once, so that the next process does not count them again.
        """
        file.lost += size
        self.tallies[file.source].lost_bytes += size
        self.change(file)
        self.unsaved = True

    def copy_grows(self, file: Tracked) -> bool:
        """Whether a copy of the file was seen to be new or to grow a short time ago.

        It may grow further, which changes no folder.
        """
        wait = self.sources[file.source].config.rotate_wait
        return self.clock.monotonic() - file.copied_at < wait

    def may_have_copies(self, file: Tracked) -> bool:
        """Whether there may be a copy of the file that no scan has seen as it is now.

        Asked behind a read: if not, every such copy has what was read. It is so while a copy was
        seen to grow a short time ago, and where a folder was changed since the last scan.
        """
        if self.copy_grows(file):
            return True
        return not unchanged(self.quiet.get(file.source, {}), os.path.dirname(file.path))
