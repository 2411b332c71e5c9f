"""Real log lines, as many as a benchmark asks for, the same for everybody.

Blocks of 200 lines from the loghub files in random order, every run of three or more
digits replaced by random digits of the same length: no block is like another, and lines
compress as real ones do. The seed is fixed, so the same size is the same bytes.

    TAILRACE_CORPUS        folder of the loghub `*.log` files
                           (default: shared/data/loghub beside the repository)
    TAILRACE_CORPUS_CACHE  where a made corpus is kept (default: the user's cache folder)

Where the files are not at hand, made lines of the same kind stand in, which `source()`
says, so that no figure is given for them by mistake.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK_LINES = 200
SEED = 3
_VERSION = 1
_DIGITS = re.compile(rb"[0-9]{3,}")
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "loghub"


def files() -> list[Path]:
    """The loghub files; none if they are not at hand."""
    folder = Path(os.environ.get("TAILRACE_CORPUS", _BESIDE))
    return sorted(folder.glob("*.log")) if folder.is_dir() else []


def source() -> str:
    """What the lines are, for the head of a report."""
    return f"{len(files())} loghub files" if files() else "made lines, not real ones"


def lines_of(count: int, *, seed: int = SEED) -> list[bytes]:
    """The first `count` lines of the corpus of a seed, each with its newline."""
    lines: list[bytes] = []
    for block in blocks(seed):
        lines += _split(block)
        if len(lines) >= count:
            break
    return lines[:count]


def corpus(size: int, *, seed: int = SEED) -> Path:
    """A file of whole blocks, at least `size` bytes; made once, then kept."""
    folder = Path(os.environ.get("TAILRACE_CORPUS_CACHE", _cache())) / "tailrace-corpus"
    path = folder / f"{_fingerprint()}-{seed}-{size}.log"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as file:
        written = 0
        for block in blocks(seed):
            written += file.write(block)
            if written >= size:
                break
    return unfinished.replace(path)


def blocks(seed: int = SEED) -> Iterator[bytes]:
    """Blocks of 200 lines without end, the originals in a new order each round."""
    dice = random.Random(seed)
    originals = _originals()
    while True:
        dice.shuffle(originals)
        for block in originals:
            yield _DIGITS.sub(lambda found: _other_digits(found[0], dice), block)


def _other_digits(digits: bytes, dice: random.Random) -> bytes:
    length = len(digits)
    return b"%0*d" % (length, dice.randrange(10**length))


def _originals() -> list[bytes]:
    texts = [path.read_bytes() for path in files()] or [made_text(n) for n in range(13)]
    found = []
    for text in texts:
        lines = _split(text)
        found += [b"".join(lines[i : i + BLOCK_LINES]) for i in range(0, len(lines), BLOCK_LINES)]
    return found


def _split(text: bytes) -> list[bytes]:
    """Lines that end at newlines only."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    return lines[:-1] if text.endswith(b"\n") else lines


def made_text(seed: int, lines: int = 2000) -> bytes:
    """Lines that look like a service's log, the same for the same seed."""
    dice = random.Random(seed)
    words = ["block", "fetch", "session", "task", "table", "commit", "retry", "slot", "queue"]
    levels = ["INFO"] * 12 + ["WARN"] * 3 + ["ERROR"]
    made = []
    for number in range(lines):
        hour, minute, second = number // 3600 % 24, number // 60 % 60, number % 60
        clock = f"2024-03-{1 + seed:02} {hour:02}:{minute:02}:{second:02}"
        text = " ".join(dice.choices(words, k=dice.randrange(3, 12)))
        address = f"10.{dice.randrange(256)}.0.{dice.randrange(256)}:{dice.randrange(50000)}"
        made.append(f"{clock},{dice.randrange(1000):03} {dice.choice(levels)} {text} {address}\n")
    return "".join(made).encode()


def _fingerprint() -> str:
    """Names the originals, so that other files make another corpus."""
    digest = hashlib.sha256(b"%d" % _VERSION)
    for block in _originals():
        digest.update(block)
    return digest.hexdigest()[:12]


def _cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def main() -> None:
    """`python -m benchmarks.corpus --megabytes 200`: makes the file and says where it is."""
    parser = argparse.ArgumentParser(description="Makes a corpus of real log lines.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    print(corpus(chosen.megabytes * 1_000_000, seed=chosen.seed))
    print(source(), file=sys.stderr)


if __name__ == "__main__":
    main()
