"""A state is read as it was written, whatever is in it; anything else is refused."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.forwarder.checkpoints import Forget, decode, encode, encode_forget
from tailrace.forwarder.model import EntryCursor, FileFacts, FileState, Prepared, Stage
from tests.forwarder.checkpoints.states import batch, state

# Names of files may have bytes that are no UTF-8: `os.fsdecode` makes surrogates of them.
TEXTS = st.text(st.characters())
NUMBERS = st.integers(0, (1 << 64) - 1)
MAPPINGS = st.dictionaries(TEXTS, TEXTS, max_size=3)
CURSORS = st.builds(EntryCursor, NUMBERS, NUMBERS, st.none() | MAPPINGS)
FACTS = st.builds(FileFacts, TEXTS, MAPPINGS)
BATCHES = st.builds(Prepared, TEXTS, CURSORS, CURSORS, NUMBERS, NUMBERS, FACTS, TEXTS, TEXTS)
STATES = st.builds(
    FileState,
    id=TEXTS,
    source=TEXTS,
    path=TEXTS,
    fingerprint=st.binary(max_size=100),
    window=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    device=NUMBERS,
    inode=NUMBERS,
    size=NUMBERS,
    seen_ms=NUMBERS,
    cursor=CURSORS,
    prepared=st.lists(BATCHES, max_size=2).map(tuple),
    fqn=TEXTS,
    run=TEXTS,
    stage=st.sampled_from(get_args(Stage)),
    lost=NUMBERS,
    written_ns=NUMBERS,
    stored_size=NUMBERS,
    archives=st.booleans(),
    named=TEXTS,
    copies=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2).map(tuple),
    recent=st.just((0, b"")) | st.tuples(NUMBERS, st.binary(min_size=1, max_size=50)),
    cut=st.just((0, 0, 0)) | st.tuples(NUMBERS, st.integers(1, 1024), NUMBERS),
)


@given(STATES)
def test_a_state_is_read_as_it_was_written(written: FileState) -> None:
    line = encode(written, with_fingerprint=True)
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert decode(line, {}) == written
    short = encode(written, with_fingerprint=False)
    assert len(short) < len(line)
    assert decode(short, {written.id: written}) == written


def test_a_state_of_an_earlier_version_is_read() -> None:
    line = encode(state(1), with_fingerprint=True)
    assert b"copies" not in line
    assert decode(line, {}) == state(1)


@given(TEXTS)
def test_what_is_forgotten_is_read_as_it_was_written(name: str) -> None:
    assert decode(encode_forget(name), {}) == Forget(name)


def test_a_line_without_its_fingerprint_is_refused() -> None:
    with pytest.raises(ValueError, match="fingerprint is missing"):
        decode(encode(state(1), with_fingerprint=False), {})


VALUE = json.loads(encode(state(1, 50, batch(1, 50, 90)), with_fingerprint=True))


@pytest.mark.parametrize("name", sorted(set(VALUE) - {"fingerprint"}))
@pytest.mark.parametrize("wrong", [None, True, 1.5, [1], {"a": 1}, "DELETE"])
def test_a_field_that_is_missing_or_of_another_kind_is_refused(name: str, wrong: object) -> None:
    value = {**VALUE, name: wrong}
    if wrong == "DELETE":
        del value[name]
    with pytest.raises(ValueError, match=r"not as this program writes it|values to unpack"):
        decode(json.dumps(value).encode(), {})


def test_fields_of_a_newer_program_are_not_dropped_silently() -> None:
    with pytest.raises(ValueError, match="unknown field 'newer'"):
        decode(json.dumps({**VALUE, "newer": 1}).encode(), {})
