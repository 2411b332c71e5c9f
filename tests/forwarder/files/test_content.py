"""Content of plain, gzip and zstd files: the same bytes at the same offsets."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from tailrace.forwarder.files.content import (
    NO_WINDOW,
    WINDOW,
    FileContent,
    KnownContent,
    begins,
    holds,
    open_content,
    window_of,
)
from tailrace.logstore.errors import Damaged

TEXT = b"".join(b"line %d of a file that is compressed\n" % number for number in range(20_000))
Zip = Callable[[bytes], bytes]
ZIPS = pytest.mark.parametrize("zipped", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])


@contextmanager
def _opened(path: Path) -> Iterator[FileContent]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = open_content(descriptor, compression=True)
        assert content is not None
        yield content
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("zipped", [bytes, gzip.compress, zstandard.compress])
def test_the_same_bytes_at_the_same_offsets(tmp_path: Path, zipped: Zip) -> None:
    path = tmp_path / "a"
    path.write_bytes(zipped(TEXT))
    with _opened(path) as content:
        for offset, count in ((0, 10), (500_000, 1000), (5, 100), (len(TEXT) - 3, 10)):
            assert content.read(offset, count) == TEXT[offset : offset + count]
        assert content.read(0, 1 << 30) == TEXT
        assert content.read(len(TEXT), 10) == b""
        assert content.read(len(TEXT) + 5, 10) == b""
        assert content.end() == len(TEXT)
        assert content.whole()


@ZIPS
def test_members_one_after_the_other_also_while_it_grows(tmp_path: Path, zipped: Zip) -> None:
    path = tmp_path / "a"
    path.write_bytes(zipped(TEXT[:100]))
    with _opened(path) as content:
        assert content.read(0, 1000) == TEXT[:100]
        with path.open("ab") as file:
            file.write(zipped(TEXT[100:300]))
        assert content.read(100, 1000) == TEXT[100:300]
        with path.open("ab") as file:
            file.write(zipped(TEXT[300:]))
        assert content.read(300, 1 << 30) == TEXT[300:]


def test_a_member_that_is_being_written(tmp_path: Path) -> None:
    path, whole = tmp_path / "a", gzip.compress(TEXT)
    path.write_bytes(whole[:5000])
    with _opened(path) as content:
        first = content.read(0, 1 << 30)
        assert TEXT.startswith(first)
        assert 0 < len(first) < len(TEXT)
        assert not content.whole()
        path.write_bytes(whole)
        assert first + content.read(len(first), 1 << 30) == TEXT
        assert content.whole()


def test_zeros_behind_a_member_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"one\n") + bytes(512) + gzip.compress(b"two\n") + bytes(100))
    with _opened(path) as content:
        assert content.read(0, 100) == b"one\ntwo\n"
        assert content.whole()


@ZIPS
def test_damage_is_an_error(tmp_path: Path, zipped: Zip) -> None:
    path, whole = tmp_path / "a", bytearray(zipped(TEXT))
    whole[len(whole) // 2] ^= 0xFF
    whole[len(whole) // 2 + 1] ^= 0xFF
    path.write_bytes(whole)
    with _opened(path) as content, pytest.raises(Damaged):
        content.read(0, 1 << 30)


@ZIPS
def test_a_bomb_takes_no_memory(tmp_path: Path, zipped: Zip) -> None:
    path = tmp_path / "a"
    path.write_bytes(zipped(bytes(200 << 20)))
    with _opened(path) as content:
        assert content.read(0, 10) == bytes(10)
        assert content.end() < 2 << 20
        assert content.read(100 << 20, 10) == bytes(10)


def test_what_is_too_short_to_tell(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text, known in ((b"", True), (b"\x1f", False), (b"\x28\xb5", False), (b"ab", True)):
        path.write_bytes(text)
        descriptor = os.open(path, os.O_RDONLY)
        assert (open_content(descriptor, compression=True) is not None) is known
        assert open_content(descriptor, compression=False) is not None
        os.close(descriptor)


def _known(text: bytes, offset: int) -> KnownContent:
    return KnownContent(text[:1000], window_of(text[:offset], offset))


def test_a_file_holds_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(TEXT)
    with _opened(path) as content:
        assert holds(content, _known(TEXT, 5000))
        assert holds(content, _known(TEXT, len(TEXT)))
        assert holds(content, _known(TEXT, 0))
        assert not holds(content, _known(TEXT[:5000] + b"other" * 1000, 10_000))
        assert not holds(content, _known(TEXT + b"more", len(TEXT) + 4))
        assert not holds(content, KnownContent(b"other", (0, 0, 0)))


def test_a_file_is_too_short_for_what_batches_were_made_of(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(TEXT)
    packed = tmp_path / "b"
    packed.write_bytes(gzip.compress(TEXT))
    for each in (path, packed):
        with _opened(each) as content:
            assert holds(content, KnownContent(TEXT[:1000], NO_WINDOW, least=len(TEXT)))
            assert not holds(content, KnownContent(TEXT[:1000], NO_WINDOW, least=len(TEXT) + 1))
            assert not holds(content, KnownContent(TEXT[:1000], NO_WINDOW, blind=True))


def test_the_beginning_of_another(tmp_path: Path) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_bytes(TEXT)
    for size in (0, 10, WINDOW, 5000, len(TEXT)):
        two.write_bytes(TEXT[:size])
        with _opened(one) as first, _opened(two) as second:
            assert begins(second, first)
    two.write_bytes(TEXT[:9000] + TEXT[:9000])
    with _opened(one) as first, _opened(two) as second:
        assert not begins(second, first)
