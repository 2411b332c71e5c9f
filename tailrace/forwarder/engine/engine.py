"""The loop: looks for files, reads a piece of each, saves, sends, handles verdicts.

All state belongs to this one thread. Others (senders, hints, signals) leave a call in its inbox and
wake it. A round reads for at most `_ROUND_SECONDS`, then saves and sends what it read.
`FileLifecycle` decides when a file and its run are done.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from tailrace.forwarder.delivery.targets import Verdict
from tailrace.forwarder.engine.identify import Identifier
from tailrace.forwarder.engine.reader import BLOCK, FileReader, Locator, Opener, Turn, flush_at
from tailrace.forwarder.engine.sending import DeliveryPort, Sending
from tailrace.forwarder.engine.state import EngineParts, SourceParts, Stillness, Tracked, folders_of
from tailrace.forwarder.engine.watch import Hints
from tailrace.forwarder.files.finder import look
from tailrace.forwarder.model import Stage
from tailrace.logstore.errors import TailraceError, Unavailable

# The end of a file: its run is closed, its loss counted, it is forgotten.


_STEP_SECONDS = 60.0


class FileLifecycle:
    """Looks at files that are not merely idle."""

    def __init__(self, shared: EngineParts, sending: Sending) -> None:
        self._shared = shared
        self._sending = sending
        self._wall_ahead = shared.clock.now_ms() / 1000 - shared.clock.monotonic()

    def review(self, file: Tracked, now: float) -> float:
        """Does the steps that are due for a file; returns the time of the next review."""
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
                        f"ALARM: {file.path} is gone, and its state is dropped: the service"
                        f" refused its content from byte {file.cursor.offset} on"
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
        """Counts bytes that were seen but are missing now, after all else is acknowledged."""
        lost = file.content_end - file.cursor.offset
        if lost > 0:
            file.content_end = file.cursor.offset
            self._shared.count_lost(file, lost)
            self._shared.say(
                f"{file.path}: its last {lost} bytes were removed before they were read"
            )

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


_ROUND_SECONDS = 0.05
_ROUND_BYTES = 4 << 20
_SOON_SECONDS = 0.01
_SCAN_SHARE = 10
_AT_ONCE = 2
_FORGET_SECONDS = 3600.0
_CHECK_SECONDS = 10.0
_REFUSED_SECONDS = 3600.0
STORAGE_RETRY_SECONDS = 1.0
# If names in a folder change all the time, a new file waits no longer than this for a quiet scan.
_UNSURE_SECONDS = 1.0


class ForwarderEngine:
    """Forwards the files of all sources until it is stopped.

    `hinted` are the names of the sources that the kernel tells of changes.
    """

    def __init__(
        self,
        shared: EngineParts,
        delivery: DeliveryPort,
        *,
        batch_bytes: int = BLOCK,
        memory_bytes: int = 16 << 20,
        hinted: Sequence[str] = (),
    ) -> None:
        self._shared = shared
        self._registry = shared.registry
        self._memory = memory_bytes
        opener = Opener(shared)
        self._locator = Locator(shared, opener)
        self._identifier = Identifier(shared, opener, self._locator)
        self._reader = FileReader(shared, opener, batch_bytes)
        self.sending = Sending(shared, delivery)
        self._lifecycle = FileLifecycle(shared, self.sending)
        self._inbox: deque[Callable[[], None]] = deque()
        self._bell = threading.Event()
        self._stopping = False
        self._turns = 0
        self._woken: list[Tracked] = []
        self._scan_at = dict.fromkeys(shared.sources, 0.0)
        self._scanned: set[str] = set()
        self._folders: dict[str, dict[str, int]] = {name: {} for name in shared.sources}
        self._resumed = {state.source for state in shared.checkpoints.files.values()}
        self._hinted = set(hinted)
        self._hints = Hints(self._hint_later, self._hints_missed, self._hints_failed)
        self._forget_at = 0.0
        self._check_at = 0.0
        self._refused_at = 0.0
        self._save_at = 0.0
        now_ms, now = shared.clock.now_ms(), shared.clock.monotonic()
        for state in shared.checkpoints.files.values():
            if state.source in shared.sources:
                file = Tracked.of(state, now_ms, now)
                self._registry.add(file)
                if not file.over:
                    shared.follow(file, resumes=True)

    def post(self, call: Callable[[], None]) -> None:
        """Runs `call` in the engine's thread, soon. For any thread."""
        self._inbox.append(call)
        self._bell.set()

    def stop(self) -> None:
        """Ends `run` at the next border of entries. For any thread, and for signal handlers."""
        self._stopping = True
        self._bell.set()

    def run(self) -> None:
        """Rounds until `stop`."""
        try:
            while not self._stopping:
                wait = self.round()
                if wait > 0 and not self._stopping:
                    self._bell.wait(min(wait, 3600.0))
                self._bell.clear()
        finally:
            self._hints.close()

    def drain(self, seconds: float) -> bool:
        """Waits until what is on its way is acknowledged; False if it was not in time."""
        until = self._shared.clock.monotonic() + seconds
        while True:
            self._take_calls()
            self._flush()
            left = until - self._shared.clock.monotonic()
            if not self._on_the_way() or left <= 0:
                return not self._on_the_way()
            self._bell.wait(left)
            self._bell.clear()

    def round(self) -> float:
        """One round; seconds until the next is due, 0 if there is more to do now."""
        self._take_calls()
        now = self._shared.clock.monotonic()
        while self._shared.rescan:
            self._scan_soon(self._shared.rescan.pop())
        for name, source in self._shared.sources.items():
            if self._scan_at[name] <= now:
                self._scan(name, source)
        if now >= self._forget_at:
            self._lifecycle.forget()
            self._forget_at = now + _FORGET_SECONDS
        if now >= self._check_at:  # a sync notices that the checkpoints were taken away
            self.sending.sync_at = min(self.sending.sync_at, now)
            self._check_at = now + _CHECK_SECONDS
        if now >= self._refused_at:
            for file in self._registry.files.values():
                if file.stage == "failed":
                    self.sending.try_again(file)
            self._refused_at = now + _REFUSED_SECONDS
        more = False
        if self._save_at <= now:
            more = self._take_turns()
        self._flush()
        return 0.0 if more or self._inbox or self._shared.rescan else self._review()

    def _take_calls(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _scan(self, name: str, source: SourceParts) -> None:
        began = self._shared.clock.monotonic()
        if name in self._hinted:
            self._watch()  # before the scan: what comes in between is hinted
        first = name not in self._scanned
        folders = source.folders() if first else self._folders[name]
        still = Stillness(folders, self._shared.clock.now_ms())
        found = source.finder.find()
        archives = source.finder.find_archives(source.archives, found) if source.archives else []
        if first and not found:
            self._shared.say(f"{name}: no files match the include patterns yet")
        decided = self._identifier.reconcile(
            source, found, archives, first=first and name not in self._resumed
        )
        self._scanned.add(name)
        self._folders[name] = folders_of([*found, *archives])
        sure = decided and still.holds(self._folders[name])
        self._shared.quiet[name] = still.quiet(self._folders[name]) if decided else {}
        ended = self._shared.clock.monotonic()
        tally = self._shared.tallies[name]
        tally.scans += 1
        tally.scan_seconds += ended - began
        tally.matched_files = len(found)
        config = source.config
        pause = config.reconcile_interval if name in self._hinted else config.poll_interval
        self._scan_at[name] = ended + max(pause, (ended - began) * 2)
        awake = [file for file in self._registry.awake.values() if file.source == name]
        if sure:
            for file in awake:
                file.unsure_since = None
                if not self._shared.copy_grows(file):
                    file.forget_recent()
        elif any(file.unsure_since is not None for file in awake):
            self._scan_soon(name)

    def _take_turns(self) -> bool:
        """Reads from files that have something; True if there is more to read now."""
        now = self._shared.clock.monotonic()
        until, most = now + _ROUND_SECONDS, self.sending.bytes + _ROUND_BYTES
        ready = self._ready(now)
        more = bool(self._woken)
        self._woken.clear()
        few = False
        for file in ready:
            if file.heavy and few:  # a line does not wait for blocks that are read behind it
                self._flush()
                few = False
            if len(file.pending) >= _AT_ONCE or not self._has_room(file):
                if self._reader.glance(file):
                    self.sending.changed(file)
                continue  # an acknowledgement makes room, and rings the bell
            if self._shared.clock.monotonic() >= until or self.sending.bytes >= most:
                return True
            self._turns += 1
            file.turned = self._turns
            few |= not file.heavy
            more |= self._turn(file)
        return more

    def _ready(self, now: float) -> list[Tracked]:
        ready = [
            file
            for file in list(self._registry.awake.values())  # a predecessor may wake
            if file.dirty
            and not file.lost_sight
            and file.stage != "failed"
            and file.retry_at <= now
            and self._may_begin(file, now)
        ]
        ready.sort(key=self._precedence)
        return ready

    def _precedence(self, file: Tracked) -> tuple[bool, int]:
        if self._shared.sources[file.source].config.order == "oldest":
            return False, file.mtime_ns
        return file.heavy, file.turned

    def _has_room(self, file: Tracked) -> bool:
        most = self._memory if not file.heavy else self._memory * 3 // 4
        return self.sending.bytes < most

    def _may_begin(self, file: Tracked, now: float) -> bool:
        """Returns whether everything that precedes this file is acknowledged."""
        since = file.unsure_since
        if since is not None and file.unbegun and now - since < _UNSURE_SECONDS:
            return False
        before = file.predecessor
        if before is None:
            return True
        if not before.awaited or before.id not in self._registry.files:
            file.predecessor = None
            return True
        if not file.fingerprint:
            return True  # an empty file is at its end; its first bytes make it wait again
        if not before.fingerprint and before.predecessor is not None:
            file.predecessor = before.predecessor  # an empty file is done, what it waits for is not
            return False
        if file.waits_since is None:
            file.waits_since = now
            before.wake()  # it is read to its end once more, now that its successor has begun
            self._woken.append(before)
        wait = self._shared.sources[file.source].config.rotate_wait
        # A file that waits itself is not tried, whatever came of it before.
        failing = before.retry_at > now and before.predecessor is None
        unreadable = failing and now - file.waits_since > wait
        if unreadable or (before.caught_up and before.ended_at >= file.waits_since):
            file.predecessor = None
            return True
        return False

    def _turn(self, file: Tracked) -> bool:
        turn = self._reader.turn(file)
        if turn is Turn.PREPARED:
            pending = file.pending[-1]
            file.heavy = pending.prepared.end.offset - pending.prepared.start.offset >= BLOCK // 2
            file.retry_at = 0.0
            self.sending.prepared(file)
            return True
        if turn is Turn.REPLACED:
            self._identifier.split(file)
            self._scan_soon(file.source)
            return True
        if turn is Turn.FIRST:
            self._identifier.first_bytes(file)
            self._scan_soon(file.source)
            return True
        if turn is Turn.MOVED:
            self._moved(file)
            return False
        if turn is Turn.LATER:
            return False
        file.heavy = False
        file.retry_at = 0.0
        return True  # a successor may begin now

    def _moved(self, file: Tracked) -> None:
        """Its path leads elsewhere, and nobody holds it open."""
        self._locator.lose(file)
        if not self._locator.find(file):
            self._scan_soon(file.source)

    def _review(self) -> float:
        """Looks at every file that is not idle; seconds until something is due."""
        now = self._shared.clock.monotonic()
        # While the disk refuses, what is due to be synced waits for the next attempt.
        saved_at = max(self.sending.sync_at, self._save_at)
        due = min([*self._scan_at.values(), saved_at, self._refused_at])
        if self._save_at > now:
            due = min(due, self._save_at)
        for file in list(self._registry.awake.values()):
            if self._lifecycle.idle(file):
                del self._registry.awake[file.id]
                continue
            due = min(due, self._lifecycle.review(file, now))
            if file.retry_at > now:
                due = min(due, file.retry_at)
        self._flush()
        return max(due - self._shared.clock.monotonic(), 0.0)

    def _flush(self) -> None:
        """Saves and sends. If the disk refuses, nothing is read until it does not."""
        now = self._shared.clock.monotonic()
        if self._save_at > now:
            return
        try:
            self.sending.flush()
        except Unavailable as error:
            self._say_unsaved(error)
            self._save_at = now + STORAGE_RETRY_SECONDS
        else:
            self._save_at = 0.0

    def _say_unsaved(self, error: TailraceError) -> None:
        if self._save_at == 0.0:
            self._shared.say(f"reading stops until the checkpoints can be saved: {error}")

    def _on_the_way(self) -> bool:
        return self.sending.flying > 0

    def _watch(self) -> None:
        folders: set[str] = set()
        for name in self._hinted:
            folders |= self._shared.sources[name].folders()
        self._hints.watch({folder for folder in folders if folder})

    def _hint_later(self, paths: set[str]) -> None:
        self.post(lambda: self._hint(paths))

    def _hint(self, paths: set[str]) -> None:
        now = self._shared.clock.monotonic()
        for path in paths:
            for name in self._hinted:
                file = self._registry.at_path(name, path)
                try:
                    found = look(path) if file is not None else None
                except OSError:
                    found = None
                if file is None and not self._shared.sources[name].leads(path):
                    continue  # another file in a folder that is watched, such as /tmp
                if file is None or found is None or found.place != file.place:
                    self._scan_soon(name)
                else:
                    file.saw(found, now)

    def _hints_missed(self) -> None:
        """More happened than the kernel keeps: everything is looked at."""

        def scan() -> None:
            for name in self._hinted:
                self._scan_soon(name)

        self.post(scan)

    def _hints_failed(self, error: OSError) -> None:
        """The kernel watches no more: everything is polled from now on."""

        def poll() -> None:
            if self._hinted:
                self._shared.say(f"files are polled, since watching them failed: {error}")
            self._hinted.clear()
            for name in self._scan_at:
                self._scan_at[name] = 0.0

        self.post(poll)

    def _scan_soon(self, name: str) -> None:
        tally = self._shared.tallies[name]
        usual = tally.scan_seconds / tally.scans if tally.scans else 0.0
        pause = max(_SOON_SECONDS, usual * _SCAN_SHARE)
        soon = self._shared.clock.monotonic() + pause
        self._scan_at[name] = min(self._scan_at[name], soon)

    def on_verdict(self, file: str, verdict: Verdict) -> None:
        """Takes the verdict of a request for a file. For any thread."""

        def run() -> None:
            if verdict.kind in ("renew", "deleted") and verdict.service_ms is not None:
                self._shared.correct(verdict.service_ms)
            tracked = self._registry.files.get(file)
            if tracked is not None:
                tracked.awake[tracked.id] = tracked
                self.sending.judged(tracked, verdict)

        self.post(run)
