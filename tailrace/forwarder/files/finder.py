"""Finds the files of a source: those that its globs match, once each, in a defined order.

`Finder` lists them. `Glob` matches paths, `may_be_rotation` compares names, `facts_of` gives the
attributes of a file for its records, `Confines` limits where files may be, and `Ordering` sorts and
cuts the list.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from tailrace.forwarder.config.source import FileSource, OrderingCriteria, SortBy
from tailrace.forwarder.model import FileFacts
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.patterns import LinearRegex, translate_wildcards

# Paths that match glob patterns, found by a walk that continues past unreadable folders.
#
# A pattern is an absolute or relative path whose parts may have `*` (any characters but `/`), `?`,
# `[abc]`, `[!abc]`, `{one,two}`, and `**` as a whole part for any number of folders. As in
# doublestar, the library that OpenTelemetry uses, `*` matches a leading dot too, and `**` does not
# follow symbolic links to folders.


_SPECIAL = re.compile(r"[*?\[{\\]")
_MOST_ALTERNATIVES = 1000

Unreadable = Callable[[str, OSError], None]


class Glob:
    """One pattern. Raises `InvalidInput` if its brackets or braces do not end."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise InvalidInput("a glob pattern is empty")
        self.pattern = pattern
        self._alternatives = [os.path.normpath(each) for each in expand_braces(pattern)]
        ways = [way for each in self._alternatives for way in _ways(each)]
        try:
            self._regex = LinearRegex("|".join(map(_translate, self._alternatives)))
            self._ways = LinearRegex("|".join(map(_translate, ways)))
        except ValueError as error:
            raise InvalidInput(
                f"the glob pattern {pattern[:200]!r} {error}",
                hint="Name the folder, or write several patterns.",
            ) from error

    def leads(self, path: str) -> bool:
        """Whether a path matches, or is a folder on the way to one that would.

        Of relative patterns, every path may be.
        """
        if not all(each.startswith("/") for each in self._alternatives):
            return True
        return self._ways.fullmatch(os.path.normpath(path)) is not None

    def matches(self, path: str) -> bool:
        """Whether a path as a whole matches."""
        return self._regex.fullmatch(path) is not None

    def find(self, unreadable: Unreadable) -> Iterator[str]:
        """The paths that match and are no folders; reports unlistable folders to `unreadable`."""
        for each in self._alternatives:
            root, rest = ("/", each[1:]) if each.startswith("/") else ("", each)
            yield from _walk(root, rest.split("/"), unreadable)

    def folders(self, unreadable: Unreadable) -> Iterator[str]:
        """The folders in which a path that matches can appear, now: those that exist."""
        for each in self._alternatives:
            root, rest = ("/", each[1:]) if each.startswith("/") else ("", each)
            yield from _folders(root or ".", rest.split("/"), unreadable)


def expand_braces(pattern: str) -> list[str]:
    """`a{b,c}` as `ab`, `ac`; braces may be nested.

    Raises `InvalidInput` if one does not end, or if they stand for too many patterns.
    """
    return list(_expand(pattern, iter(range(_MOST_ALTERNATIVES))))


def _expand(pattern: str, left: Iterator[int]) -> Iterator[str]:
    start = _outside_brackets(pattern, "{")
    if start < 0:
        if next(left, None) is None:
            raise InvalidInput(
                f"the braces of a glob pattern stand for more than {_MOST_ALTERNATIVES} patterns",
                hint="Use `*`, or write several patterns.",
            )
        yield pattern
        return
    depth, parts, begin = 0, [], start + 1
    for index in range(start, len(pattern)):
        character = pattern[index]
        if character == "{":
            depth += 1
        elif character == "," and depth == 1:
            parts.append(pattern[begin:index])
            begin = index + 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                parts.append(pattern[begin:index])
                head, tail = pattern[:start], pattern[index + 1 :]
                for part in parts:
                    yield from _expand(head + part + tail, left)
                return
    raise InvalidInput(f"the glob pattern {pattern!r} has a '{{' without '}}'")


def _ways(pattern: str) -> Iterator[str]:
    """The pattern, and the patterns of the folders above what it matches."""
    parts = pattern.split("/")
    return ("/".join(parts[:end]) for end in range(2, len(parts) + 1))


def _outside_brackets(pattern: str, wanted: str) -> int:
    inside = False
    for index, character in enumerate(pattern):
        if character == "\\":
            continue
        if character == "[" and not inside and "]" in pattern[index + 2 :]:
            inside = True
        elif character == "]":
            inside = False
        elif character == wanted and not inside:
            return index
    return -1


def _translate(pattern: str) -> str:
    """The pattern, without braces, as a regular expression for whole paths."""
    out: list[str] = []
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            out.append("(?s:.*)" if last else "(?:[^/]+/)*")
        else:
            out.append(_translate_part(part) + ("" if last else "/"))
    return "".join(out)


@cache
def _part(part: str) -> LinearRegex:
    return LinearRegex(_translate_part(part))


def _translate_part(part: str) -> str:
    try:
        return translate_wildcards(part, of_path=True)
    except ValueError as error:
        raise InvalidInput(f"the glob pattern {part!r} {error}") from error


def _entries(folder: str, unreadable: Unreadable) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable(folder or ".", error)
        return []


def _is_folder(entry: os.DirEntry[str], *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:
        return False


def _walk(folder: str, parts: list[str], unreadable: Unreadable) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _walk(folder, rest or ["*"], unreadable)
        for path in _below(folder, unreadable):
            yield from _walk(path, parts, unreadable)
    elif not _SPECIAL.search(part):
        path = _join(folder, part)
        if rest:
            yield from _walk(path, rest, unreadable)
        elif os.path.lexists(path) and not os.path.isdir(path):
            yield path
    else:
        pattern = _part(part)
        for entry in _entries(folder, unreadable):
            if pattern.fullmatch(entry.name):
                is_folder = _is_folder(entry, follow=True)
                if rest and is_folder:
                    yield from _walk(_join(folder, entry.name), rest, unreadable)
                elif not rest and not is_folder:
                    yield _join(folder, entry.name)


def _below(folder: str, unreadable: Unreadable) -> list[str]:
    entries = _entries(folder, unreadable)
    return [_join(folder, entry.name) for entry in entries if _is_folder(entry, follow=False)]


def _folders(folder: str, parts: list[str], unreadable: Unreadable) -> Iterator[str]:
    """Every folder that the walk goes through: something new in it may lead to a match."""
    yield folder
    part, rest = parts[0], parts[1:]
    if not rest and part != "**":
        return
    if part != "**" and not _SPECIAL.search(part):
        path = _join(folder, part)
        if os.path.isdir(path):
            yield from _folders(path, rest, unreadable)
        return
    pattern = _part("*" if part == "**" else part)
    for entry in _entries(folder, unreadable):
        if pattern.fullmatch(entry.name) and _is_folder(entry, follow=part != "**"):
            path = _join(folder, entry.name)
            yield from _folders(path, parts if part == "**" else rest, unreadable)
    if part == "**" and rest:
        yield from _folders(folder, rest, unreadable)


def _join(folder: str, name: str) -> str:
    return name if folder in ("", ".") else f"{folder.rstrip('/')}/{name}"


# Names that are rotations of one another: `app.log`, `app.log.1`, `app.log-20260101.gz`.


_COMPRESSED = re.compile(r"\.(gz|gzip|zst|zstd|bz2|xz|old|bak|save|orig)$", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")
_EDGES = re.compile(r"[-_.:T@~+]*$")
_ADDED = re.compile(r"[-_.:T@~+]+[0-9]*$|[0-9]+$")
_INDEX = re.compile(r"[-_.:@~+]*[0-9]+(?=\.[^.0-9]+$)")
_DATE = re.compile(r"(?:19|20)[0-9]{2}[-_.]?[01][0-9][-_.]?[0-3][0-9](?:[-_.:T@]?[0-9]+)*")


def is_archive(path: str) -> bool:
    """Whether a name says that the file is compressed."""
    return _COMPRESSED.search(path) is not None


def uncompressed(path: str) -> str:
    """Where the original of an archive is, as long as that is being written."""
    return _COMPRESSED.sub("", path)


def family(path: str) -> tuple[str, str]:
    """The folder, and the name without what a rotation adds to it or counts up in it."""
    folder, name = os.path.split(path)
    bare = _NUMBERS.sub("", _COMPRESSED.sub("", name))
    while (shorter := _EDGES.sub("", re.sub(r"([-_.:])[-_.:T@~+]+", r"\1", bare))) != bare:
        bare = shorter
    return folder, bare


def find_date(path: str) -> str:
    """The digits of the date that a rotation has put into a name, or nothing."""
    found = _DATE.search(os.path.basename(path))
    return "".join(_NUMBERS.findall(found[0])) if found else ""


def written_names(name: str) -> Iterator[str]:
    """The names under which a rotated file may have been written, the most similar first."""
    bare = name
    while compressed := _COMPRESSED.search(bare):
        bare = bare[: compressed.start()]
        yield bare
    if date := _DATE.search(bare):
        begin = len(bare[: date.start()].rstrip("-_.:@~+"))
        yield bare[:begin] + bare[date.end() :]
    while (shorter := _ADDED.sub("", bare)) not in (bare, ""):
        bare = shorter
        yield bare


def may_be_rotation(path: str, other: str, is_log: Callable[[str], bool]) -> bool:
    """Returns whether the names allow that one file is a rotation or a copy of the other.

    They do if one name is the other with the addition of a rotation: a number, a date, a
    compression. Two such names of one log do, if `is_log` knows the path of that log: without it,
    `nightly-1.log` and `nightly-2.log` are two logs. So does a compressed form in the same family.
    In another folder only a compressed form under the same name does: `1/job.log` and `2/job.log`
    are two logs. A file that was moved is known by its inode.
    """
    folder, name = os.path.split(path)
    other_folder, other_name = os.path.split(other)
    if folder != other_folder:
        same = _uncompressed(name) == _uncompressed(other_name)
        return same and is_archive(name) != is_archive(other_name)
    if is_archive(name) != is_archive(other_name) and family(path) == family(other):
        return True
    common = _log_names(name) & _log_names(other_name)
    return (
        name in common
        or other_name in common
        or any(is_log(os.path.join(folder, each)) for each in common)
    )


def _uncompressed(name: str) -> str:
    return _COMPRESSED.sub("", name)


def _log_names(name: str) -> set[str]:
    """The name, and those of the logs that it may be a rotation of."""
    return {name, *written_names(name), _INDEX.sub("", _uncompressed(name))}


# Attributes that describe the file of a record, as `include_file_*` configure them.


NAME = "log.file.name"
PATH = "log.file.path"
NAME_RESOLVED = "log.file.name_resolved"
PATH_RESOLVED = "log.file.path_resolved"
OWNER = "log.file.owner.name"
GROUP = "log.file.owner.group.name"
PERMISSIONS = "log.file.permissions"


def facts_of(source: FileSource) -> Callable[[str], FileFacts]:
    """Returns a function that gives the facts of the file at a path, without unknown ones."""

    def facts(path: str) -> FileFacts:
        attributes: dict[str, str] = {}
        if source.include_file_name:
            attributes[NAME] = os.path.basename(path)
        if source.include_file_path:
            attributes[PATH] = path
        if source.include_file_name_resolved or source.include_file_path_resolved:
            resolved = os.path.realpath(path)
            if source.include_file_name_resolved:
                attributes[NAME_RESOLVED] = os.path.basename(resolved)
            if source.include_file_path_resolved:
                attributes[PATH_RESOLVED] = resolved
        with suppress(OSError):  # it is gone: its content may still be read
            attributes.update(_of_inode(source, path))
        return FileFacts(path, attributes)

    return facts


def _of_inode(source: FileSource, path: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    wanted = (
        source.include_file_owner_name,
        source.include_file_owner_group_name,
        source.include_file_permissions,
    )
    if not any(wanted):
        return attributes
    found = os.stat(path)
    owner, group, permissions = wanted
    with suppress(KeyError):  # a number without a name
        if owner:
            attributes[OWNER] = pwd.getpwuid(found.st_uid).pw_name
    with suppress(KeyError):
        if group:
            attributes[GROUP] = grp.getgrgid(found.st_gid).gr_name
    if permissions:
        attributes[PERMISSIONS] = f"{found.st_mode & 0o7777:03o}"
    return attributes


# Folders in which files may really be: symbolic links lead to any file that the forwarder may read.
#
# A forwarder often runs as root, over folders in which others may make links. With folders given, a
# file is read only if it is in one of them, after all links of its path are resolved. The opened
# file is checked once more, since a link may be changed between the check and the opening.


_OF_DESCRIPTOR: Final = "/proc/self/fd/{}"
_WHY: Final = "a link leads out of `within`"


class Confines:
    """The folders in which files may be; none: anywhere."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._folders = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)

    def check(self, path: str) -> None:
        """Raises `PermissionError` for a path that leads out of them."""
        if self._folders and not os.path.realpath(path).startswith(self._folders):
            raise PermissionError(errno.EPERM, _WHY, path)

    def check_open(self, descriptor: int, path: str) -> None:
        """The same for the file that was opened at a path, wherever that leads by now."""
        if not self._folders:
            return
        try:
            real = os.readlink(_OF_DESCRIPTOR.format(descriptor))
        except FileNotFoundError:  # a system without /proc
            real = os.path.realpath(path)
        if not real.startswith(self._folders):
            raise PermissionError(errno.EPERM, _WHY, path)


Order = Callable[[list["FoundFile"]], list["FoundFile"]]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file at a path, with what `stat` says of it."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode: no two files have the same at one time."""
        return self.device, self.inode


def look(path: str) -> FoundFile | None:
    """The regular file at a path, through symbolic links; None if there is none.

    Raises `OSError` where it cannot be seen.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return FoundFile(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def look_at(path: str, descriptor: int) -> FoundFile:
    """The open file that was found at a path, as it is now. Raises `OSError`."""
    found = os.fstat(descriptor)
    return FoundFile(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Finder:
    """Finds files that match one of `include` and none of `exclude`.

    Files whose content changed more than `older_than_ns` ago are left out, if it is not zero.
    `order` sorts and cuts the list, as `ordering_criteria` say. `unreadable(path, error)` is called
    for paths that cannot be listed or seen, or are outside of `confines`; all other files are found
    nevertheless.
    """

    def __init__(
        self,
        include: Sequence[str],
        exclude: Sequence[str] = (),
        *,
        older_than_ns: int = 0,
        order: Order | None = None,
        confines: Confines | None = None,
        now_ns: Callable[[], int],
        unreadable: Unreadable,
    ) -> None:
        self._include = [Glob(each) for each in include]
        self._exclude = [Glob(each) for each in exclude]
        self._older_than_ns = older_than_ns
        self._order = order
        self._confines = confines or Confines()
        self._now_ns = now_ns
        self._unreadable = unreadable

    def leads(self, path: str) -> bool:
        """Whether a path is of the source, or a folder in which such may be."""
        return any(each.leads(path) for each in self._include)

    def find(self) -> list[FoundFile]:
        """The files. Two paths of one file count once, and the one that is listed first stays."""
        paths: dict[str, None] = {}
        for glob in self._include:
            for path in glob.find(self._unreadable):
                paths.setdefault(path)
        found: list[FoundFile] = []
        for path in paths:
            if not any(glob.matches(path) for glob in self._exclude):
                found += self._look(path)
        return self._order(found) if self._order is not None else found

    def find_archives(self, globs: Sequence[Glob], found: Sequence[FoundFile]) -> list[FoundFile]:
        """The files that `globs` match, without those that were found already."""
        known = {file.place for file in found}
        archives: dict[tuple[int, int], FoundFile] = {}
        for glob in globs:
            for path in glob.find(self._unreadable):
                for file in self._look(path):
                    if file.place not in known:
                        archives.setdefault(file.place, file)
        return list(archives.values())

    def matches(self, path: str) -> bool:
        """Whether a path is of the source."""
        return any(glob.matches(path) for glob in self._include) and not any(
            glob.matches(path) for glob in self._exclude
        )

    def _look(self, path: str) -> list[FoundFile]:
        """The file, if it is there and not too old."""
        try:
            self._confines.check(path)
            file = look(path)
        except OSError as error:
            self._unreadable(path, error)
            return []
        oldest = self._now_ns() - self._older_than_ns if self._older_than_ns else 0
        return [file] if file is not None and file.mtime_ns >= oldest else []

    def folders(self) -> set[str]:
        """The folders in which something new can be of interest, those that exist."""
        return {
            folder for glob in self._include for folder in glob.folders(lambda _path, _error: None)
        }


# `ordering_criteria`: files sorted by parts of their paths, of which the first few are read.
#
# Each criterion sorts stably, one after the other, so the last one counts most. A file whose path
# does not match, or whose part is not the expected number or time, is left out and reported.


Report = Callable[[str], None]


class Ordering:
    """Sorts and cuts a list of files. `report` is called for each file that is left out, once."""

    def __init__(self, criteria: OrderingCriteria, report: Report) -> None:
        self._criteria = criteria
        self._report = report
        self._reported: set[str] = set()

    def __call__(self, found: list[FoundFile]) -> list[FoundFile]:
        """The files to read, in the order of the criteria."""
        groups: dict[str, list[FoundFile]] = {}
        for file in found:
            groups.setdefault(self._group(file), []).append(file)
        return [file for group in groups.values() for file in self._first(group)]

    def _group(self, file: FoundFile) -> str:
        by = self._criteria.group_by
        match = by.search(file.path) if by is not None else None
        if by is None or match is None:
            return ""
        return (match[1] if by.groups else match[0]) or ""

    def _first(self, files: list[FoundFile]) -> list[FoundFile]:
        for by in self._criteria.sort_by:
            keyed = [(key, file) for file in files if (key := self._key(by, file)) is not None]
            keyed.sort(key=lambda each: each[0], reverse=not by.ascending)
            files = [file for _, file in keyed]
        return files[: self._criteria.top_n or None]

    def _key(self, by: SortBy, file: FoundFile) -> tuple[float, str] | None:
        if by.sort_type == "mtime":
            return file.mtime_ns, ""
        assert self._criteria.regex is not None
        match = self._criteria.regex.search(file.path)
        text = match[by.regex_key] if match is not None else None
        if text is None:
            self._left_out(file, f"does not match {self._criteria.regex.pattern!r}")
            return None
        try:
            return _value(by, text)
        except ValueError:
            self._left_out(file, f"has {text!r} where {by.sort_type} is expected")
            return None

    def _left_out(self, file: FoundFile, why: str) -> None:
        if file.path not in self._reported:
            self._reported.add(file.path)
            self._report(f"{file.path} is not read: its path {why}")


def _value(by: SortBy, text: str) -> tuple[float, str]:
    if by.sort_type == "numeric":
        if re.fullmatch(r"[-+]?[0-9]+", text) is None:
            raise ValueError(text)
        return int(text), ""
    if by.sort_type == "timestamp":
        moment = datetime.strptime(text, by.layout)  # noqa: DTZ007 -- the next line says the zone
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(by.location))
        return moment.timestamp(), ""
    return 0, text
