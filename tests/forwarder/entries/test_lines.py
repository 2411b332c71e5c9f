"""Lines: trimming, empty ones, attributes, encodings, numbers, and entries that are too long."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from service.http.json_body import without_mark
from tailrace.forwarder.entries.splitting import Codec
from tailrace.forwarder.model import EntryCursor, FileFacts
from tailrace.logstore.errors import InvalidInput
from tests.forwarder.entries.packing import (
    FILE,
    HUGE,
    NAMED,
    messages,
    packer,
    read,
    records,
    source,
)

START = EntryCursor()


def test_lines_without_attributes_travel_as_text() -> None:
    packed = packer().pack(b"a\nb\nhalf", START, FILE, final=False, most=HUGE)
    assert packed is not None
    assert (packed.kind, packed.body, packed.records) == ("text/plain", b"a\nb\n", 2)
    assert packed.end == EntryCursor(offset=4, records=2)


def test_attributes_of_all_lines_stand_beside_them() -> None:
    file = FileFacts("/x", {"log.file.name": "app.log"})
    keys: dict[str, Any] = {"attributes": {"zone": 7}, "resource": {"service.name": "shop"}}
    packed = packer(**keys).pack(b'say "hi"\\n\n\x1b[1m\n', START, file, final=False, most=HUGE)
    assert packed is not None
    assert (packed.kind, packed.body) == ("text/plain", b'say "hi"\\n\n\x1b[1m\n')
    shared = {"service.name": "shop", "zone": "7", "log.file.name": "app.log"}
    assert records(packed) == [
        {"attributes": shared, "message": 'say "hi"\\n'},
        {"attributes": shared, "message": "\x1b[1m"},
    ]


@pytest.mark.parametrize("size", [4 << 10, 100])
def test_attributes_that_no_header_takes_make_records(size: int) -> None:
    many = {str(number): "v" for number in range(65)} if size == 100 else {"k": "v" * size}
    packed = packer().pack(b"a\nb\n", START, FileFacts("/x", many), final=False, most=HUGE)
    assert packed is not None
    assert (packed.kind, packed.attributes) == ("application/x-ndjson", "")
    assert records(packed) == [{"attributes": many, "message": text} for text in "ab"]


@pytest.mark.parametrize("file", [FILE, NAMED])
@pytest.mark.parametrize(
    ("leading", "trailing", "expected"),
    [
        (False, False, ["a b", "c", "", "", "d"]),
        (True, False, ["  a b", "\tc", "", "", "d"]),
        (False, True, ["a b \t", "c", "", "", "d"]),
        (True, True, ["  a b \t", "\tc", "", " ", "d"]),
    ],
)
def test_lines_are_trimmed_unless_they_are_to_keep_it(
    file: FileFacts, leading: bool, trailing: bool, expected: list[str]
) -> None:
    found = messages(
        b"  a b \t\n\tc\r\n\n \nd\n",
        file=file,
        preserve_leading_whitespaces=leading,
        preserve_trailing_whitespaces=trailing,
    )
    assert found == expected


def test_empty_lines_are_records_and_are_not_read_again() -> None:
    assert [r["message"] for r in read(b"\n\na\n\n", step=1)] == ["", "", "a", ""]


def test_a_line_in_two_writes_is_one_record() -> None:
    one = packer()
    assert one.pack(b"testlog", START, FILE, final=False, most=HUGE) is None
    whole = one.pack(b"testlog1\n", START, FILE, final=False, most=HUGE)
    assert [r["message"] for r in records(whole)] == ["testlog1"]


def test_an_unfinished_line_is_sent_when_nothing_came_for_long() -> None:
    one = packer()
    first = one.pack(b"half", START, FILE, final=True, most=HUGE)
    assert first is not None
    assert [r["message"] for r in records(first)] == ["half"]
    # What comes of the line afterwards is marked; its newline alone is no record.
    rest = one.pack(b" of it\nb\n", first.end, FILE, final=False, most=HUGE)
    assert records(rest) == [
        {"attributes": {"log.record.part": "2"}, "message": "of it"},
        {"message": "b"},
    ]
    newline = one.pack(b"\nb\n", first.end, FILE, final=False, most=HUGE)
    assert [r["message"] for r in records(newline)] == ["b"]


@pytest.mark.parametrize("file", [FILE, NAMED])
@pytest.mark.parametrize("most", [1, 10, 100, 1000])
def test_a_body_has_at_most_so_many_bytes_or_one_entry(file: FileFacts, most: int) -> None:
    data = b"".join(b"line %d\n" % number for number in range(100))
    packed = packer().pack(data, START, file, final=False, most=most)
    assert packed is not None
    assert len(packed.body) <= most or packed.records == 1
    assert len(read(data, most=most, file=file)) == 100


@pytest.mark.parametrize(
    ("encoding", "raw", "text"),
    [
        ("utf-8", "折\n".encode(), "折"),
        ("utf-8", b"foo\xff\xc3\x28bar\n", "foo\ufffd\ufffd(bar"),
        ("utf-8-raw", b"foo\xffbar\n", "foo\ufffdbar"),
        ("ascii", b"plain\n", "plain"),
        ("utf-16le", "a\U0001f600折\n".encode("utf-16-le"), "a\U0001f600折"),
        ("utf-16be", "a\U0001f600折\n".encode("utf-16-be"), "a\U0001f600折"),
        ("utf-16", "a\n".encode("utf-16-le"), "a"),
        ("big5", "中文\n".encode("big5"), "中文"),
        ("latin-1", b"gr\xfc\xdfe\n", "grüße"),
    ],
)
@pytest.mark.parametrize("file", [FILE, NAMED])
def test_encodings(encoding: str, raw: bytes, text: str, file: FileFacts) -> None:
    packed = packer(encoding=encoding).pack(raw * 2, START, file, final=False, most=HUGE)
    assert packed is not None
    assert [r["message"] for r in records(packed)] == [text, text]
    assert packed.replaced == 2 * text.count("\ufffd")
    assert packed.end.offset == 2 * len(raw)
    assert [r["message"] for r in read(raw * 3, step=1, encoding=encoding, file=file)] == [text] * 3


@pytest.mark.parametrize("file", [FILE, NAMED])
@pytest.mark.parametrize("step", [1, 5, HUGE])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16le", "utf-16be"])
def test_a_byte_order_mark_at_the_start_is_no_text(
    encoding: str, step: int, file: FileFacts
) -> None:
    data = "\ufeffa\nb \ufeff\n".encode(Codec(encoding).name)
    found = read(data, step=step, encoding=encoding, file=file)
    assert [record["message"] for record in found] == ["a", "b \ufeff"]
    assert read("\ufeff".encode(Codec(encoding).name), encoding=encoding, file=file) == []


@pytest.mark.parametrize("file", [FILE, NAMED])
def test_utf_16_that_is_not_declared_goes_to_the_service_as_it_is(file: FileFacts) -> None:
    data = "a\nb\n".encode("utf-16")
    packed = packer().pack(data, START, file, final=False, most=HUGE)
    assert packed is not None
    assert (packed.body, packed.kind, packed.end.offset) == (data, "text/plain", len(data))
    with pytest.raises(InvalidInput, match="UTF-16"):
        without_mark(packed.body, "body")


def test_an_encoding_that_is_none_is_refused() -> None:
    for encoding in ("utf-9", "base64", "utf-7", "rot13"):
        with pytest.raises(InvalidInput, match="encoding"):
            source(encoding=encoding)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"testlog1testlog2", ["testlog1", "testlog2"]),
        (b"testlog1testlog", ["testlog1", "testlog"]),
        (b"a\nb\n\r\n  c", ["a\nb\n\r\n  ", "c"]),
        (b"12345678", ["12345678"]),
        (b"1", ["1"]),
    ],
)
def test_nop_gives_blocks_as_they_are(data: bytes, expected: list[str]) -> None:
    keys: dict[str, Any] = {"encoding": "nop", "max_log_size": 8}
    assert [r["message"] for r in read(data, **keys)] == expected
    assert [r["message"] for r in read(data, step=3, **keys)] == expected


def test_records_have_their_number_and_offset() -> None:
    data = "ä\nb\n\nc\n".encode()
    keys: dict[str, Any] = {"include_file_record_number": True, "include_file_record_offset": True}
    for step in (1, HUGE):
        found = [record["attributes"] for record in read(data, step=step, **keys)]
        assert [one["log.file.record_number"] for one in found] == ["1", "2", "3", "4"]
        assert [one["log.file.record_offset"] for one in found] == ["0", "3", "5", "6"]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_what_is_too_long_is_split_and_its_pieces_are_marked(step: int) -> None:
    found = read(b"short\n" + b"abcdefgh" * 3 + b"xy\nlast\n", step=step, max_log_size=8)
    parts = [record.get("attributes", {}).get("log.record.part") for record in found]
    assert [record["message"] for record in found] == [
        "short", "abcdefgh", "abcdefgh", "abcdefgh", "xy", "last",
    ]  # fmt: skip
    assert parts == [None, None, "2", "3", "4", None]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_what_is_too_long_is_cut_and_marked(step: int) -> None:
    keys: dict[str, Any] = {"max_log_size": 8, "max_log_size_behavior": "truncate"}
    found = read(b"short\n" + b"abcdefgh" * 3 + b"xy\nlast\n", step=step, **keys)
    assert found == [
        {"message": "short"},
        {"attributes": {"log.record.truncated": "true"}, "message": "abcdefgh"},
        {"message": "last"},
    ]


def test_a_character_is_not_cut_through() -> None:
    found = read("€€€€\n".encode(), max_log_size=8)
    assert [record["message"] for record in found] == ["€€", "€€"]


def test_a_line_without_end_is_read_piece_by_piece() -> None:
    one = packer(max_log_size=1000)
    cursor, size = START, 0
    while size < 1_000_000:
        packed = one.pack(b"x" * one.longest, cursor, FILE, final=False, most=2000)
        assert packed is not None
        assert packed.end.offset > cursor.offset
        cursor, size = packed.end, size + sum(len(r["message"]) for r in records(packed))
    assert cursor.inside > 0


def test_every_mark_of_a_block_may_be_in_it() -> None:
    data = "\x7f \x80 \x81 \ue000 \uffff\nä\n".encode()
    assert [r["message"] for r in read(data, file=NAMED)] == ["\x7f \x80 \x81 \ue000 \uffff", "ä"]


def test_a_path_that_is_no_utf_8_is_an_attribute_all_the_same() -> None:
    file = FileFacts("/x", {"log.file.name": "a\udcff"})
    packed = packer().pack(b"a\n", START, file, final=False, most=HUGE)
    assert packed is not None
    assert orjson.loads(packed.attributes) == {"log.file.name": "a\ufffd"}
