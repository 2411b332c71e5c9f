"""When a file is done, and what follows: its run is closed, its loss counted, it is forgotten."""

from __future__ import annotations

import os
from math import inf

from forwarder.engine.parts import Shared, SourceParts
from forwarder.engine.reading import flush_at
from forwarder.engine.sending import Sending
from forwarder.engine.tracked import Tracked
from forwarder.files.finder import look
from forwarder.model import Stage

_STEP_SECONDS = 60.0


class Lifecycle:
    """Looks at files that are not merely idle."""

    def __init__(self, shared: Shared, sending: Sending) -> None:
        self._shared = shared
        self._sending = sending
        self._wall_ahead = shared.clock.now_ms() / 1000 - shared.clock.monotonic()

    def review(self, file: Tracked, now: float) -> float:
        """Does what is due for a file; the time at which it is to be looked at again."""
        if file.over:
            return inf
        source = self._shared.sources[file.source]
        if file.lost_sight:
            return self._review_lost(source, file, now)
        if file.partial and not file.dirty:
            due = flush_at(source, file)
            if due > now:
                return due
            file.wake()
            return now
        if not file.caught_up:
            return inf  # a turn or an acknowledgement comes first
        return self._review_caught_up(source, file, now)

    def idle(self, file: Tracked) -> bool:
        """Whether nothing happens to the file until somebody sees that it changed."""
        if file.over:
            return file.settled and not file.dirty
        source = self._shared.sources[file.source]
        config = source.config
        leaves = file.rotated_at is not None or (config.delete_after_read and file.read.offset > 0)
        watched = leaves or config.close_after > 0
        return file.caught_up and not watched and not file.lost_sight

    def forget(self) -> None:
        """Forgets files that are gone for `forget_after`.

        A wall clock that is set makes no file older: while this process runs, times are those of
        the monotonic clock, and the log is written anew by the clock as it is set.
        """
        now = self._shared.clock.monotonic()
        ahead = self._shared.clock.now_ms() / 1000 - now
        if abs(ahead - self._wall_ahead) > _STEP_SECONDS:
            self._wall_ahead = ahead
            for file in self._shared.registry.files.values():
                self._sending.changed(file)
        for file in list(self._shared.registry.files.values()):
            source = self._shared.sources.get(file.source)
            after = source.config.forget_after if source is not None else inf
            if not file.matched and file.over and now - file.seen_at > after:
                if file.stage == "failed":
                    self._shared.say(
                        f"ALARM: {file.path} is gone and forgotten: the service refused what it"
                        f" held from byte {file.cursor.offset} on"
                    )
                self._shared.registry.remove(file)
                self._shared.changed.pop(file.id, None)
                self._shared.checkpoints.forget(file.id)
                self._shared.unsaved = True

    def _review_lost(self, source: SourceParts, file: Tracked, now: float) -> float:
        if file.rotated_at is None:
            file.rotated_at = now
        due = file.rotated_at + source.config.rotate_wait
        if due > now:
            return due
        if file.resend:
            self._sending.ask_for(file)
            return inf
        if file.pending:
            return inf
        self._count_rest(file)
        self._finish(file, "gone")
        return inf

    def _count_rest(self, file: Tracked) -> None:
        """What was seen of a file and is nowhere any more, when all else of it is acknowledged."""
        lost = file.content_end - file.cursor.offset
        if lost > 0:
            file.content_end = file.cursor.offset
            self._shared.count_lost(file, lost)
            self._shared.say(f"{file.path}: its last {lost} bytes are gone, and nobody read them")

    def _review_caught_up(self, source: SourceParts, file: Tracked, now: float) -> float:
        config = source.config
        if config.delete_after_read and file.matched and not file.archived and file.read.offset:
            return self._delete(file)
        if file.rotated_at is not None:
            due = max(file.grown_at, file.rotated_at) + config.rotate_wait
            if due > now:
                return due
            self._count_rest(file)
            self._finish(file, "done" if self._named(file) else "gone")
        elif config.close_after > 0:
            due = file.grown_at + config.close_after
            if due > now:
                return due
            self._finish(file, "done")
        return inf

    def _delete(self, file: Tracked) -> float:
        """Removes a file that was read and acknowledged, unless it changed meanwhile."""
        try:
            there = look(file.path)
            if there is None or there.place != file.place:
                return inf
            if (there.size, there.mtime_ns) != (file.size, file.mtime_ns):
                file.saw(there, self._shared.clock.monotonic())
                return inf
            os.unlink(file.path)
        except OSError as error:
            self._shared.say(f"{file.path} cannot be deleted: {error.strerror}; it stays")
            self._finish(file, "done")
            return inf
        self._shared.registry.leave_place(file)
        file.matched = False
        self._finish(file, "gone")
        return inf

    def _named(self, file: Tracked) -> bool:
        """Whether the file still has a name."""
        if file.matched or file.handle is None:
            return file.matched
        return os.fstat(file.handle.descriptor).st_nlink > 0

    def _finish(self, file: Tracked, stage: Stage) -> None:
        file.stage = stage
        if file.showing:
            file.showing = b""
            self._shared.show(file.fqn, file.run, file.id, b"")
        file.seen_at = self._shared.clock.monotonic()
        if file.handle is not None and not file.matched:
            self._shared.handles.close(file.handle)
        if stage == "gone" and not file.lost_sight:
            self._shared.registry.leave_place(file)
            file.lost_sight = True
            self._shared.rescan.add(file.source)  # a copy that was not read is what is left of it
        self._sending.changed(file)
        together = list(self._shared.registry.of_run(file.fqn, file.run))
        if any(not each.over for each in together) or file.closed:
            return
        reports = self._shared.reports
        started = None if reports is None else reports.end(file.fqn, file.run)
        if started is not None or any(each.cursor.records for each in together):
            written = max(each.written_ns for each in together)
            self._sending.close_run(file, started or 0, written)
