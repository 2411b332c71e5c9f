"""Whatever text a program has, its record is one that the service takes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from service.http.body import Bounds
from service.http.records import parse_records
from tailrace_client.records import encode_record

BOUNDS = Bounds(1 << 26, 1 << 24, lambda: None)
ANY_TEXT = st.text(st.characters(), max_size=40) | st.text(st.sampled_from("\\u\ud83d\ude00d8"))


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_any_text_is_a_record(message: str, name: str, value: str) -> None:
    line = encode_record(message, ts=5.25, level="INFO", attributes={name: value})
    found = parse_records(line, BOUNDS)
    shown = message.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert (found.number, found.replaced) == (1, 0)
    assert found.text.decode() == json.loads(line)["message"] + "\n"
    if shown == message:
        assert found.text.decode() == message + "\n"


@given(st.floats() | st.integers() | st.none() | st.lists(st.floats()))
def test_any_value_is_an_attribute(value: object) -> None:
    line = encode_record("m", attributes={"value": value, "object": object()})
    assert parse_records(line, BOUNDS).number == 1


@given(st.floats())
def test_any_time_is_taken_or_left_out(ts: float) -> None:
    assert parse_records(encode_record("m", ts=ts), BOUNDS).number == 1
