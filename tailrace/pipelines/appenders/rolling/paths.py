"""Paths that depend on the event, `{service}/{fqn}/{date}.log`, and the access to files.

| field | is |
| --- | --- |
| `{fqn}`, `{run}`, `{connector}`, `{level}` | of the record |
| `{service}` | the first part of the pipeline's name |
| `{date}`, `{hour}` | of the event's time in UTC: `2026-11-23`, `07` |
| `{part}` | which part of the pipelines' names this is, from 0 |
| `{attribute.NAME}` | an attribute |

A value becomes a name that cannot leave its folder (`tailrace.logstore.keys`); a missing one is
`none`. Of a run that was deleted and written again `{run}` is `RUN~ULID`, and `{fqn}` alike in a
path without a run: no other name ends with a `~` and 26 characters.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from tailrace.logstore.keys import encode
from tailrace.logstore.ulid import decode as decode_ulid
from tailrace.logstore.ulid import encode as encode_ulid
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, Refuse
from tailrace.pipelines.section import Section, setting

Indexes = NDArray[np.int64]
Column = Callable[[pa.Table, int], tuple[Indexes, list[str]]]
"""For each event the number of its text, and the texts."""
Generation = Callable[[str, str | None], int]
_ULID: Final = 26
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_COLUMNS: Final = {"fqn": "fqn", "run": "run_id", "connector": "connector_id", "level": "level"}
_NONE: Final = "none"
_TIMES: Final = {"date": (86_400_000_000, "%Y-%m-%d"), "hour": (3_600_000_000, "%H")}


_MOST_CODES: Final = 1 << 62
_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 4095


class RunFolders(NamedTuple):
    """Which folders of a path are a pipeline's and a run's name."""

    fqn: int
    run: int

    def is_deleted(self, path: str, deleted: Mapping[tuple[str, str | None], int]) -> bool:
        """Whether a path is of a run that was deleted after it was written; names are `encoded`."""
        folders = path.split("/")
        fqn, (run, generation) = folders[self.fqn], _generation_of(folders[self.run])
        return generation < max(deleted.get((fqn, run), 0), deleted.get((fqn, None), 0))


def encoded(deleted: Mapping[tuple[str, str | None], int]) -> Mapping[tuple[str, str | None], int]:
    """Deletions by the names of folders."""
    return {
        (encode(fqn), None if run is None else encode(run)): t for (fqn, run), t in deleted.items()
    }


class PathTemplate:
    """A path below an appender's folder. Raises `ValueError` for one that cannot be."""

    def __init__(self, template: str) -> None:
        pieces = template.split("/")
        if template.startswith("/") or not all(pieces) or {".", "..", ".tailrace"} & set(pieces):
            raise ValueError(f"{template!r} must be a path below the folder, without . and ..")
        self.template = template
        self.fields = tuple(_FIELD.findall(template))
        if set(_FIELD.sub("", template)) & set("{}"):
            raise ValueError(f"{template!r} has a brace that is not closed")
        for field in self.fields:
            _column(field)

    @property
    def tells_runs(self) -> bool:
        """Whether a run that was deleted and made again has other paths."""
        return "run" in self.fields

    @property
    def tells_pipelines(self) -> bool:
        """Whether a pipeline that was deleted as a whole and made again has other paths."""
        return self._generations is not None

    @property
    def _generations(self) -> str | None:
        """The field that tells a run, or a pipeline, from an earlier one of the same name."""
        return "run" if self.tells_runs else "fqn" if "fqn" in self.fields else None

    def owner(self, events: pa.Table, row: int) -> tuple[str, str | None] | None:
        """Whose deletion ends an event's file: a run's, or all runs' (None); None: nobody's."""
        if self._generations is None:
            return None
        run = events.column("run_id")[row].as_py() if self._generations == "run" else None
        return events.column("fqn")[row].as_py(), run

    @property
    def of_one_pipeline(self) -> bool:
        """Whether no two parts of the pipelines' names have a path in common."""
        return "fqn" in self.fields or "part" in self.fields

    @property
    def run_folders(self) -> RunFolders | None:
        """Where pipeline and run are, if each is a folder of its own."""
        folders = self.template.split("/")[:-1]
        if "{fqn}" not in folders or "{run}" not in folders:
            return None
        return RunFolders(folders.index("{fqn}"), folders.index("{run}"))

    def groups(
        self, events: pa.Table, part: int, generation: Generation | None = None
    ) -> Iterator[tuple[str, Indexes]]:
        """Each path, and the rows of its events in order.

        `generation` gives the ULID up to which a run, or a pipeline (None), was deleted, or 0.
        """
        codes, size = np.zeros(events.num_rows, dtype=np.int64), 1
        columns: list[tuple[Indexes, list[str]]] = []
        for field in self.fields:
            found, texts = _column(field)(events, part)
            names = [_named(text) for text in texts]
            if generation is not None and field == self._generations:
                found, names = _of_generations(events, found, names, field, generation)
            columns.append((found, names))
            size *= max(len(names), 1)
            if size > _MOST_CODES:  # as many as there are rows are enough
                codes, known = _encoded_numbers(codes)
                size = len(known) * max(len(names), 1)
            codes = codes * max(len(names), 1) + found
        first, *literals = _FIELD.split(self.template)[::2]
        order = np.argsort(codes, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            if len(rows):
                filled = zip(columns, literals, strict=True)
                rest = [names[found[rows[0]]] + literal for (found, names), literal in filled]
                yield first + "".join(rest), rows


def refused_name(whole: str, spare: int) -> str:
    """Why no file can have this path and `spare` bytes more in its name; empty: one can."""
    longest = max(len(os.fsencode(one)) for one in whole.split("/"))
    name = len(os.fsencode(os.path.basename(whole))) + spare
    if max(longest, name) > _NAME_BYTES:
        return f"a file's name has at most {_NAME_BYTES} bytes, and this has {max(longest, name)}"
    size = len(os.fsencode(whole)) + spare
    if size > _PATH_BYTES:
        return f"a path has at most {_PATH_BYTES} bytes, and this has {size}"
    return ""


def writable(
    events: pa.Table,
    groups: Sequence[tuple[str, Indexes]],
    refused: Callable[[str], str],
    refuse: Refuse,
) -> list[tuple[str, Indexes]]:
    """The groups whose paths can be. `refused` says why one cannot; its events are refused."""
    kept = []
    for path, rows in groups:
        reason = refused(path)
        if reason:
            refuse(events.take(pa.array(rows)), f"its path is invalid: {reason}", path)
        else:
            kept.append((path, rows))
    return kept


def _generation_of(name: str) -> tuple[str, int]:
    """The name of a run without its generation, and this."""
    plain, mark, text = name.rpartition("~")
    if mark and len(text) == _ULID:
        return plain, decode_ulid(text)
    return name, 0


def _of_generations(
    events: pa.Table, codes: Indexes, names: list[str], field: str, generation: Generation
) -> tuple[Indexes, list[str]]:
    """The column with the names of those runs that were deleted before, made other names."""
    place, pairs = pairs_of(events)
    found: list[str] = []
    for fqn, run in pairs:
        t = generation(fqn, run if field == "run" else None)
        found.append(f"~{encode_ulid(t)}" if t else "")
    if not any(found):
        return codes, names
    which, kept = _changed((place, found), str)
    pairs_codes, numbers = _encoded_numbers(codes * len(kept) + which)
    split = [divmod(number, len(kept)) for number in numbers]
    return pairs_codes, [names[name] + kept[mark] for name, mark in split]


def pairs_of(events: pa.Table) -> tuple[Indexes, list[tuple[str, str]]]:
    """For each event the number of its pipeline and run, and all of these."""
    fqns, fqn_texts = _encoded(events.column("fqn"))
    runs, run_texts = _encoded(events.column("run_id"))
    codes, pairs = _encoded_numbers(fqns * max(len(run_texts), 1) + runs)
    split = [divmod(pair, max(len(run_texts), 1)) for pair in pairs]
    return codes, [(fqn_texts[fqn], run_texts[run]) for fqn, run in split]


def template_in(context: AppenderContext, path: str) -> PathTemplate:
    """The template for one part: of a replay there are other files. Raises `AppenderFailed`."""
    template = PathTemplate(path)
    if context.parts > 1 and not template.of_one_pipeline:
        raise AppenderFailed(
            f"the path {path} is written by several parts of the pipeline",
            hint="Put {fqn} or {part} into the path, or set parts: 1.",
        )
    return PathTemplate(_of_replay(path, context.replay)) if context.replay else template


def _of_replay(template: str, replay: str) -> str:
    """Its id stands before the ending."""
    dot = template.rfind(".")
    if dot <= max(template.rfind("}"), template.rfind("/")):
        dot = len(template)
    return f"{template[:dot]}.replay-{replay}{template[dot:]}"


def _named(value: str) -> str:
    return encode(value) if value else _NONE


def _column(field: str) -> Column:
    """Makes a column. Raises `ValueError` for a field that is not known."""
    if field in _COLUMNS:
        return lambda events, _: _encoded(events.column(_COLUMNS[field]))
    if field == "service":
        return lambda events, _: _changed(
            _encoded(events.column("fqn")), lambda name: name.partition(".")[0]
        )
    if field in _TIMES:
        microseconds, form = _TIMES[field]
        return lambda events, _: _times(events, microseconds, form)
    if field == "part":
        return lambda events, part: (np.zeros(events.num_rows, dtype=np.int64), [str(part)])
    if field.startswith("attribute."):
        name = field.removeprefix("attribute.")
        return lambda events, _: _encoded(
            pc.map_lookup(events.column("attributes").combine_chunks(), name, "last")
        )
    known = "fqn, run, connector, level, service, date, hour, part"
    raise ValueError(f"has the field {{{field}}}; known are {known} and attribute.NAME")


def _encoded(column: pa.ChunkedArray | pa.Array) -> tuple[Indexes, list[str]]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found = array.dictionary_encode(null_encoding="encode")
    codes: Indexes = found.indices.to_numpy().astype(np.int64)
    return codes, [text or "" for text in found.dictionary.to_pylist()]


def _encoded_numbers(numbers: Indexes) -> tuple[Indexes, list[int]]:
    found = pa.array(numbers).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()


def _changed(
    column: tuple[Indexes, list[str]], change: Callable[[str], str]
) -> tuple[Indexes, list[str]]:
    """The column with other texts, of which several may become the same."""
    codes, texts = column
    changed = [change(text) for text in texts]
    kept = sorted(set(changed))
    places = {text: place for place, text in enumerate(kept)}
    return np.array([places[text] for text in changed], dtype=np.int64)[codes], kept


def _times(events: pa.Table, microseconds: int, form: str) -> tuple[Indexes, list[str]]:
    stamps = events.column("ts").combine_chunks().cast(pa.int64()).to_numpy() // microseconds
    found, codes = np.unique(stamps, return_inverse=True)
    seconds = (found * (microseconds // 1_000_000)).tolist()
    column = codes.astype(np.int64), [f"{datetime.fromtimestamp(s, UTC):{form}}" for s in seconds]
    return _changed(column, str)


# Access to an appender's files: permissions, owner and group from the pipeline's file.
#
# Files are made for their owner alone and opened to others afterwards, so nobody reads them too
# early. Only root gives files to another user; others may name one of their own groups.


Octal = Annotated[str, Field(pattern=r"^0?[0-7]{3}$")]
_UNCHANGED = -1


class FileAccessSettings(Section):
    """Permissions, owner and group of files."""

    file_permissions: Octal = setting("600", "permissions of files, in octal and in quotes")
    dir_permissions: Octal = setting("700", "permissions of folders, in octal and in quotes")
    owner: str = setting("", "owner of files and folders, by name or number")
    group: str = setting("", "group of files and folders, by name or number")


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Gives files and folders what the settings say."""

    file_mode: int | None
    folder_mode: int | None
    owner: int
    group: int

    @classmethod
    def of(cls, settings: FileAccessSettings) -> Self:
        """Finds owner and group. Raises `AppenderFailed` for one that this machine has not."""
        files, folders = int(settings.file_permissions, 8), int(settings.dir_permissions, 8)
        return cls(
            None if files == 0o600 else files,
            None if folders == 0o700 else folders,
            _number(settings.owner, "user"),
            _number(settings.group, "group"),
        )

    def file(self, path: str) -> None:
        """Applies to a file. Raises `AppenderFailed`, `OSError`."""
        self._apply(path, self.file_mode)

    def folder(self, path: str) -> None:
        """Applies to a folder. Raises `AppenderFailed`, `OSError`."""
        self._apply(path, self.folder_mode)

    def _apply(self, path: str, mode: int | None) -> None:
        if (self.owner, self.group) != (_UNCHANGED, _UNCHANGED):
            try:
                os.chown(path, self.owner, self.group)
            except PermissionError as error:
                raise AppenderFailed(
                    f"{path}: its owner or group cannot be set: {error.strerror}",
                    hint="Only root gives files to another owner. A group must be one of the user"
                    " that runs the pipelines.",
                ) from error
        if mode is not None:
            os.chmod(path, mode)


def _number(name: str, kind: str) -> int:
    if not name:
        return _UNCHANGED
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise AppenderFailed(
            f"this machine has no {kind} {name!r}",
            hint="Use a name that exists on this machine, or a number.",
        ) from None
