from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.logstore.batch import WINDOW, RecordMeta, RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import LEVELS, SCHEMA
from tailrace.logstore.segments.levels import find_levels_of, prefixes
from tailrace.logstore.segments.slices import Limits
from tailrace.logstore.segments.times import NO_TIME, find_times
from tailrace.logstore.segments.writer import record_batches
from tests.batches import MemoryBatches, make_batches
from tests.logstore.segments.corpora import LINES, many_batches
from tests.logstore.segments.model import Row, by_identity, level_of, rows_of, time_of

A = RunKey("svc.a", "1")
LIMITS = st.builds(Limits, st.sampled_from([1, 40, 1 << 20]), st.sampled_from([1, 3, 1 << 18]))


def rows_from(table: pa.Table) -> list[Row]:
    columns = [table[name].to_pylist() for name in table.column_names if name != "ts"]
    columns.insert(1, table["ts"].cast(pa.int64()).to_pylist())
    columns[7] = [message.encode() for message in columns[7]]
    columns[8] = [None if a is None else dict(a) for a in columns[8]]
    return [Row(*values) for values in zip(*columns, strict=True)]


def table_of(batches: MemoryBatches, limits: Limits | None = None) -> pa.Table:
    found = list(record_batches(batches, Carry(), limits=limits))
    return pa.Table.from_batches(found, SCHEMA)


@pytest.mark.in_turn(4)
@settings(deadline=None, max_examples=50)
@given(many_batches(), LIMITS)
def test_rows_are_those_of_the_plain_model(batches: MemoryBatches, limits: Limits) -> None:
    table = table_of(batches, limits)
    table.validate(full=True)
    assert rows_from(table) == rows_of(batches)


@pytest.mark.in_turn(4)
@settings(deadline=None)
@given(many_batches(repeat=False), st.integers(0, 12))
def test_the_carry_takes_times_and_levels_over_a_cut(batches: MemoryBatches, cut: int) -> None:
    pos = int(batches.rows["pos"][cut]) if cut < len(batches.rows) else 1 << 40
    carry, rows = Carry(), []
    for part in (batches.part(0, pos), batches.part(pos, 1 << 41)):
        for found in record_batches(part, carry, save=True):
            rows += rows_from(pa.Table.from_batches([found]))
    assert sorted(rows, key=by_identity) == rows_of(batches)


@settings(deadline=None)
@given(st.lists(LINES, min_size=1, max_size=20))
def test_detection_is_that_of_the_plain_model(lines: list[str]) -> None:
    texts = [line.encode() + b"\n" for line in lines]
    ends = pa.array([sum(map(len, texts[: k + 1])) for k in range(len(texts))]).to_numpy()
    look = prefixes(b"".join(texts), ends)
    times = [None if t == NO_TIME else t for t in find_times(look).tolist()]
    assert times == [time_of(text) for text in texts]
    found = find_levels_of([text[:-1] for text in texts]).levels
    levels = [None if n < 0 else LEVELS[n] for n in found.tolist()]
    assert levels == [level_of(text) for text in texts]


def test_only_continuations_carry_a_level() -> None:
    first = b"2024-05-06 07:08:09,010 ERROR failed\nTraceback (most recent call last):\n"
    second = b"  File x\nKeyError: 'total'\n"
    third = b"one file skipped\n2024-05-06 07:08:10 done\nmore\n"
    texts = [(A, (k + 1) << 80, text) for k, text in enumerate((first, second, third))]
    table = table_of(make_batches("n", texts))
    assert table["level"].to_pylist() == [*["ERROR"] * 4, *[None] * 3]
    assert table["carried"].to_pylist() == [None, *[True] * 3, *[None] * 3]
    assert [str(t)[11:23] for t in table["ts"].to_pylist()] == [
        *["07:08:09.010"] * 5,
        *["07:08:10+00:"] * 2,
    ]


def test_records_of_a_client_carry_nothing_from_one_another() -> None:
    meta = RecordMeta([5, 14], [None, None], ["ERROR", None], [None, None])
    table = table_of(make_batches("n", [(A, 1 << 80, b"slow\n  at x()\n", None, meta)]))
    assert table["level"].to_pylist() == ["ERROR", None]
    assert table["carried"].null_count == 2


TRACE = b"""2026-11-21 10:00:00 ERROR failed
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    run()
subprocess.TimeoutExpired: sleep timed out

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
KeyError: 'total'
done
"""


@pytest.mark.parametrize("limits", [Limits(), Limits(1, 1), Limits(rows=2)], ids=str)
def test_a_traceback_goes_on_behind_any_border(limits: Limits) -> None:
    """Of batches, of slices, and of segments; other runs are in between."""
    lines = TRACE.splitlines(keepends=True)
    expected = [None, *[True] * (len(lines) - 2), None]
    for cut in range(1, len(lines)):
        texts = [(A, 1 << 80, b"".join(lines[:cut])), (A, 3 << 80, b"".join(lines[cut:]))]
        other = RunKey("b", "1"), 2 << 80, b"KeyError: 'b'\nplain: b\n"
        whole = make_batches("n", [texts[0], other, texts[1]])
        table = table_of(whole, limits)
        ours = table.filter(pc.equal(table["fqn"], A.fqn))
        assert ours["carried"].to_pylist() == expected, cut
        assert ours["level"].to_pylist() == ["ERROR"] * (len(lines) - 1) + [None], cut
        carry, apart = Carry(), list[Any]()
        for one in texts:
            for rows in record_batches(make_batches("n", [one]), carry, save=True, limits=limits):
                apart += rows["carried"].to_pylist()
        assert apart == expected, cut


def test_a_line_that_nothing_came_before_is_a_record() -> None:
    table = table_of(make_batches("n", [(A, 1 << 80, b"  a\n  b\nERROR c\n  d\n")]))
    assert table["carried"].to_pylist() == [None, None, None, True]


def test_another_run_between_them_does_not_matter_nor_do_slices() -> None:
    texts = [(A, 1 << 80, b"2024-05-06 07:08:09 WARN x\n"), (RunKey("b", "1"), 2 << 80, b" y\n")]
    batches = make_batches("n", [*texts, (A, 3 << 80, b" z\n")])
    for limits in (Limits(), Limits(1, 1)):
        assert table_of(batches, limits)["level"].to_pylist() == ["WARN", None, "WARN"]


def test_the_carry_forgets_the_least_recently_written_run() -> None:
    carry = Carry(limit=1)
    runs = [RunKey("svc.a", str(k)) for k in range(2)]
    entries = [(run, (k + 1) << 80, b"[error] x\n") for k, run in enumerate(runs)]
    list(record_batches(make_batches("n", entries), carry, save=True))
    after = [(run, (k + 5) << 80, b" y\n") for k, run in enumerate(runs)]
    found = pa.Table.from_batches(record_batches(make_batches("n", after), carry))
    assert found["level"].to_pylist() == [None, "ERROR"]


def test_looking_does_not_move_the_carry() -> None:
    carry = Carry()
    for _ in range(2):
        found = list(record_batches(make_batches("n", [(A, 1 << 80, b"x\nFATAL y\n")]), carry))
        assert found[0]["level"].to_pylist() == [None, "FATAL"]


def test_a_line_number_of_more_than_fifteen_bits() -> None:
    table = table_of(make_batches("n", [(A, 1 << 80, b"\n" * 40_000)]), Limits(rows=1 << 14))
    assert table["ulid"][-1].as_py() == "00000000010000000000001" + "71Z"
    assert table["ulid"].to_pylist() == sorted(set(table["ulid"].to_pylist()))


def test_lines_across_the_windows_of_a_long_text_stay_whole() -> None:
    dice = random.Random(5)
    lines = [b"x" * dice.randrange(200) for _ in range(6000)]
    lines += [b"", b"y" * (2 * WINDOW), b""]
    table = table_of(make_batches("n", [(A, 1 << 80, b"".join(x + b"\n" for x in lines))]))
    assert [message.encode() for message in table["message"].to_pylist()] == lines
