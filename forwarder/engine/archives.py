"""Rotated files outside of a source's patterns: where they were written, and which are old.

`archive_include` matches them. They are scanned with the files of the source, so a generation that
was rotated while the forwarder was stopped is found as a new file, and read before its successors.
Its lines belong to the run of the path where it was written.

An archive is old, and is not read, if it was there when the source began:

| the source | old are |
| --- | --- |
| was never read, `start_at: end` | all archives |
| was never read, `start_at: beginning` | none |
| was read without its archives | those that are not newer than what is known of their log |
| was read with its archives | none: all that were there are known by their content |
"""

from __future__ import annotations

import os

from forwarder.engine.parts import Shared, SourceParts
from forwarder.engine.registry import Registry
from forwarder.files.content import find_format
from forwarder.files.family import family, written_names
from forwarder.files.finder import Found


class Archives:
    """What is known of the archives of all sources. Made before the first scan."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._registry: Registry = shared.registry
        self._said: set[str] = set()
        self._seen_ms: dict[str, dict[tuple[str, str], int]] = {}
        """By source and log, when it was seen last before this start."""
        latest: dict[str, tuple[int, bool]] = {}
        for state in shared.checkpoints.files.values():
            logs = self._seen_ms.setdefault(state.source, {})
            log = family(state.named or state.path)
            logs[log] = max(logs.get(log, 0), state.seen_ms)
            mine = state.seen_ms, state.archives
            latest[state.source] = max(latest.get(state.source, mine), mine)
        shared.with_archives.update(name for name, (_, archives) in latest.items() if archives)

    def written_path(self, source: SourceParts, path: str) -> str:
        """The path of the source at which a rotated file was written; if none fits, its own."""
        if source.finder.matches(path):
            return path
        folder, name = os.path.split(path)
        names = list(written_names(name))
        for each in names:
            if source.finder.matches(there := os.path.join(folder, each)):
                return there
        known = {
            os.path.basename(file.named): file.named
            for file in self._registry.of_source(source.config.name)
            if source.finder.matches(file.named)
        }
        return next((known[each] for each in names if each in known), path)

    def is_old(self, source: SourceParts, found: Found) -> bool:
        """Whether an archive that is not known by its content was read, or is not to be read."""
        name = source.config.name
        logs = self._seen_ms.get(name)
        if logs is None or name in self._shared.with_archives:
            return False
        log = family(self.written_path(source, found.path))
        return found.mtime_ns <= logs.get(log, max(logs.values())) * 1_000_000

    def is_readable(self, source: SourceParts, found: Found, descriptor: int) -> bool:
        """Whether the source can decompress an archive; said once, if it cannot."""
        format_ = find_format(descriptor)
        if format_ == "" or (source.compression and format_ in ("gzip", "zstd")):
            return True
        if found.path not in self._said:
            self._said.add(found.path)
            self._shared.say(
                f"{found.path} is not read: it is compressed with {format_}, and the source reads"
                f" {'gzip and zstd' if source.compression else 'files as they are'}"
            )
        return False
