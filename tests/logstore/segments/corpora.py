"""Batches that hypothesis makes up: hostile lines, shared ids, duplicates, records."""

from __future__ import annotations

from hypothesis import strategies as st

from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.ulid import LINE_BITS, RANDOM_BITS
from tests.batches import Entry, MemoryBatches, make_batches

PIECES = (
    "2024-02-29 12:34:56", "2023-02-29T12:34:56", "2024-13-01 00:00:00", "0000-01-01 00:00:00",
    "2024/01/02 03:04:05", "9999-12-31 23:59:59", ".123", ",123456789", ".9", "Z", "+01:00",
    "-0530", "+99:99",
    "CET", "CST", "PM", " +0100", "9:05:01", "11/29/2026 ", "INFO", "WARN",
    "WARNING", "ERROR", "error", "[info]", "[Error", "level=",
    "debug", '"level": "', '"', "severity:", "CRITICAL", "FATAL", "TRACES", "XDEBUG", "SEVERE",
    "notice", ", Info", "\r", " ", "  ", ":", "[", "]", "=", "\t", "x", "é", "🙂", "\x00",
    "\x1b[32m", "\x1b[0m", "\x1b[1;31m", "\x1b", "[error   ]", "[info  ", "\x1b[0m]",
    "lorem ipsum dolor ", "03-17 16:13:38.811  1702  2395 D ", "\x85", "\u2028", "0", "_", "x" * 90,
)  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
KEYS = st.sampled_from([RunKey("svc.a", "1"), RunKey("svc.a", "2"), RunKey("svc.b/é", "1")])
ULIDS = st.builds(
    lambda ms, part: ms << RANDOM_BITS | part << LINE_BITS,
    st.integers(1_700_000_000_000, 1_700_000_000_003),
    st.sampled_from([0, 1, (1 << 55) - 1]),
)
CONNECTORS = st.sampled_from([None, "c1", "c2"])
TIMES = st.none() | st.integers(-2_208_988_800_000_000, 253_402_300_799_999_999)
ATTRIBUTES = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1)


def _text(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


@st.composite
def _plain(draw: st.DrawFn) -> Entry:
    text = _text(draw(st.lists(LINES, min_size=1, max_size=5)))
    return draw(KEYS), draw(ULIDS), text, draw(CONNECTORS)


@st.composite
def _constant(draw: st.DrawFn) -> Entry:
    key, ulid, text, connector = draw(_plain())[:4]  # type: ignore[misc]
    return key, ulid, text, connector, draw(ATTRIBUTES)


@st.composite
def _records(draw: st.DrawFn) -> Entry:
    records = draw(st.lists(st.lists(LINES, min_size=1, max_size=3), min_size=1, max_size=4))
    texts = [_text(lines) for lines in records]
    ends = [sum(map(len, texts[: k + 1])) for k in range(len(texts))]
    count = len(texts)
    meta = RecordMeta(
        ends,
        draw(st.lists(TIMES, min_size=count, max_size=count)),
        draw(
            st.lists(
                st.none() | st.sampled_from([*LEVELS, "AUDIT"]), min_size=count, max_size=count
            )
        ),
        draw(st.lists(ATTRIBUTES, min_size=count, max_size=count)),
    )
    return draw(KEYS), draw(ULIDS), b"".join(texts), draw(CONNECTORS), meta


@st.composite
def many_batches(draw: st.DrawFn, *, repeat: bool = True) -> MemoryBatches:
    """Up to a dozen batches: an id names its bytes within a run, as the journal sees to.

    With `repeat`, a batch may come more than once.
    """
    entries = draw(st.lists(_plain() | _constant() | _records(), max_size=12))
    named: dict[tuple[RunKey, int], Entry] = {}
    kept = [named.setdefault((entry[0], entry[1]), entry) for entry in entries]
    kept = kept if repeat else list(named.values())
    return make_batches("node-1", kept, draw(st.sampled_from([0, 1000])))
