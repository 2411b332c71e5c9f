"""The flags that `tailrace compact` passes on say to the compactor what they said to it."""

from __future__ import annotations

import argparse

import pytest

from compactor.cli import configure, seconds, settings_of, words


def parsed(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--dry-run"],
        ["--dry-run", "--json"],
        ["--data", "a folder", "--every", "1.5m"],
        ["--config=file.yaml", "--log-format", "json", "--kill-at", "placed"],
        ["--data=--every", "--metrics-file", ""],
        ["--push-gateway", "http://host:9091", "--data=-x"],
    ],
)
def test_words_say_the_same(given: list[str]) -> None:
    flags = parsed(given)
    again = words(flags)
    assert parsed(again) == flags
    assert settings_of(parsed(again)) == settings_of(flags)
    assert (again == []) == (given == [])


def test_flags_of_settings_are_settings_where_they_were_given() -> None:
    assert settings_of(parsed([])) == {}
    flags = parsed(["--data", "d", "--metrics-file", "", "--log-format", "json"])
    assert settings_of(flags) == {
        "data": "d",
        "compaction": {"metrics_file": "", "log_format": "json"},
    }


@pytest.mark.parametrize(("text", "amount"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("1s", 1)])
def test_times(text: str, amount: float) -> None:
    assert seconds(text) == amount


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "5d", "m", "1 m", "1e3", "inf", "٣"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time such as 5m"):
        seconds(text)
