"""Converts logback's configurations to pipelines' files: `tailrace pipelines import logback.xml`.

Every line that has no counterpart is named (`Remark`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from xml.parsers import expat

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.pipelines.layouts import compiled

# XML as elements with their lines, without the dangerous features of XML.
#
# A document type is refused, and with it every entity that a file could define; so are files above
# a megabyte and elements in elements above 50 deep.


_MOST_BYTES: Final = 1 << 20
_MOST_DEPTH: Final = 50


@dataclass(slots=True)
class Element:
    """An element; `tag` begins in lower case, as logback takes both. `line` is from 1."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    text_line: int = 0
    """The line where its text begins, without space before it."""

    @property
    def text(self) -> str:
        """Its text, without space around it."""
        return "".join(self.texts).strip()

    def child(self, tag: str) -> Element | None:
        """The last child of that name: it counts in logback too."""
        return next((one for one in reversed(self.children) if one.tag == tag), None)

    def all(self, *tags: str) -> Iterator[Element]:
        """The children of these names."""
        return (one for one in self.children if one.tag in tags)


def parse(body: bytes) -> Element:
    """The root element. Raises `InvalidInput` that names the line."""
    if len(body) > _MOST_BYTES:
        raise InvalidInput(f"the file has {len(body)} bytes, and {_MOST_BYTES} at most are read")
    parser = expat.ParserCreate()
    root = Element("", {}, 0)
    open_ = [root]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_) > _MOST_DEPTH:
            raise InvalidInput(f"line {parser.CurrentLineNumber}: elements are nested too deeply")
        found = Element(tag[:1].lower() + tag[1:], attributes, parser.CurrentLineNumber)
        open_[-1].children.append(found)
        open_.append(found)

    def text(piece: str) -> None:  # of one line, as long as they are not put together
        open_[-1].texts.append(piece)
        if piece.strip() and not open_[-1].text_line:
            open_[-1].text_line = parser.CurrentLineNumber

    def refuse(*_: object) -> None:
        raise InvalidInput(
            f"line {parser.CurrentLineNumber}: a document type is not read",
            hint="Take <!DOCTYPE …> out: logback needs none.",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise InvalidInput(f"the file is not XML: {error}") from None
    (found,) = root.children
    if found.tag != "configuration":
        raise InvalidInput(f"line {found.line}: the file is <{found.tag}>, not <configuration>")
    return found


# logback's loggers, levels and additivity as the key `loggers` of each appender's filter.
#
# An event of a logger has the level of the nearest logger above it that has one, and goes to the
# appenders of all loggers above it, up to the first that is not additive. For one appender that is
# a level for each logger: the effective level, or OFF if its events do not reach the appender.


ROOT: Final = ""
_DEFAULT_LEVEL: Final = "DEBUG"


@dataclass(frozen=True, slots=True)
class Logger:
    """A configured logger; `level` None: as the one above it."""

    name: str
    level: str | None
    additive: bool
    appenders: tuple[str, ...]


def loggers_of(
    configuration: Element, text: Callable[[str], str], say: Callable[[int, str], None]
) -> Mapping[str, Logger]:
    """The loggers by their names; the root is there in any case."""
    found = {ROOT: Logger(ROOT, _DEFAULT_LEVEL, True, ())}
    for one in configuration.all("logger", "root"):
        name = ROOT if one.tag == "root" else text(one.attributes.get("name", ""))
        if name.upper() == "ROOT":
            name = ROOT
        named = one.attributes.get("level")
        for child in one.children:
            if child.tag == "level":
                named = child.attributes.get("value", named)
            elif child.tag != "appender-ref":
                say(child.line, f"<{child.tag}> of a logger has no counterpart")
        refs = tuple(text(ref.attributes.get("ref", "")) for ref in one.all("appender-ref"))
        additive = one.attributes.get("additivity", "true").lower() != "false"
        found[name] = Logger(name, _level(text(named or ""), one.line, say), additive, refs)
    if found[ROOT].level is None:
        found[ROOT] = Logger(ROOT, _DEFAULT_LEVEL, True, found[ROOT].appenders)
    return found


def _level(text: str, line: int, say: Callable[[int, str], None]) -> str | None:
    level = default_of(text).upper()
    if level != text.upper():
        say(line, f"the level is {level}, whatever the environment says")
    if level in ("", "INHERITED", "NULL"):
        return None
    if level not in ("ALL", "OFF", *LEVELS):
        say(line, f"the level {text!r} is not known")
        return None
    return level


def thresholds(appender: str, loggers: Mapping[str, Logger]) -> dict[str, str]:
    """For each logger that says something else than those above it, the lowest level, or OFF."""
    levels = {name: _threshold(appender, name, loggers) for name in loggers}
    found = {}
    for name in sorted(loggers):
        above = next((one for one in _above(name) if one in levels), None)
        if name == ROOT or above is None or levels[above] != levels[name]:
            found[name] = levels[name]
    return found


def _threshold(appender: str, name: str, loggers: Mapping[str, Logger]) -> str:
    lines = [loggers[one] for one in (name, *_above(name)) if one in loggers]
    level = next((one.level for one in lines if one.level is not None), _DEFAULT_LEVEL)
    for one in lines:
        if appender in one.appenders:
            return level
        if not one.additive:
            break
    return "OFF"


def _above(name: str) -> Iterable[str]:
    """The loggers above one, the nearest first, and the root."""
    while name:
        name = name.rpartition(".")[0]
        yield name


# Variables: `${NAME}` and `${NAME:-default}`.


_DEFAULT_VALUE: Final = r"(?:[^{}]|\$\{(?:[^{}]|\$\{[^{}]*\})*\})*"  # with variables in it
_VARIABLE: Final = re.compile(r"\$\{([^{}:]+)(?::-(" + _DEFAULT_VALUE + r"))?\}")


def default_of(text: str) -> str:
    """The text with the defaults of its variables in their places; others stay."""
    return _VARIABLE.sub(lambda one: one[0] if one[2] is None else default_of(one[2]), text)


# logback's files, rolling and triggering policies as keys of `rolling_file`.


Say = Callable[[int, str], None]
Text = Callable[[Element], str]
_DATE: Final = re.compile(r"%d(?:\{([^}]*)\})?")
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(?:([kmg])b?)?\s*", re.IGNORECASE)
_DAY: Final = 86400
_PERIODS: Final = (
    *(("s", 1, "1s"), ("m", 60, "1m"), ("HhKk", 3600, "1h"), ("a", _DAY // 2, "12h")),
    *(("dDEFu", _DAY, "1d"), ("wW", 7 * _DAY, "1d"), ("ML", 31 * _DAY, "1d")),
    ("yY", 366 * _DAY, "1d"),
)
"""Letters of a date, the longest period of which they name each one, and how files are rolled."""
_NEVER: Final = "1024GiB"


def size_of(text: str) -> str:
    """A size as logback writes it, in our units; what is none stays as it is."""
    variable = _VARIABLE.fullmatch(text)
    if variable is not None and variable[2] is not None:
        return f"${{{variable[1]}:-{size_of(variable[2])}}}"
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
        seconds = self._period(pattern)[0] if pattern is not None else _DAY
        for one in policy.children:
            if one.tag == "maxHistory":
                count = self._default(one)
                if not count.isdigit():
                    self._say(one.line, f"maxHistory is {count!r}: files are kept")
                elif int(count):
                    keys["keep_for"] = f"{int(count) * seconds}s"
            elif one.tag == "totalSizeCap":
                keys["keep_bytes"] = size_of(self._text(one))
            elif one.tag not in known:
                self._say(one.line, f"<{one.tag}> has no counterpart")
        return keys

    def _default(self, one: Element) -> str:
        """The text with the defaults of its variables, whatever the environment says."""
        text = self._text(one)
        default = default_of(text)
        if default != text:
            self._say(one.line, f"<{one.tag}> is {default}, whatever the environment says")
        return default

    def _period(self, pattern: Element) -> tuple[int, str]:
        """How long a period is, in seconds and as a key."""
        dates = [one for one in _DATE.findall(self._text(pattern)) if not one.endswith("aux")]
        form = dates[0] if dates else "yyyy-MM-dd"
        letters = set(re.sub(r"'[^']*'", "", form.partition(",")[0] or "yyyy-MM-dd"))
        for some, seconds, text in _PERIODS:
            if letters.intersection(some):
                if seconds > _DAY:
                    self._say(pattern.line, f"files are rolled every day, not by {form!r}")
                return seconds, text
        self._say(pattern.line, f"files are rolled every day, since {form!r} names no period")
        return _DAY, "1d"

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


# logback's patterns with the words that the layout `pattern` knows; omitted words are named.


_WORD: Final = re.compile(r"%(-?[0-9]*(?:\.-?[0-9]+)?)([A-Za-z]+)?(\()?")
_WHOLE_WORD: Final = re.compile(r"%-?[0-9]*(?:\.-?[0-9]+)?([A-Za-z]+)(?:\{[^}]*\})?")
_COLOURS: Final = frozenset(
    [
        "clr", "highlight", "black", "red", "green", "yellow", "blue", "magenta", "cyan",
        "white", "gray", "boldRed", "boldGreen", "boldYellow", "boldBlue", "boldMagenta",
        "boldCyan", "boldWhite",
    ]
)  # fmt: skip
_EXCEPTIONS: Final = frozenset(
    [
        "ex", "exception", "throwable", "xEx", "xException", "xThrowable", "rEx",
        "rootException", "wEx", "wex", "nopex", "nopexception",
    ]
)  # fmt: skip


def converted(pattern: str) -> tuple[str, list[str]]:
    """The pattern as far as it can be, and what was left out of it."""
    left_out: list[str] = []
    text = _without_colours(" ".join(pattern.split("\n")), left_out)
    while True:
        try:
            compiled(text)
        except ValueError as error:
            word = re.search(r"the word %(\w+)", str(error))
            if word is None:
                left_out.append(f"the pattern {str(error).removeprefix('has ')}: %msg%n instead")
                return "%msg%n", left_out
            text = _without(word[1], text)
            why = "its text is in the message" if word[1] in _EXCEPTIONS else "no record has it"
            left_out.append(f"the word %{word[1]}: {why}")
        else:
            return text, left_out


def _without(name: str, text: str) -> str:
    """The pattern without one word, its width and its options."""
    return _WHOLE_WORD.sub(lambda found: "" if found[1] == name else found[0], text)


def _without_colours(text: str, left_out: list[str]) -> str:
    """`%cyan(%logger)` is `%logger`; a group with a width loses the width."""
    pieces: list[str] = []
    at = 0
    for found in _WORD.finditer(text):
        if found.start() < at or not found[3]:
            continue
        if text[max(found.start() - 1, 0)] == "\\":
            continue
        end = _closing(text, found.end())
        if end is None or (found[2] and found[2] not in _COLOURS):
            continue
        inner = _without_colours(text[found.end() : end], left_out)
        pieces += [text[at : found.start()], inner]
        option = re.match(r"\{[^}]*\}", text[end + 1 :])
        at = end + 1 + (option.end() if option else 0)
        what = f"the colour %{found[2]}" if found[2] else f"the width of a group, %{found[1]}(…)"
        if what not in left_out:
            left_out.append(what)
    return "".join([*pieces, text[at:]])


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for at, one in _unescaped(text, start):
        depth += {"(": 1, ")": -1}.get(one, 0)
        if depth == 0:
            return at
    return None


def _unescaped(text: str, start: int) -> Iterator[tuple[int, str]]:
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        yield at, text[at]
        at += 1


# The conversion of a whole configuration.


_PROPERTIES: Final = {
    "log.process.pipeline.event.delay.ms": "event_delay_ms",
    "log.process.pipeline.checkpoint.interval.ms": "checkpoint_interval_ms",
    "log.process.pipeline.buffer.size": "buffer_size_bytes",
}
_RATIO: Final = "log.process.pipeline.auto.buffer.ratio"
_OURS: Final = "log.process.pipeline."
_HANDLED: Final = (
    *("property", "variable", "springProperty", "appender", "logger", "root", "contextName"),
)
_WITHOUT_TEXT: Final = ("configuration", "appender", "logger", "root", "encoder")
_JSON: Final = ("JsonEncoder", "LogstashEncoder", "JsonLayout")


class Remark(NamedTuple):
    """A setting in a line that was not converted, and the reason."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Converted:
    """The content of a pipeline's file, and the settings that it lacks."""

    content: Mapping[str, Any]
    remarks: list[Remark]


def convert(body: bytes, name: str) -> Converted:
    """The pipeline of a configuration; `name` if it has none. Raises `InvalidInput`."""
    return _Conversion(parse(body)).run(name)


class _Conversion:
    def __init__(self, root: Element) -> None:
        self._root = root
        self._remarks: list[Remark] = []
        self._variables: dict[str, str] = {}
        self._defaults: dict[str, str] = {}
        self._line = root.line

    def run(self, name: str) -> Converted:
        root = self._root
        for attribute in sorted(set(root.attributes) - {"xmlns"}):
            self._say(root.line, f"the attribute {attribute} has no counterpart")
        settings = self._properties()
        for one in root.children:
            if one.tag not in _HANDLED and not one.tag.startswith("xsi:"):
                self._say(one.line, f"<{one.tag}> has no counterpart{_with_lines(one)}")
        self._texts(root)
        context = root.child("contextName")
        named = name if context is None else self._value(context)
        content = {"name": _fitting(named), **settings, "appenders": self._appenders()}
        if not content["appenders"]:
            raise InvalidInput(
                "no appender of the file can be converted",
                hint="; ".join(f"line {line}: {what}" for line, what in self._remarks),
            )
        return Converted(content, sorted(set(self._remarks)))

    def _texts(self, one: Element) -> None:
        """Names the text between elements, of which logback takes no notice."""
        if one.text and (one.children or one.tag in _WITHOUT_TEXT):
            self._say(one.text_line, f"the text in <{one.tag}> has no counterpart")
        for child in one.children:
            self._texts(child)

    def _say(self, line: int, what: str) -> None:
        self._remarks.append(Remark(line, what))

    # --- variables -------------------------------------------------------------------------

    def _properties(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for one in self._root.all("property", "variable", "springProperty"):
            name = one.attributes.get("name")
            value = one.attributes.get("defaultValue" if one.tag == "springProperty" else "value")
            if name is None or value is None:
                self._say(one.line, f"<{one.tag}> without name and value is not read")
                continue
            self._line = one.line
            if one.tag == "springProperty":
                self._defaults[name] = self._text(value)
                source = one.attributes.get("source", "")
                self._say(one.line, f"{name} is {value!r} or in the environment, not {source}")
                continue
            self._variables[name] = self._text(value)
            if not name.startswith(_OURS):
                continue
            ours, value = _PROPERTIES.get(name), self._variables[name]
            if ours is not None and value.isdigit():
                settings[ours] = int(value)
            elif name == _RATIO and _is_part(value):
                settings["auto_buffer_ratio"] = float(value)
            else:
                self._say(one.line, f"the property {name} has no counterpart")
        if settings.get("buffer_size_bytes"):
            settings.pop("auto_buffer_ratio", None)  # of which CDAP takes no notice then
        return settings

    def _text(self, text: str) -> str:
        """The text with what is known of its variables, also of those in defaults."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            known = self._variables.get(name)
            if known is not None:
                return known
            default = self._defaults.get(name) if found[2] is None else self._text(found[2])
            if default is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
                return default
            left = "${" + name + ("" if default is None else f":-{default}") + "}"
            if default is not None and "${" in default:
                self._say(
                    self._line,
                    f"{left} has a variable in its default, which the file is refused for:"
                    f" write ${{{name}}} there, and set it",
                )
            else:
                need = "has to" if default is None else "can"
                self._say(self._line, f"{left} is not defined here: the environment {need}")
            return left

        return _VARIABLE.sub(value, text)

    def _value(self, element: Element) -> str:
        self._line = element.line
        return self._text(element.text)

    # --- appenders -------------------------------------------------------------------------

    def _appenders(self) -> list[dict[str, Any]]:
        loggers = loggers_of(self._root, self._text, self._say)
        known = {one.attributes.get("name", ""): one for one in self._root.all("appender")}
        named = {name for one in loggers.values() for name in one.appenders}
        for one in self._root.all("logger", "root"):
            for ref in one.all("appender-ref"):
                if self._text(ref.attributes.get("ref", "")) not in known:
                    self._say(ref.line, f"there is no appender {ref.attributes.get('ref')!r}")
        found = []
        for name, element in known.items():
            if name not in named:
                if not self._is_wrapped(name):
                    self._say(element.line, f"no logger refers to the appender {name}")
                continue
            made = self._appender(element, known)
            if made is None:
                continue
            levels = thresholds(name, loggers)
            chosen = self._filter(element)
            if levels != {"": "ALL"}:
                chosen["loggers"] = {one or "root": level for one, level in levels.items()}
            more = {"filter": chosen} if chosen else {}
            found.append({"type": made.pop("type"), "name": _fitting(name), **more, **made})
        return found

    def _is_wrapped(self, name: str) -> bool:
        refs = [ref for one in self._root.all("appender") for ref in one.all("appender-ref")]
        return name in [ref.attributes.get("ref") for ref in refs]

    def _appender(self, one: Element, known: Mapping[str, Element]) -> dict[str, Any] | None:
        kind = one.attributes.get("class", "").rpartition(".")[2]
        files = Files(self._value, self._say)
        layout = self._layout(one)
        self._others(one, kind)
        if kind == "ConsoleAppender":
            return {"type": "stdout", **layout}
        if kind in ("FileAppender", "RollingFileAppender"):
            return {
                "type": "rolling_file",
                **files.keys(one, rolls=kind == "RollingFileAppender"),
                **layout,
            }
        if kind == "RollingLocationLogAppender":
            return {"type": "rolling_file", **self._location(one, files), **layout}
        if kind == "AsyncAppender":
            return self._async(one, known)
        if kind == "MetricsLogAppender":
            self._say(one.line, "the counts go to a file: put its folder into METRICS_DIR")
            file = "${METRICS_DIR:-.}/" + _fitting(one.attributes.get("name", "")) + ".prom"
            return {"type": "metrics", "file": file, "labels": ["level", "fqn"]}
        why = {"CDAPLogAppender": "the runs and the table of Tailrace have every line already"}.get(
            kind, "there is none of this kind"
        )
        self._say(one.line, f"the appender {one.attributes.get('name')} ({kind}): {why}")
        return None

    def _location(self, one: Element, files: Files) -> dict[str, Any]:
        """CDAP's rolling appender: files below the folder of namespace and application."""
        base, file = one.child("basePath"), one.child("filePath")
        path = "" if file is None else self._value(file).replace("instanceId", "{part}")
        keys: dict[str, Any] = {
            "dir": "." if base is None else self._value(base),
            "path": "{service}/{fqn}/" + path.lstrip("/"),
        }
        names = {"dirPermissions": "dir_permissions", "filePermissions": "file_permissions"}
        for child in one.children:
            if child.tag in names:
                keys[names[child.tag]] = self._value(child)
            elif child.tag == "fileMaxInactiveTimeMs":
                keys["idle_close"] = f"{self._value(child)}ms"
        rolling = files.keys(one, rolls=True)
        return {**{k: v for k, v in rolling.items() if k not in ("dir", "path")}, **keys}

    def _async(self, one: Element, known: Mapping[str, Element]) -> dict[str, Any] | None:
        refs = list(one.all("appender-ref"))
        inner = known.get(refs[0].attributes.get("ref", "")) if refs else None
        if inner is None:
            self._say(one.line, "it has no appender that is known")
            return None
        for more in refs[1:]:
            self._say(more.line, "an asynchronous appender has one appender")
        made = self._appender(inner, known)
        return None if made is None else {"type": "async", "to": made}

    def _others(self, one: Element, kind: str) -> None:
        """Names what is in an appender and is not looked at."""
        location = ("basePath", "filePath", "dirPermissions", "filePermissions",
                    "fileMaxInactiveTimeMs")  # fmt: skip
        known = {"encoder", "layout", "filter", "file", "rollingPolicy", "triggeringPolicy"}
        known |= {"appender-ref"} if kind == "AsyncAppender" else set()
        known |= set(location) if kind == "RollingLocationLogAppender" else set()
        for child in one.children:
            if child.tag not in known and not (child.tag == "append" and child.text == "true"):
                self._say(child.line, f"<{child.tag}> of an appender has no counterpart")

    def _filter(self, one: Element) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in one.all("filter"):
            kind = each.attributes.get("class", "").rpartition(".")[2]
            level = each.child("level")
            given = "" if level is None else self._value(level)
            name = default_of(given).upper()
            if name != given.upper():
                self._say(each.line, f"the level is {name}, whatever the environment says")
            answers = [self._value(a).upper() for a in each.all("onMatch", "onMismatch")]
            if kind == "ThresholdFilter" and name in LEVELS:
                found["level"] = name
            elif kind == "LevelFilter" and name in LEVELS and answers == ["ACCEPT", "DENY"]:
                found["where"] = f"level:{name}"
            elif kind == "LevelFilter" and name in LEVELS and answers[:1] == ["DENY"]:
                found["where"] = f"NOT level:{name}"
            else:
                self._say(each.line, f"the filter {kind}{_with_lines(each)} has no counterpart")
        return found

    def _layout(self, one: Element) -> dict[str, Any]:
        for encoder in one.all("encoder", "layout"):
            kind = encoder.attributes.get("class", "").rpartition(".")[2]
            nested = encoder.child("layout") or encoder
            pattern = nested.child("pattern")
            for child in encoder.children:
                charset = child.tag == "charset" and child.text.lower().replace("-", "") == "utf8"
                if child.tag not in ("pattern", "layout") and not charset:
                    self._say(child.line, f"<{child.tag}> of an encoder has no counterpart")
            if kind in _JSON:
                self._say(encoder.line, f"{kind}: the fields are those of Tailrace's JSON")
                return {"layout": {"type": "json"}}
            if pattern is None:
                self._say(encoder.line, f"the encoder {kind or 'without a pattern'} is not known")
                continue
            text, left_out = converted(self._value(pattern))
            for what in left_out:
                self._say(pattern.line, what)
            return {"layout": {"type": "pattern", "pattern": text}}
        return {}


def _is_part(value: str) -> bool:
    """Whether it is a number between 0 and 1."""
    return re.fullmatch(r"0?\.[0-9]*[1-9][0-9]*", value) is not None


def _with_lines(one: Element) -> str:
    """`, with all up to line N`, for an element that has others in it."""
    last = one.line
    todo = list(one.children)
    while todo:
        child = todo.pop()
        last = max(last, child.line)
        todo += child.children
    return f", with all up to line {last}" if last > one.line else ""


def _fitting(name: str) -> str:
    """A name that a pipeline or an appender may have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:64] or "logback"
