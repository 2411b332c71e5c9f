"""Whatever text a program has, its record is one that the service takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.body import Bounds
from service.http.json_body import parse_records
from tailrace_client.records import encode_record, lines_of, records_of

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


@given(st.lists(ANY_TEXT, min_size=1, max_size=4), st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=2))
def test_records_that_are_lines_become_lines_and_records_again(
    messages: list[str], attributes: dict[str, str]
) -> None:
    payload = b"".join([encode_record(one, attributes=attributes or None) for one in messages])
    lines = lines_of(payload)
    kept = [json.loads(line) for line in payload.splitlines()]
    if any("\n" in one for one in messages):
        assert lines is None
        return
    assert lines is not None
    assert lines.text.decode().split("\n") == [*(one["message"] for one in kept), ""]
    assert json.loads(lines.attributes or "{}") == kept[0].get("attributes", {})
    if lines.attributes:
        again = records_of(lines.text, lines.attributes)
        assert [json.loads(line) for line in again.splitlines()] == kept


@pytest.mark.parametrize(
    "other",
    [
        encode_record("b", ts=5.0, attributes={"k": "v"}),
        encode_record("b", level="INFO", attributes={"k": "v"}),
        encode_record("b", attributes={"k": "w"}),
        encode_record("b", attributes={"k": "v", "partial": "true"}),
        encode_record("b"),
        encode_record("b\n", attributes={"k": "v"}),
        encode_record("b", attributes={"k": "v" * 5000}),
        b'{"message":5,"attributes":{"k":"v"}}\n',
        b'{"message":"b","attributes":{"k":"v"}}',
        b"[1]\n",
        b"x\n",
    ],
)
def test_records_that_have_more_than_lines_stay_records(other: bytes) -> None:
    same = encode_record("a", attributes={"k": "v"})
    assert lines_of(same) == (b"a\n", '{"k":"v"}')
    assert lines_of(same + other) is None
    assert lines_of(other + same) is None
