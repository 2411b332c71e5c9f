"""Signs of other search languages that mean nothing here, and what to write instead.

Who knows Lucene, Kibana, Loki, VictoriaLogs, Splunk or SQL types them. As text they would find
nothing, or something else than was meant, without a word. So a bare word or value that looks like
one is refused. Within quotes everything is text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from logstore.patterns import LinearRegex


class Refusal(NamedTuple):
    """What is wrong with a word, and what to write."""

    what: str
    hint: str


def foreign_word(word: str) -> Refusal | None:
    """Why a bare word is refused; None if it is text."""
    return _refusal(word, _WORDS)


def foreign_value(value: str) -> Refusal | None:
    """Why a bare value behind a field is refused; None if it is text."""
    return _refusal(value, _VALUES)


def field_hint(name: str) -> str:
    """What to write for a name before a colon that is no field."""
    meant = _FIELD_NAMES.get(name.lower())
    if meant is not None:
        return meant
    return (
        "Fields are message, fqn, run, level, connector, ts, ulid, pos, attributes.x, json.x and "
        f"logfmt.x: write json.{name}:… or logfmt.{name}:… for what lines have. Text with a colon "
        'goes into quotes: "Caused by: x".'
    )


_FIELD_NAMES: Final = {
    "_exists_": "Write field:* for records that have the field, for example json.user:*.",
    "_missing_": "Write NOT field:* for records without the field.",
    "_time": "Give from and to, or compare the line's own time: ts>now-5m.",
    "_msg": "Write message:…, or the text alone.",
    "_stream": "Write fqn:… and run:…",
    "@timestamp": "Write ts>=2026-11-21T10:00:00Z, ts>now-5m or ts:[low TO high].",
    **dict.fromkeys(
        ("time", "timestamp"),
        "Write ts>=2026-11-21T10:00:00Z, ts>now-5m or ts:[low TO high]; json.time:… is what the "
        "line has.",
    ),
    **dict.fromkeys(
        ("severity", "lvl", "loglevel"), "Write level:ERROR or level>=WARN; json.lvl:… is raw."
    ),
    **dict.fromkeys(("pipeline", "job", "app", "stream"), "Write fqn:… for a pipeline."),
    **dict.fromkeys(("msg", "text"), "Write message:…, or json.msg:… for a value in JSON."),
}

_QUOTES: Final = 'As text it goes into quotes: "{word}".'
_PIPES: Final = (
    "There are no pipes. limit and order are parameters, GET /query/count counts, and "
    "GET /query/histogram counts over time. " + _QUOTES
)
_EITHER: Final = (
    (r"(?i:and|or|not)", "{word!r} is in small letters",
     'Operators are in capitals: {upper}. A sentence goes into quotes: "was {word} found".'),
    (r".*(?:&&|\|\|).*", "this operator stands within a word",
     "Write blanks around && and ||, or AND and OR. " + _QUOTES),
    (r"['`].*", "this sign quotes nothing", 'Quotes are double: "a text". ' + _QUOTES),
    (r".*\\[:*()\"!\[\]{}^~?].*", "a backslash means nothing outside of quotes", _QUOTES),
)  # fmt: skip
_WORDS: Final = (
    *_EITHER,
    (r"\||\|>", "there is no command behind a |", _PIPES),
    (r"\|=", "|= is no operator", 'Write the text alone: "a text".'),
    (r"\|~|=~", "{word} is no operator", "Write a regular expression between slashes: /a.*b/."),
    (r"!~|!=", "{word} has no field before it",
     'Write NOT "a text", NOT /a.*b/ or field!=value, without blanks.'),
    (r"[&=<>~!^+]+", "{word!r} has no field before it",
     "Write field>=value without blanks around the operator. " + _QUOTES),
    (r".*\w(?:~[0-9.]*|\^[0-9.]+)", "words have neither distance nor weight",
     "Write a regular expression: /colou?r/. " + _QUOTES),
    (r"[\w*]*\w\?\w[\w*]*", "a ? stands for no character",
     "Write * for anything, or a regular expression: /te.t/. " + _QUOTES),
    (r"\{[\w.]+(?:=~|!~|!=|=).*", "{{…}} selects nothing",
     "Write fqn:name, run:name or attributes.name:value. " + _QUOTES),
    (r"[\w.]+(?:=~|!~).*", "{key} is compared with no text here",
     "Write a regular expression behind a field and a colon: field:/a.*b/. " + _QUOTES),
    (r"[\w.]+='.*", "{key} is compared with no text here",
     'Write field:"a text", with a field such as level, fqn or json.x. ' + _QUOTES),
    (r"(?:earliest|latest)=.+", "{key} is no field", "Give from and to. " + _QUOTES),
    (r"(?:index|sourcetype)=.+", "{key} is no field",
     "Write fqn:name, run:name or connector:name. " + _QUOTES),
    (r"[A-Za-z_][\w.-]*(?:[<>]=?|!=|==)[-+]?[0-9][0-9.]*", "there is no field {key!r}",
     "Write json.{word} or logfmt.{word} for what lines have. " + _QUOTES),
)  # fmt: skip
_VALUES: Final = (
    *_EITHER,
    (r"~.*", "~ begins no value",
     "Write a regular expression between slashes: field:/a.*b/. " + _QUOTES),
    (r"[=<>!].*", "{first} does not belong there",
     "Operators are field=x, field!=x, field>=x, field>x, field<=x and field<x. " + _QUOTES),
    (r"[\w.*-]*\w\?[\w.*-]+", "a ? stands for no character",
     "Write * for anything, or a regular expression: field:/te.t/. " + _QUOTES),
    (r".*,", "a comma separates nothing here", "Write field:(a OR b). " + _QUOTES),
)  # fmt: skip


@cache
def _regex(pattern: str) -> LinearRegex:
    return LinearRegex(f"(?s:{pattern})")


def _refusal(word: str, rules: tuple[tuple[str, str, str], ...]) -> Refusal | None:
    for pattern, what, hint in rules:
        if _regex(pattern).fullmatch(word):
            shown = word[:80]
            key = re.split(r"[=<>!]", shown, maxsplit=1)[0]
            given = {"word": shown, "upper": shown.upper(), "key": key, "first": shown[0]}
            return Refusal(what.format(**given), hint.format(**given))
    return None
