"""Accuracy of levels per system, on the samples of loghub.

    python -m benchmarks.levels ../shared/data/loghub

Each system has a rule that was checked by hand: the column that states the level, or the few
phrases in which a line of a system without such a column states one. A line is right if the service
finds the level that the rule gives, or none where the rule gives none. Prints a row of Markdown for
each file, and exits with 1 if a system is below 99 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import NO_LEVEL, find_levels_of

GOAL: Final = 0.99
_COLUMNS: Final = {
    "Android": r"\S+ \S+ +\d+ +\d+ ([VDIWEF]) ",
    "Apache": r"\[[^\]]+\] \[(\w+)\] ",
    "BGL": r"\S+ \d+ \S+ \S+ \S+ \S+ \S+ \S+ (\w+)",
    "HDFS": r"\d{6} \d{6} \d+ (\w+) ",
    "Hadoop": r"\S+ \S+ (\w+) +\[",
    "OpenStack": r"\S+ \S+ \S+ \d+ (\w+) ",
    "Spark": r"\S+ \S+ (\w+) ",
    "Windows": r"\S+ \S+, (\w+) ",
    "Zookeeper": r"\S+ \S+ - (\w+) +\[",
}
"""Of systems that state a level in each line: where it is."""
_PHRASES: Final = {
    "HPC": r"\) (Error): ",
    "HealthApp": r"(?!)()",
    "Linux": r"\w+\[\d+\]: (warning): ",
    "Mac": r"[:\]]? ?(WARNING):|\[(Error)\]|-(ERROR)\]|[\] ](ERROR):",
    "OpenSSH": r"sshd\[\d+\]: (error|fatal): ",
    "Proxifier": r"(?!)()",
}
"""Of systems without such a column: the phrases that state one."""
_NAMES: Final = {
    **dict(zip("VDIWEF", LEVELS, strict=True)),
    **dict(zip(LEVELS, LEVELS, strict=True)),
    "NOTICE": "INFO",
    "WARNING": "WARN",
    "SEVERE": "ERROR",
    "FAILURE": "ERROR",
}


class Accuracy(NamedTuple):
    """Lines of a system; how many state a level, are right, and have a level that they lack."""

    lines: int
    stating: int
    right: int
    invented: int


def stated_level(system: str, line: str) -> str | None:
    """The level that the rule of the system gives."""
    if system in _COLUMNS:
        found = re.match(_COLUMNS[system], line)
        return None if found is None else _NAMES.get(found[1].upper())
    found = re.search(_PHRASES[system], line)
    return None if found is None else _NAMES[next(filter(None, found.groups())).upper()]


def measure_levels(path: Path) -> Accuracy:
    """Compares what is found in a file with its system's rule."""
    lines = path.read_bytes().split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    stated = [stated_level(path.stem, line.decode("utf-8", "replace")) for line in lines]
    numbers = find_levels_of(lines).levels.tolist()
    found = [None if number == NO_LEVEL else LEVELS[number] for number in numbers]
    pairs = list(zip(stated, found, strict=True))
    return Accuracy(
        len(lines),
        sum(level is not None for level in stated),
        sum(ours == level for level, ours in pairs),
        sum(level is None and ours is not None for level, ours in pairs),
    )


def measure_all(folder: Path) -> Mapping[str, Accuracy]:
    """By system, for each file of the folder that has a rule."""
    known = _COLUMNS.keys() | _PHRASES.keys()
    files = sorted(path for path in folder.glob("*.log") if path.stem in known)
    return {path.stem: measure_levels(path) for path in files}


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="folder of the `*.log` files of loghub")
    found = measure_all(parser.parse_args().folder)
    print("| system | lines | state a level | right | invented |\n| --- | --- | --- | --- | --- |")
    for system, one in found.items():
        share = one.right / one.lines
        print(f"| {system} | {one.lines} | {one.stating} | {share:.2%} | {one.invented} |")
    return int(not found or any(one.right / one.lines < GOAL for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
