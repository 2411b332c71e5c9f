"""The checksum of state objects: any flipped bit is noticed, and can be undone."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from tailrace.logstore.errors import Damaged
from tailrace.logstore.state import (
    MOST_FLIP_BYTES,
    ChecksumMismatch,
    decode_checked,
    encode_checked,
    is_checked,
    is_intact,
    with_blank_check,
    without_blank_check,
    without_flip,
)
from tests.edited import flips

VALUE = {"seq": 3, "pos": 12000, "low": 1, "name": 'é"{}', "version": "01HF7YAVYGMDNNS70GMHHZVXGJ"}
BODY = encode_checked(VALUE)


def accepts(body: bytes) -> object:
    try:
        return decode_checked(body)
    except ValueError as error:
        raise Damaged(str(error)) from error


def test_what_is_encoded_decodes_without_its_checksum() -> None:
    assert decode_checked(BODY) == VALUE
    assert orjson.loads(BODY) == VALUE | {"check": BODY[-10:-2].decode()}
    assert is_checked(BODY)
    assert is_intact(BODY)


def test_every_flipped_bit_is_noticed() -> None:
    parse = 0
    for changed in flips(BODY):
        try:
            orjson.loads(changed)
            parse += 1
        except ValueError:
            pass
        with pytest.raises(Damaged):
            accepts(changed)
    assert parse > 200, "most of them would have been believed"


def test_every_flipped_bit_can_be_undone() -> None:
    for changed in Random(3).sample(flips(BODY), 60):
        assert without_flip(changed, accepts) == BODY


def test_two_flipped_bits_are_never_taken_for_one() -> None:
    rng = Random(7)
    for _ in range(300):
        changed = bytearray(BODY)
        for place in rng.sample(range(len(BODY) * 8), 2):
            changed[place // 8] ^= 1 << place % 8
        assert without_flip(bytes(changed), accepts) is None


@pytest.mark.parametrize("size", [0, 300, 9_000, 60_000])
def test_a_bit_at_any_place_of_a_large_object_is_undone(size: int) -> None:
    body = encode_checked({"text": "line of a small run " * (size // 20)})
    for at in {0, 1, 9, len(body) // 3, len(body) - 22, len(body) - 21, len(body) - 2}:
        changed = bytearray(body)
        changed[at] ^= 1 << at % 8
        assert without_flip(bytes(changed), accepts) == body


def test_nothing_is_undone_in_an_object_that_is_too_large() -> None:
    body = encode_checked({"text": "x" * MOST_FLIP_BYTES})
    assert without_flip(flips(body[:100])[7] + body[100:], accepts) is None


@pytest.mark.parametrize("cut", [0, 1, 10, len(BODY) - 20, len(BODY) - 1])
def test_a_cut_object_is_none(cut: int) -> None:
    with pytest.raises(Damaged):
        accepts(BODY[:cut])


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Damaged):
        accepts(body)


def test_an_object_of_an_earlier_version_is_read() -> None:
    assert decode_checked(orjson.dumps(VALUE)) == VALUE
    assert not is_checked(orjson.dumps(VALUE))


def test_an_earlier_version_that_keeps_unknown_members_does_no_harm() -> None:
    kept = orjson.loads(BODY)
    rewritten = orjson.dumps({"check": kept.pop("check"), **kept, "pos": 13000})
    assert decode_checked(rewritten) == VALUE | {"pos": 13000}


def test_a_checksum_of_blanks_is_none_to_other_parsers() -> None:
    json = orjson.dumps(VALUE)
    body = with_blank_check(json)
    assert orjson.loads(body) == VALUE
    assert without_blank_check(body) == json
    assert without_blank_check(json + b"\n") == json


def test_every_flipped_bit_is_noticed_by_a_checksum_of_blanks() -> None:
    for changed in flips(with_blank_check(orjson.dumps(VALUE))):
        with pytest.raises((ChecksumMismatch, orjson.JSONDecodeError)):
            orjson.loads(without_blank_check(changed))
