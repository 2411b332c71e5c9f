"""Finds the level that each line of text states.

A level is one of `schema.LEVELS`; `spellings` has the words, letters and numbers. The first of
these that finds something decides:

1. A line that is a JSON object, or ends in one, has the level of its level key, wherever the key
   stands. Without a level key it has none: words in its message are not looked at. Docker's
   `{"log": …}` is searched for the text in it.
2. A line of logfmt has the level of its level key.
3. The first word after digits, punctuation and times, if it is a level in capitals, in brackets,
   before a colon, or directly after a time of day.
4. The rules of `RULES` in order, within the first `WINDOW` bytes without colours.

All patterns are RE2's, so their time is linear. `first_words` settles most lines; the rules see
only the others that match one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.patterns import BytesRegex
from logstore.segments.first_words import FirstWords, find_first_words
from logstore.segments.prefixes import prefixes
from logstore.segments.schema import LEVELS
from logstore.segments.spellings import (
    LEVEL_KEYS,
    NO_LEVEL,
    OTEL_KEYS,
    PYTHON_KEYS,
    SYSLOG_KEYS,
    level_of_letter,
    level_of_syslog,
    level_of_value,
    level_of_word,
)

WINDOW: Final = 128
"""Bytes of a line in which the rules for text look, without colours."""
_COLOURED: Final = 4 * WINDOW  # bytes of a line in which control sequences are removed
_ERROR, _FATAL = LEVELS.index("ERROR"), LEVELS.index("FATAL")
_PATTERN_PER_LINE: Final = 2  # characters of a pattern that Arrow compiles while a line is searched
_CONTROL = r"\x1b\[[0-9;:?]*[A-Za-z]"  # ECMA-48's CSI, as terminals get them
_LESS, _EQUALS, _DOT, _MINUS, _SLASH, _BRACE, _RETURN = b"<=.-/}\r"
_ESCAPE = b"\x1b"

Levels = NDArray[np.int8]
Rows = NDArray[np.int64]
Bools = NDArray[np.bool_]


def _any_of(names: Mapping[str, int] | tuple[str, ...]) -> str:
    """An alternation of names, longer ones first."""
    return "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))


class Rule(NamedTuple):
    """A pattern, and the level of what its group `level` matched; of any match without a group."""

    pattern: str
    level: Callable[[str], int]


# In the middle of a line only these count, and only in capitals: "no error" is not a level.
_CAPITALS = (
    r"TRACE|DEBUG[1-5]?|INFO|NOTICE|WARNING|WARN|ERROR|ERR|SEVERE|CRITICAL|CRIT|FATAL|PANIC|EMERG"
)
_WORDS = (
    r"trace|trce|verbose|debug[1-5]?|dbug|dbg|information|info|inf|notice|warning|warn|wrn|error|eror|err"
    r"|severe|critical|crit|fatal|ftl|alert|emergency|emerg|panic"
)
_TIME_ONLY = r"(?:\[[^\]]*\] ?|[-\d:.,/ TZ+])*"
_PROSE = (
    r"(?i:no|any|an|a|the|without|zero|0|not|of|for|on|if|as|with|to|this|that|each|every|and|or"
    r"|is|was|got|into|at|from|after|before|by|in|level|levels|all|more|than|their|its|our|your)"
)
_KEYED = r"(?i:level|lvl|severity)"

RULES: Final = (
    # logcat.
    Rule(
        r"^(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +\d+ +\d+ (?P<level>[VDIWEFA]) ",
        level_of_letter,
    ),
    # An access log states a status, not a level; paths and agents hold any word.
    Rule(r"^(?:\S+ ){3,5}\[\d\d?/[A-Z][a-z][a-z]/\d{4}:\d\d:", lambda _: NO_LEVEL),
    # Syslog's priority: facility * 8 + severity.
    Rule(
        r"^<(?P<level>1[0-8]\d|19[01]|[1-9]?\d)>",
        lambda text: level_of_syslog(int(text) % 8),
    ),
    Rule(
        r" (?:kern|user|mail|daemon|auth|authpriv|syslog|lpr|news|uucp|cron|ftp|local[0-7])"
        r"\.(?P<level>emerg|alert|crit|err|error|warn|warning|notice|info|debug) ",
        level_of_word,
    ),
    # klog and glog, brief logcat, one letter in brackets, Tornado, MongoDB 4, apt, Kotlin.
    Rule(r"(?:^|[ :])(?P<level>[IWEFD])(?:\d{4}){1,2} \d\d:\d\d:\d\d\.", level_of_letter),
    Rule(r"^(?P<level>[VDIWEFA])/[^(]{1,60}\( *\d+\): ", level_of_letter),
    Rule(
        r"(?:^|^[-\d:. ]+ |/[\w.]+ )(?P<level>[VDIWEFA])/[\w.$-]{2,60}(?:\( *\d+\))?: ",
        level_of_letter,
    ),
    Rule(rf"^{_TIME_ONLY}\[(?P<level>[TVDINWEFCA])\]", level_of_letter),
    Rule(r"^\[(?P<level>[DIWEC]) (?:[-\d]{6,10} )?\d\d:\d\d:\d\d", level_of_letter),
    Rule(
        r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[-+]\d\d:?\d\d) (?P<level>[IWEFD])\d? +[A-Z]+ +\[",
        level_of_letter,
    ),
    Rule(r"^(?P<level>[EWNewi]): ", lambda text: level_of_letter(text.upper())),
    # Exceptions that nobody caught, and their kind: Go, Python, Java, Rust, JavaScript, PHP, .NET.
    Rule(
        r"^(?:panic|fatal error|fatal runtime error): |^Fatal Python error: "
        r"|[\]:] Kernel panic - ",
        lambda _: _FATAL,
    ),
    Rule(
        r"^(?:(?: +\+ Exception Group )?Traceback \(most recent call last\):"
        r"|Exception (?:in thread |in Tkinter callback|ignored in: )"
        r"|thread '.*'.* (?:panicked at|has overflowed its stack)"
        r"|\[?Uncaught (?:\(in promise\)|['\"]|(?:[\w$]+[.\\])*[A-Z]?\w*(?:[Ee]rror|[Ee]xception))"
        r"|\[?Unhandled ?(?i:exception|rejection|error|promise)"
        r"|\(node:\d+\) Unhandled|make(?:\[\d+\])?: \*\*\* "
        r"|terminate called after throwing|\*\* \([A-Z][\w.]*\) |\S+:\d+:in .*\([\w:]*Error\)"
        r"|(?:[\w$]+\.)*[A-Z][\w$]*(?:Error|Exception)(?: \[[A-Z_]+\])?(?::|$)|Exception: "
        r"|(?:[\d/]+ [\d:.]+ )?http: panic serving "
        r"|Error(?: response from daemon)?: )",
        lambda _: _ERROR,
    ),
    Rule(r"^\S+\.py:\d+: \w*Warning: ", lambda _: level_of_word("warn")),
    Rule(r"^PHP (?P<level>Fatal|Parse|Warning|Notice|Deprecated)", lambda text: _php(text)),
    # Commands of GitHub and Azure, npm and its like, logrus on a terminal, BGL's last column.
    Rule(
        r"^(?:::|##\[|##vso\[task\.logissue type=)(?P<level>error|warning|notice|debug)\b",
        level_of_word,
    ),
    Rule(
        r"^(?:npm|pnpm|yarn) "
        r"(?P<level>ERR|error|WARN|warn|notice|info|http|verb|verbose|sill|silly)\b",
        lambda text: _npm(text),
    ),
    Rule(r"^(?P<level>error|warning) [A-Z\"]", level_of_word),  # yarn
    Rule(r"^at=(?P<level>info|warning|error) ", level_of_word),  # Heroku
    Rule(r"^(?P<level>TRAC|DEBU|ERRO|FATA|PANI)\[\d+\]", level_of_word),
    Rule(r" RAS [A-Z]+ (?P<level>INFO|WARNING|SEVERE|ERROR|FAILURE|FATAL) ", level_of_word),
    Rule(r"^CMake (?P<level>Error|Warning)\b", level_of_word),
    # NetworkManager.
    Rule(r": <(?P<level>trace|debug|info|warn|error)> +\[", level_of_word),
    # A word in any case before a colon: syslog's tags, compilers.
    Rule(
        rf"(?:^\W{{0,3}}|[:)] |- )(?P<level>(?i:{_WORDS}|fail|note))(?: error)?"
        r"(?:\[\w+\]| [A-Z]+\d+)?:(?:\s|$)",
        level_of_word,
    ),
    # Postgres.
    Rule(r"(?:^|[\s\]>:])LOG:  ", lambda _: level_of_word("info")),
    # The leftmost of: a key, a word in brackets, a word in capitals that is not part of a sentence.
    Rule(
        rf'{_KEYED}="?(?P<level>(?i:{_WORDS}))\b|{_KEYED}"\s*[:=]\s*"(?P<quoted>(?i:{_WORDS}))\b'
        rf"|\[(?:[\w.-]+:)?(?P<bracketed>(?i:{_WORDS}|note)) {{0,8}}\]"
        rf"|\b{_PROSE}\s+(?:{_CAPITALS})\b"
        rf"|\w\.(?P<channel>{_CAPITALS}): "
        rf"|(?:^|[^\w/\"'$.=])(?P<capitals>{_CAPITALS})(?:[^\w=<.-]|[.-](?:\W|$)|$)",
        level_of_word,
    ),
)


def _php(text: str) -> int:
    return {"Fatal": _FATAL, "Parse": _ERROR, "Deprecated": level_of_word("warn")}.get(
        text, level_of_word(text)
    )


def _npm(text: str) -> int:
    known = {"http": "info", "verb": "trace", "sill": "trace"}
    return level_of_word(known.get(text, text))


_LEVEL_GROUPS = re.compile(r"\(\?P<\w+>")
_ANY_RULE: Final = "|".join(_LEVEL_GROUPS.sub("(?:", rule.pattern) for rule in RULES)
_ENDS_OF_STATED: Final = np.zeros(256, np.bool_)
_ENDS_OF_STATED[list(b"]:|")] = True
_JOINTS: Final = np.zeros(256, np.bool_)  # behind a word in capitals: `ERROR=0`, `INFO.plist`
_JOINTS[list(b"=.-<")] = True
_AFTER_CLOCK: Final = (
    r"^(?:[^A-Za-z]|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r"\b|T\d)*:\d\d[^A-Za-z]*(?:(?:Z|[AP]M|[A-Z]{3,4})\W+)?[A-Za-z]"
)
_LOGFMT: Final = (
    r'^(?:[^\s="]+=(?:"(?:[^"\\]|\\.)*"|[^\s"]*)\s+)*?'
    rf'(?i:{_any_of(LEVEL_KEYS)})="?(?P<level>\w+)'
)


_OBJECT_LEVELS: Final = (*LEVEL_KEYS, *OTEL_KEYS, *PYTHON_KEYS, *SYSLOG_KEYS)


class Found(NamedTuple):
    """The index into `LEVELS` for each line, `NO_LEVEL` where none is found.

    `leading` says which lines are headed by their level, or are JSON.
    """

    levels: Levels
    leading: NDArray[np.bool_]


def find_levels(lines: Lines, words: FirstWords) -> Found:
    """Finds the level of each record; `words` are the first words of the records."""
    levels = np.full(len(words.levels), NO_LEVEL, dtype=np.int8)
    leading = _put_first_words(lines, words, levels)
    _put_objects(lines, leading, levels)
    left = np.flatnonzero(~leading)
    left = _apply_logfmt(lines, words, left, levels)
    window = lines.take_window(left)
    some = matches(window, _ANY_RULE)
    _apply_rules(window.filter(pa.array(some)), left[some], levels)
    return Found(levels, leading)


def find_levels_of(lines: Sequence[bytes]) -> Found:
    """Finds the level of each line, given without its newline."""
    text = b"\n".join((*lines, b""))
    ends = np.fromiter(accumulate(len(line) + 1 for line in lines), np.int64, len(lines))
    return find_levels(Lines(text, ends), find_first_words(prefixes(text, ends)))


class Lines:
    """The records of a text as columns of Arrow, made only of the rows that are asked for."""

    def __init__(self, text: bytes, ends: Rows) -> None:
        self._bytes = np.frombuffer(text, np.uint8)
        self._ends = ends
        self._coloured = _ESCAPE in text
        offsets = np.concatenate((np.zeros(1, np.int64), ends))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        self._array = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)

    def take(self, rows: Rows) -> pa.Array:
        """The whole lines, without their newlines."""
        return pc.binary_slice(self._array.take(pa.array(rows)), 0, -1)

    def take_window(self, rows: Rows) -> pa.Array:
        """The first `WINDOW` bytes of each line, without control sequences."""
        lines = self.take(rows)
        if not self._coloured:
            return pc.binary_slice(lines, 0, WINDOW).cast(pa.binary())
        short = pc.binary_slice(lines, 0, _COLOURED).cast(pa.binary())
        return pc.binary_slice(pc.replace_substring_regex(short, _CONTROL, b""), 0, WINDOW)

    def find_last(self, byte: int) -> Bools:
        """Which lines end with a byte, before `\\n` or `\\r\\n`."""
        last = self._bytes[np.maximum(self._ends - 2, 0)]
        before = self._bytes[np.maximum(self._ends - 3, 0)]
        found: Bools = (last == byte) | ((last == _RETURN) & (before == byte))
        return found


def matches(lines: pa.Array, pattern: str) -> Bools:
    """Which lines hold a match of RE2's pattern."""
    if are_few(lines, pattern):
        finds = regex_of(pattern).finds
        return np.fromiter(map(finds, lines.to_pylist()), np.bool_, len(lines))
    found: Bools = pc.match_substring_regex(lines, pattern).to_numpy(zero_copy_only=False)
    return found


def are_few(lines: pa.Array, pattern: str) -> bool:
    """Whether to search the lines one by one: Arrow compiles the pattern in each call."""
    return len(lines) <= len(pattern) // _PATTERN_PER_LINE


@cache
def regex_of(pattern: str) -> BytesRegex:
    """The pattern, which is one of this program's, compiled once."""
    return BytesRegex(pattern)


def _put_first_words(lines: Lines, words: FirstWords, levels: Levels) -> Bools:
    """Sets the level of lines whose first word states it; gives which they are.

    A word states a level in capitals, in brackets, before a colon, or directly after a time.
    """
    named: Bools = words.levels != NO_LEVEL
    if not named.any():
        return named
    named &= ~(words.firsts == _LESS)  # syslog's priority
    named &= ~(words.capitals & _JOINTS[words.marks])
    stated: Bools = named & (words.capitals | _ENDS_OF_STATED[words.marks])
    bare = np.flatnonzero(named & ~stated)
    if len(bare):
        stated[bare[matches(lines.take_window(bare), _AFTER_CLOCK)]] = True
    levels[stated] = words.levels[stated]
    return stated


def _put_objects(lines: Lines, done: Bools, levels: Levels) -> None:
    """Sets the level of lines that are JSON objects, or end in one, and marks them as done."""
    rows = np.flatnonzero(lines.find_last(_BRACE) & ~done)
    texts: list[tuple[int, bytes]] = []
    for row, line in zip(rows.tolist(), lines.take(rows).to_pylist(), strict=True):
        start = _start_of_object(line)
        record = _record(line[start:]) if start >= 0 else None
        if record is None:
            continue
        level = _level_of_record(record)
        if level == NO_LEVEL and line[:start].strip():
            continue
        done[row] = True
        levels[row] = level
        text = record.get("log")
        if level == NO_LEVEL and isinstance(text, str) and "stream" in record:
            texts.append((row, text.rstrip("\n").encode(errors="surrogatepass")))
    if texts:  # Docker's json-file
        levels[[row for row, _ in texts]] = find_levels_of([text for _, text in texts]).levels


def _start_of_object(line: bytes) -> int:
    return line.find(b"{" if line.lstrip().startswith(b"{") else b'{"')


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _level_of_record(record: Mapping[str, Any]) -> int:
    """The level of a JSON object: of a level key in any case, or of ECS, Loguru or MongoDB.

    One that leaves the level out states none, though Serilog means Information by that.
    """
    keys = {key.lower(): key for key in record}
    for name in _OBJECT_LEVELS:
        key = keys.get(name)
        if key is not None:
            level = level_of_value(record[key], name)
            if level != NO_LEVEL:
                return level
    nested = record.get("log", record.get("record"))
    if isinstance(nested, dict) and "level" in nested:
        level = nested["level"]
        return level_of_value(level.get("name") if isinstance(level, dict) else level)
    if "s" in record and "c" in record:
        return level_of_letter(str(record["s"])[:1])
    return NO_LEVEL


def _apply_logfmt(lines: Lines, words: FirstWords, left: Rows, levels: Levels) -> Rows:
    """Sets the level of lines of logfmt among the rows `left`; gives the others."""
    mark = words.marks[left]
    keyed = (mark == _EQUALS) | (mark == _DOT) | (mark == _MINUS) | (mark == _SLASH)
    keyed &= words.columns[left] == 1
    if not keyed.any():
        return left
    found = _put_rule(Rule(_LOGFMT, level_of_word), lines.take(left[keyed]), left[keyed], levels)
    keyed[keyed] = found
    others: Rows = left[~keyed]
    return others


def _apply_rules(window: pa.Array, left: Rows, levels: Levels) -> None:
    """Sets the levels of the rows `left`, whose beginnings are `window`, by the first rule."""
    for rule in RULES:
        if len(left) == 0:
            return
        found = _put_rule(rule, window, left, levels)
        if found.any():
            left, window = left[~found], window.filter(pa.array(~found))


def _put_rule(rule: Rule, window: pa.Array, rows: Rows, levels: Levels) -> Bools:
    """Sets the levels of the rows in which the rule's pattern is found; gives which they are."""
    found = matches(window, rule.pattern)
    if not found.any():
        return found
    if "(?P<" not in rule.pattern:
        levels[rows[found]] = rule.level("")
        return found
    texts = _first_groups(window.filter(pa.array(found)), rule.pattern).dictionary_encode()
    names = [text.decode("latin-1") for text in texts.dictionary.to_pylist()]
    values = np.array([rule.level(name) if name else NO_LEVEL for name in names], dtype=np.int8)
    levels[rows[found]] = values[texts.indices.to_numpy()]
    return found


def _first_groups(lines: pa.Array, pattern: str) -> pa.Array:
    """Of each line, which matches, the text of the group that took part: the others are empty."""
    if are_few(lines, pattern):
        found = map(regex_of(pattern).groups, lines.to_pylist())
        return pa.array([next(filter(None, texts), b"") for texts in found], lines.type)
    groups = pc.extract_regex(lines, pattern)
    names = [field.name for field in groups.type]
    columns = [pc.fill_null(pc.struct_field(groups, name), b"") for name in names]
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", columns[0].type))
