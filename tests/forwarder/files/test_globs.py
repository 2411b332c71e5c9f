"""Globs and the walk: the cases of OpenTelemetry's finder and more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.forwarder.files.finder import Finder, Glob, expand_braces
from tailrace.logstore.errors import InvalidInput

FILES = [
    "a1.log", "a2.log", "b1.log", "b2.txt", ".hidden.log",
    "a/1.log", "a/2.log", "a/1.txt", "b/1.log", "b/2.log",
    "a/b/1.log", "a/b/c/1.log", "x/y/z.log",
]  # fmt: skip

CASES = [
    ("one file", ["a1.log"], [], ["a1.log"]),
    ("several", ["a1.log", "a2.log"], [], ["a1.log", "a2.log"]),
    ("a name twice", ["a1.log", "a1.log"], [], ["a1.log"]),
    ("a star", ["*.log"], [], [".hidden.log", "a1.log", "a2.log", "b1.log"]),
    ("patterns that overlap", ["*1.log", "a*.log"], [], ["a1.log", "a2.log", "b1.log"]),
    ("a question mark", ["a?.log"], [], ["a1.log", "a2.log"]),
    ("a class", ["[ab]1.log"], [], ["a1.log", "b1.log"]),
    ("a negated class", ["[!a.]*.log"], [], ["b1.log"]),
    ("alternatives", ["{a1,b1}.log"], [], ["a1.log", "b1.log"]),
    ("nested alternatives", ["{a{1,2},b1}.log"], [], ["a1.log", "a2.log", "b1.log"]),
    ("one folder", ["a/*.log"], [], ["a/1.log", "a/2.log"]),
    ("several folders", ["?/1.log"], [], ["a/1.log", "b/1.log"]),
    ("any depth", ["**/1.log"], [], ["a/1.log", "a/b/1.log", "a/b/c/1.log", "b/1.log"]),
    ("any depth below", ["a/**/*.log"], [], ["a/1.log", "a/2.log", "a/b/1.log", "a/b/c/1.log"]),
    ("everything", ["x/**"], [], ["x/y/z.log"]),
    ("nothing", ["*.nothing"], [], []),
    ("a folder is no file", ["a"], [], []),
    ("excluded", ["a*.log"], ["a1.log"], ["a2.log"]),
    ("excluded by a pattern", ["**/*.log"], ["**/[1z].log", "*.log"], ["a/2.log", "b/2.log"]),
    ("all excluded", ["*.log"], ["*"], []),
]  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def _finder(
    root: Path, include: list[str], exclude: Sequence[str] = (), older_than_ns: int = 0
) -> Finder:
    def fail(path: str, error: OSError) -> None:
        raise AssertionError(f"{path}: {error}")

    return Finder(
        [f"{root}/{each}" for each in include],
        [f"{root}/{each}" for each in exclude],
        now_ns=lambda: 2000 * 10**9,
        unreadable=fail,
        older_than_ns=older_than_ns,
    )


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_what_is_found(
    tree: Path, include: list[str], exclude: list[str], expected: list[str]
) -> None:
    found = _finder(tree, include, exclude).find()
    assert sorted(os.path.relpath(each.path, tree) for each in found) == sorted(expected)
    assert all(each.size == os.path.getsize(each.path) for each in found)


def test_relative_patterns(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert sorted(Glob("a/*.log").find(lambda _path, _error: None)) == ["a/1.log", "a/2.log"]
    assert sorted(Glob("*1.log").find(lambda _path, _error: None)) == ["a1.log", "b1.log"]
    assert set(Glob("**/*.txt").find(lambda _path, _error: None)) == {"b2.txt", "a/1.txt"}


def test_a_link_to_a_folder_is_followed_where_a_name_stands(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "a")
    (tree / "broken.log").symlink_to(tree / "nowhere")
    assert [each.path for each in _finder(tree, ["link/1.log", "broken.log"]).find()] == [
        f"{tree}/link/1.log"
    ]
    paths = [each.path for each in _finder(tree, ["**/b/1.log"]).find()]
    assert sorted(paths) == [f"{tree}/a/b/1.log", f"{tree}/b/1.log"]


def test_old_files_are_left_out(tree: Path) -> None:
    for number, name in enumerate(["a1.log", "a2.log"]):
        os.utime(tree / name, (1000 + 900 * number, 1000 + 900 * number))
    found = _finder(tree, ["a?.log"], older_than_ns=500 * 10**9).find()
    assert [os.path.basename(each.path) for each in found] == ["a2.log"]


def test_what_cannot_be_listed_hides_nothing_else(tree: Path) -> None:
    heard: list[str] = []
    (tree / "a" / "loop").symlink_to(tree / "a" / "loop")
    finder = Finder(
        [f"{tree}/a/loop", f"{tree}/a/loop/*.log", f"{tree}/a1.log"],
        now_ns=lambda: 0,
        unreadable=lambda path, _error: heard.append(os.path.relpath(path, tree)),
    )
    assert [each.path for each in finder.find()] == [f"{tree}/a1.log"]
    assert heard == ["a/loop", "a/loop"]


@pytest.mark.parametrize("pattern", ["", "a[b", "{a,b", "x/[!a/b"])
def test_a_pattern_that_is_none(pattern: str) -> None:
    with pytest.raises(InvalidInput):
        Glob(pattern)


def test_braces() -> None:
    assert expand_braces("a{b,c{d,e}}f") == ["abf", "acdf", "acef"]
    assert expand_braces("a{,b}") == ["a", "ab"]
    assert expand_braces("[{]a") == ["[{]a"]


def test_the_folders_in_which_a_match_can_appear(tree: Path) -> None:
    def folders(pattern: str) -> set[str]:
        found = Glob(f"{tree}/{pattern}").folders(lambda _path, _error: None)
        return {os.path.relpath(each, tree) for each in found if each.startswith(str(tree))}

    assert folders("*.log") == {"."}
    assert folders("a/*.log") == {".", "a"}
    assert folders("?/*.log") == {".", "a", "b", "x"}
    assert folders("a/**/*.log") == {".", "a", "a/b", "a/b/c"}
    assert folders("new/*.log") == {"."}


@pytest.mark.parametrize(
    ("pattern", "path", "leads"),
    [
        ("/logs/*/a.log", "/logs", True),
        ("/logs/*/a.log", "/logs/x", True),
        ("/logs/*/a.log", "/logs/x/a.log", True),
        ("/logs/*/a.log", "/logs/x/b.log", False),
        ("/logs/*/a.log", "/tmp", False),
        ("/logs/*/a.log", "/logs/x/a.log/y", False),
        ("/logs/**/a.log", "/logs/x/y/z", True),
        ("/{one,two}/*.log", "/two", True),
        ("/{one,two}/*.log", "/three", False),
        ("logs/*.log", "/anything", True),
    ],
)
def test_folders_on_the_way_lead_to_what_matches(pattern: str, path: str, leads: bool) -> None:
    assert Glob(pattern).leads(path) is leads
