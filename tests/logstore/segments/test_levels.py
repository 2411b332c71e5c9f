from __future__ import annotations

import numpy as np
import pytest

from logstore.segments.levels import find_levels
from logstore.segments.prefixes import prefixes
from logstore.segments.schema import LEVELS


def level(line: str) -> str | None:
    text = line.encode() + b"\n"
    found = int(find_levels(prefixes(text, np.array([len(text)])))[0])
    return None if found < 0 else LEVELS[found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2015-10-18 18:01:47,978 INFO [main] org.apache", "INFO"),
        ("2015-07-29 17:41:44,747 - WARN  [SendWorker:188978561024]", "WARN"),
        ("[2024-05-06 07:08:09] WARNING  {ingestion} - slow", "WARN"),
        ("CRITICAL:root:out of disk", "FATAL"),
        ("SEVERE: cannot", "ERROR"),
        ("[Sun Dec 04 04:47:44 2005] [error] mod_jk child", "ERROR"),
        ("[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init() ok", "INFO"),
        ("2016-09-28 04:30:30, Info                  CBS    Loaded", "INFO"),
        ("03-17 16:13:38.811  1702  2395 D WindowManager: ERROR", "DEBUG"),
        ('{"ts":"2024-05-06T07:08:09Z","level":"error","msg":"x"}', "ERROR"),
        ('{"level": "WARN", "msg": "x"}', "WARN"),
        ('time="x" level=warning msg="an error"', "WARN"),
        ("level=info msg=ERROR", "INFO"),
        ('lvl="trace"', "TRACE"),
        ("severity: debug", None),
        ("there was no error in the middle", None),
        ('status=error "fatal"', None),
        ("TERROR INFOS MY_ERROR ERRORS", None),
        ("Information about FATALITY", None),
        ("INFO", "INFO"),
        ("[error    ] structlog pads", "ERROR"),
        ("2024-05-06 07:08:09 [info     ] ready", "INFO"),
        ("[error         ] too much of it", None),
        ("[error  x] not a level", None),
        ("[warning", None),
        ("\x1b[32mINFO\x1b[0m started", "INFO"),
        ("\x1b[1;31mERROR\x1b[0m no", "ERROR"),
        ("[\x1b[31m\x1b[1merror    \x1b[0m] structlog in colours", "ERROR"),
        ("\x1b[2m2024-05-06 07:08:09\x1b[0m [\x1b[33mwarning  \x1b[0m]", "WARN"),
        ("\x1b[38;5;196mlevel\x1b[0m=\x1b[35mdebug\x1b[0m", "DEBUG"),
        ("\x1b[32m" * 40 + "INFO", "INFO"),
        ("\x1b[32m" * 80 + "INFO", None),
        ("\x1b INFO of a lone escape", "INFO"),
        ("\x1b[INFO", None),
        ("INF", None),
        ("", None),
        ("x" * 80 + " INFO", "INFO"),
        ("x" * 200 + " INFO", None),
    ],
)
def test_level(line: str, expected: str | None) -> None:
    assert level(line) == expected


def test_a_coloured_line_keeps_its_end() -> None:
    text = b"\x1b[32ma\x1b[0m\nERROR b\n\x1b[31mWARN\n"
    assert find_levels(prefixes(text, np.array([11, 19, 29]))).tolist() == [-1, 4, 3]


def test_a_word_of_the_next_line_does_not_count() -> None:
    text = b"a\nERROR b\nc\n"
    assert find_levels(prefixes(text, np.array([2, 10, 12]))).tolist() == [-1, 4, -1]
