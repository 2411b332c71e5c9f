"""Takes objects back to a checkpoint, whatever was done to them since.

    {prefix}{number}-{ULID}.json    what is about to be done since checkpoint `number`: an object
                                    {"objects": {key: size}}, where size 0 is one that is not there

    {prefix without its /}.saved.json   the newest checkpoint that is known to be saved:
                                    {"saved": number}. A start with an older one is refused

It is in the store before what it speaks of is done. Whoever starts undoes all from the saved
number on, the newest first: an object that was not there is deleted, one that grew is put together
from its beginning. Undoing may break off and begin again.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.checked import decode_checked, encode_checked
from logstore.clock import SystemClock, system_entropy
from logstore.errors import NotFound
from logstore.objects.store import Part
from logstore.ulid import fresh_text
from pipelines.appenders.contract import AppenderFailed
from pipelines.appenders.rolling.objects import Objects
from pipelines.appenders.rolling.undo import hint_to_begin, older_checkpoint


class UndoObjects:
    """The notes of one writer of objects. Calls raise as the store."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._mark = f"{prefix.removesuffix('/')}.saved.json"
        self._grew = False  # since it was saved last
        self._noted: set[str] = set()
        self._number = 0

    def start(self, number: int) -> None:
        """Takes the objects back to the checkpoint that saved `number`; 0: there was none.

        Raises `AppenderFailed` if a later one was saved for them.
        """
        newest = self._newest_saved()
        if newest > number:
            raise AppenderFailed(older_checkpoint(number, newest), hint=hint_to_begin(self._mark))
        notes = self._notes()
        for name, one in reversed(notes):
            if one >= number:
                self._undo(name)
        self._number = max([number, *[one for _, one in notes]]) + 1
        self._remove([name for name, _ in notes])

    def note(self, sizes: Mapping[str, int]) -> None:
        """Writes down how large objects are before they grow, once after each checkpoint."""
        new = {key: size for key, size in sizes.items() if key not in self._noted}
        if not new:
            return
        ulid = fresh_text(SystemClock(), system_entropy())
        body = encode_checked({"objects": new})
        name = f"{self._prefix}{self._number:012d}-{ulid}.json"
        self._objects.call(lambda store: store.put(name, body, if_absent=True))
        self._noted.update(new)

    def prepare(self) -> int:
        """The number that is to be saved. All objects are written already."""
        self._number += 1
        self._grew = self._grew or bool(self._noted)
        self._noted = set()
        return self._number

    def saved(self) -> None:
        """The number of the last `prepare` is saved: nobody goes back behind it."""
        if self._grew:
            mark = encode_checked({"saved": self._number})
            self._objects.call(lambda store: store.put(self._mark, mark))
            self._grew = False
        self._remove([name for name, one in self._notes() if one < self._number])

    def _newest_saved(self) -> int:
        """The newest checkpoint that is known to be saved, or 0."""
        try:
            body = self._objects.call(lambda store: store.get(self._mark))[1]
        except NotFound:
            return 0
        return int(decode_checked(body)["saved"])

    def _notes(self) -> list[tuple[str, int]]:
        """The notes with their numbers, oldest first."""
        names = [one.key for one in self._objects.list(self._prefix)]
        return [(name, int(name[len(self._prefix) :].partition("-")[0])) for name in names]

    def _undo(self, name: str) -> None:
        body = self._objects.call(lambda store: store.get(name))[1]
        for key, size in decode_checked(body)["objects"].items():
            if size == 0:
                self._objects.call(lambda store, key=key: store.delete([key]))  # type: ignore[misc]
            else:
                self.cut(key, int(size))

    def cut(self, key: str, size: int) -> None:
        """Takes one object back to its beginning, if it is longer."""
        try:
            found = self._objects.call(lambda store: store.head(key))
        except NotFound:
            return
        if found.size > size:
            part, etag = Part(key, 0, size), found.etag
            self._objects.call(lambda store: store.compose(key, [part], if_match=etag))

    def _remove(self, names: list[str]) -> None:
        if names:
            self._objects.call(lambda store: store.delete(names))
