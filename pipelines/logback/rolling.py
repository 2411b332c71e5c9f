"""logback's files, rolling and triggering policies as keys of `rolling_file`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

from pipelines.logback.document import Element

Say = Callable[[int, str], None]
Text = Callable[[Element], str]
_DATE: Final = re.compile(r"%d(?:\{([^}]*)\})?")
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(?:([kmg])b?)?\s*", re.IGNORECASE)
_PERIODS: Final = (("m", 60, "1m"), ("H", 3600, "1h"), ("d", 86400, "1d"))
_NEVER: Final = "1024GiB"


def size_of(text: str) -> str:
    """A size as logback writes it, in our units; what is none stays as it is."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return text
    return f"{found[1]}{found[2].upper()}iB" if found[2] else found[1]


class Files:
    """Converts the files of one appender."""

    def __init__(self, text: Text, say: Say) -> None:
        self._text = text
        self._say = say

    def keys(self, appender: Element, *, rolls: bool) -> dict[str, Any]:
        """`dir`, `path` and what rolls it."""
        policy, file = appender.child("rollingPolicy"), appender.child("file")
        pattern = None if policy is None else policy.child("fileNamePattern")
        if file is None and pattern is None:
            self._say(appender.line, "it has no <file>")
        path = self._text(file) if file is not None else ""
        keys: dict[str, Any] = {"max_file_size": _NEVER}
        if rolls:
            keys |= self._policies(appender, policy)
        if pattern is not None:
            keys |= self._named(pattern, path, window=keys.get("names") == "fixed_window")
            path = path or self._path_of(pattern)
        return {"dir": os.path.dirname(path) or ".", "path": os.path.basename(path), **keys}

    def _policies(self, appender: Element, policy: Element | None) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for one in appender.all("triggeringPolicy"):
            keys |= self._sizes(one)
        if policy is None:
            self._say(appender.line, "it has no <rollingPolicy>: files are rolled by size alone")
            return keys
        kind = policy.attributes.get("class", "").rpartition(".")[2]
        if kind == "FixedWindowRollingPolicy":
            return {**keys, **self._window(policy)}
        if kind in ("TimeBasedRollingPolicy", "SizeAndTimeBasedRollingPolicy"):
            return {**keys, "names": "timestamp", **self._sizes(policy), **self._times(policy)}
        self._say(policy.line, f"the policy {kind or 'without a class'} is not known")
        return keys

    def _sizes(self, element: Element) -> dict[str, Any]:
        """`maxFileSize` there or in what is in it."""
        for nested in element.all("timeBasedFileNamingAndTriggeringPolicy"):
            return self._sizes(nested)
        size = element.child("maxFileSize")
        return {} if size is None else {"max_file_size": size_of(self._text(size))}

    def _window(self, policy: Element) -> dict[str, Any]:
        keys: dict[str, Any] = {"names": "fixed_window"}
        for one in policy.children:
            if one.tag == "maxIndex":
                keys["keep_files"] = _number(self._text(one))
            elif one.tag == "minIndex" and self._text(one) != "1":
                self._say(one.line, "minIndex is 1 here")
            elif one.tag not in ("fileNamePattern", "minIndex"):
                self._say(one.line, f"<{one.tag}> has no counterpart")
        return keys

    def _times(self, policy: Element) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        known = ("fileNamePattern", "maxFileSize", "timeBasedFileNamingAndTriggeringPolicy")
        pattern = policy.child("fileNamePattern")
        seconds = self._period(pattern)[0] if pattern is not None else 86400
        for one in policy.children:
            if one.tag == "maxHistory":
                count = _number(self._text(one))
                keys["keep_for"] = f"{count * seconds}s" if isinstance(count, int) else count
            elif one.tag == "totalSizeCap":
                keys["keep_bytes"] = size_of(self._text(one))
            elif one.tag not in known:
                self._say(one.line, f"<{one.tag}> has no counterpart")
        return keys

    def _period(self, pattern: Element) -> tuple[int, str]:
        """How long a period is, in seconds and as a key."""
        dates = [one for one in _DATE.findall(self._text(pattern)) if not one.endswith("aux")]
        form = dates[0] if dates else "yyyy-MM-dd"
        for letter, seconds, text in _PERIODS:
            if letter in re.sub(r"'[^']*'", "", form or "yyyy-MM-dd"):
                return seconds, text
        self._say(pattern.line, f"files are rolled every day, since {form!r} has no shorter period")
        return 86400, "1d"

    def _named(self, pattern: Element, path: str, *, window: bool) -> dict[str, Any]:
        """What the name of rolled files says beside the name."""
        text, keys = self._text(pattern), {}
        self._say_names(pattern.line, os.path.basename(text), os.path.basename(path), window=window)
        if text.endswith((".gz", ".zip")):
            keys["compress"] = "gzip"
            if text.endswith(".zip"):
                self._say(pattern.line, "files are compressed with gzip, not zip")
        if _DATE.search(text) and (path or "{date}" not in self._path_of(pattern)):
            keys["roll_every"] = self._period(pattern)[1]
        folder = os.path.dirname(text)
        if path and folder and folder != os.path.dirname(path):
            self._say(pattern.line, "rolled files stay in the folder of the file")
        return keys

    def _say_names(self, line: int, pattern: str, name: str, *, window: bool) -> None:
        """Says how files are called that were rolled, if that is not what the pattern says."""
        plain = re.sub(r"\.(gz|zip)$", "", pattern)
        if window and not name:
            name = re.sub(r"[.\-_]?%i", "", plain)
        stem, ending = os.path.splitext(name)
        if name and plain != (f"{stem}.%i{ending}" if window else ""):
            moment = "1" if window else "2026-11-23T18-00-00.000"
            self._say(line, f"rolled files have names such as {stem}.{moment}{ending}")

    def _path_of(self, pattern: Element) -> str:
        """The path of an appender that has no `<file>`: files by day."""
        text = re.sub(r"\.(gz|zip)$", "", self._text(pattern))
        text = re.sub(r"[.\-_]?%i", "", text)
        day = _DATE.sub(lambda one: "{date}" if one[1] in (None, "yyyy-MM-dd") else one[0], text)
        return _DATE.sub("", day).replace("..", ".").replace("-.", ".").replace("_.", ".")


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
