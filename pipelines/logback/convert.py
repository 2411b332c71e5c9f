"""A logback configuration as a pipeline; every line that has no counterpart is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logstore.errors import InvalidInput
from logstore.segments.schema import LEVELS
from pipelines.logback.document import Element, parse
from pipelines.logback.loggers import loggers_of, thresholds
from pipelines.logback.rolling import Files
from pipelines.logback.words import converted

_DEFAULT: Final = r"(?:[^{}]|\$\{(?:[^{}]|\$\{[^{}]*\})*\})*"  # with variables in it
_VARIABLE: Final = re.compile(r"\$\{([^{}:]+)(?::-(" + _DEFAULT + r"))?\}")
_PROPERTIES: Final = {
    "log.process.pipeline.event.delay.ms": "event_delay_ms",
    "log.process.pipeline.checkpoint.interval.ms": "checkpoint_interval_ms",
    "log.process.pipeline.buffer.size": "buffer_size_bytes",
}
_RATIO: Final = "log.process.pipeline.auto.buffer.ratio"
_OURS: Final = "log.process.pipeline."
_HANDLED: Final = ("property", "variable", "appender", "logger", "root", "contextName")
_WITHOUT_TEXT: Final = ("configuration", "appender", "logger", "root", "encoder")
_JSON: Final = ("JsonEncoder", "LogstashEncoder", "JsonLayout")


class Remark(NamedTuple):
    """What a line has that was not converted, and why."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Converted:
    """The content of a pipeline's file, and what is not in it."""

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
        for one in self._root.all("property", "variable"):
            name, value = one.attributes.get("name"), one.attributes.get("value")
            if name is None or value is None:
                self._say(one.line, f"<{one.tag}> without name and value is not read")
                continue
            self._line = one.line
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
            default = None if found[2] is None else self._text(found[2])
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
                self._say(self._line, f"{left} is not defined here: the environment has to")
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
        why = {
            "CDAPLogAppender": "the runs and the table of Tailrace have every line already",
        }.get(kind, "there is none of this kind")
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
            name = "" if level is None else self._value(level).upper()
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
