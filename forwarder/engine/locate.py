"""Searches for contents that are not where they were: renamed, compressed, or truncated away.

A file's own folder and the globs of `archive_include` are searched, outside of the source's
patterns too. A candidate is the file if it holds what was read of it. Files that are not compressed
come first: while an archive is being written, its original is still there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from forwarder.engine.opening import Opener
from forwarder.engine.parts import Shared
from forwarder.engine.tracked import NOWHERE, Tracked
from forwarder.files.content import Content
from forwarder.files.family import is_archive
from forwarder.files.finder import Found, look
from forwarder.files.handles import NoHandle
from forwarder.files.identity import Known, find_end, holds, read_window, window_of
from logstore.errors import Damaged


class Locator:
    """Finds and moves files whose content is elsewhere."""

    def __init__(self, shared: Shared, opener: Opener) -> None:
        self._shared = shared
        self._registry = shared.registry
        self._opener = opener

    def lose(self, file: Tracked) -> None:
        """The file's content is not where it was. It is searched for `rotate_wait` from now on."""
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        self._registry.leave_place(file)
        self._shared.change(file)
        file.matched = False
        file.lost_sight = True
        file.wake()
        file.rotated_at = self._shared.clock.monotonic()

    def find(self, file: Tracked) -> bool:
        """Searches the content; True if the file has a place again."""
        if not file.fingerprint:
            return False
        for found in self._candidates(file):
            key = (*found.place, found.size, found.mtime_ns)
            if key in file.examined:
                continue
            verdict = self._holds(found, file)
            if verdict:
                self.take_over(file, found)
                return True
            if verdict is False:
                file.examined.add(key)
        return False

    def find_longer(self, file: Tracked, end: int) -> Found | None:
        """Another file that holds what was read of it, and goes on behind `end`."""
        known = replace(file.known, least=max(file.known.least, end + 1))
        for found in self._candidates(file):
            if found.place != file.place and self._holds(found, file, known):
                return found
        return None

    def pass_on(self, file: Tracked) -> None:
        """A file that is done has vanished: a copy that is still there is known by it."""
        for shadow in self._registry.shadows_of(file):
            found = _again(shadow.found)
            if found is not None and self._holds(found, file):
                self.take_over(file, found)
                return
        file.lost_sight = True  # the next scan compares its shorter copies with what was read

    def still(self, file: Tracked) -> bool:
        """Whether the file is where a search found it."""
        if file.lost_sight:
            return False
        try:
            found = look(file.path)
        except OSError:
            return True  # it cannot be seen: the next attempt to read it says so
        if found is None or found.place != file.place:
            file.lost_sight = True
            file.rotated_at = self._shared.clock.monotonic()
            return False
        file.saw(found, self._shared.clock.monotonic())
        return True

    def take_over(self, file: Tracked, found: Found) -> None:
        """The content of `file` is there now."""
        now = self._shared.clock.monotonic()
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        if file.place not in (NOWHERE, found.place):
            self._shared.rescan.add(file.source)  # what it left may have another content by now
        if found.path == file.named:
            file.rotated_at = None
        elif file.path != found.path and file.rotated_at is None:
            file.rotated_at = now
        self._registry.move(file, found)
        file.saw(found, now)
        file.wake()
        file.retry_at = 0.0
        file.examined.clear()
        self._shared.change(file)
        if file.stage in ("done", "gone"):
            file.stage = "rotated"

    def take_over_left(self, file: Tracked, found: Found, content: Content) -> None:
        """Only the beginning of `file` is left, there: it ends where `content` does."""
        end = find_end(content)
        window = window_of(read_window(content, end), end)
        if end <= file.read.offset:
            file.cut = window
        else:
            file.window = window if file.unbegun else file.window
            before, file.fingerprint = file.fingerprint, file.fingerprint[:end]
            self._registry.index(file, before)
            lost, file.content_end = max(file.content_end - end, 0), end
            if lost:
                self._shared.count_lost(file, lost)
                self._shared.say(
                    f"{file.path}: its last {lost} bytes are gone, and nobody read them"
                )
        self.take_over(file, found)

    def _candidates(self, file: Tracked) -> Iterator[Found]:
        shadows = [shadow.found for shadow in self._registry.shadows_of(file)]
        others: dict[tuple[int, int], Found] = {}
        for path in self._paths(file):
            try:
                found = look(path)
            except OSError:
                continue
            if found is not None and found.size and self._free(file, found):
                others.setdefault(found.place, found)
        shadows.sort(key=lambda each: is_archive(each.path))
        yield from (found for each in shadows if (found := _again(each)) is not None)
        first = others.pop(file.place, None)
        if first is not None:
            yield first
        yield from sorted(others.values(), key=lambda each: (is_archive(each.path), -each.mtime_ns))

    def _free(self, file: Tracked, found: Found) -> bool:
        """Whether no other file is known to be there."""
        there = self._registry.at_place(file.source, found.place)
        if there is None or there is file:
            return True
        if there.matched or there.handle is not None or self._holds(found, there) is not False:
            return False
        self._registry.leave_place(there)  # it is gone, and its inode is used again
        there.lost_sight = True
        return True

    def _paths(self, file: Tracked) -> Iterator[str]:
        folder = os.path.dirname(file.path) or "."
        try:
            with os.scandir(folder) as entries:
                yield from sorted(entry.path for entry in entries if entry.is_file())
        except OSError:
            pass  # the folder is gone; whatever else is wrong with it, the finder says
        for glob in self._shared.sources[file.source].archives:
            yield from glob.find(lambda _path, _error: None)

    def _holds(self, found: Found, file: Tracked, known: Known | None = None) -> bool | None:
        """Whether it holds what was read of the file, or is `known` of it.

        None if that cannot be told now.
        """
        try:
            source = self._shared.sources[file.source]
            handle, content = self._opener.transient(found.path, source)
        except (OSError, NoHandle):
            return None
        try:
            if content is None or (handle.device, handle.inode) != found.place:
                return None
            return holds(content, known or file.known)
        except Damaged:
            return False
        except OSError:
            return None
        finally:
            self._shared.handles.close(handle)


def _again(found: Found) -> Found | None:
    """The file as it is now, if it is still there."""
    try:
        now = look(found.path)
    except OSError:
        return None
    return now if now is not None and now.place == found.place else None
