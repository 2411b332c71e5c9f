"""The corpus: the same for everybody, of any size, with or without the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import corpus


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    originals = tmp_path / "originals"
    originals.mkdir()
    text = "".join(f"{n} id=12{n % 10}456 port 22\r\n" for n in range(1000, 1500))
    (originals / "One.log").write_text(text, newline="")
    (originals / "Two.log").write_text("a last line without an end 123", newline="")
    monkeypatch.setenv("TAILRACE_CORPUS", str(originals))
    monkeypatch.setenv("TAILRACE_CORPUS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_same_seed_is_the_same_lines_and_another_is_not() -> None:
    lines = corpus.lines_of(1000)
    assert len(lines) == 1000
    assert lines == corpus.lines_of(1000)
    assert lines != corpus.lines_of(1000, seed=4)
    assert lines[:10] == corpus.lines_of(10)


def test_lines_keep_their_shape_and_short_numbers() -> None:
    for line in corpus.lines_of(700):
        assert line.endswith(b"\n")
        assert (b"port 22\r\n" in line and len(line) == 24) or line.startswith(b"a last line")


def test_a_file_holds_at_least_its_size_and_is_made_once() -> None:
    path = corpus.corpus(50_000)
    made = path.stat()
    assert 50_000 <= made.st_size < 60_000
    assert path.read_bytes().startswith(b"".join(corpus.lines_of(100)))
    assert corpus.corpus(50_000).stat().st_mtime_ns == made.st_mtime_ns


def test_without_the_files_made_lines_stand_in_and_it_is_said(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert corpus.source() == "2 loghub files"
    monkeypatch.setenv("TAILRACE_CORPUS", str(folders / "nowhere"))
    assert corpus.source() == "made lines, not real ones"
    assert len(corpus.lines_of(5000)) == 5000
