"""Counts, without a clock, what searches for ids that occur nowhere read in vain.

    python -m benchmarks.index_reads [--megabytes 40] [--real]

Makes a skip index of lines that are full of ids (`benchmarks.id_lines`), or with `--real` of
the corpus (`benchmarks.corpus`), in row groups of the table's size. The size of the table file
is taken to be that of its text, compressed by Zstandard. For each kind of text it prints the row
groups that cannot be left out, in percent, and the pages of the index that a search reads.
"""

from __future__ import annotations

import argparse
import random
from itertools import islice
from typing import Final

import pyarrow as pa

from benchmarks import corpus
from benchmarks.id_lines import IDS, lines
from tailrace.logstore.table.schema import ROW_GROUP_ROWS
from tailrace.logstore.table.skip_index import Builder, grams_of, parse

_ASKED: Final = 200


def row_groups(megabytes: int, *, real: bool) -> list[bytes]:
    """The messages of each row group, one after another."""
    made, groups, size = lines(1), list[bytes](), 0
    found = iter(corpus.lines_of(megabytes * 20_000)) if real else None
    while size < megabytes * 1_000_000:
        some = (
            [line.rstrip(b"\n") for line in islice(found, ROW_GROUP_ROWS)]
            if found
            else [line.encode() for line in islice(made, ROW_GROUP_ROWS)]
        )
        if not some:
            break
        groups.append(b"".join(some))
        size += len(groups[-1])
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description="What searches for ids read in vain.")
    parser.add_argument("--megabytes", type=int, default=40, help="text in the table")
    parser.add_argument("--real", action="store_true", help="lines of the corpus")
    arguments = parser.parse_args()
    groups = row_groups(arguments.megabytes, real=arguments.real)
    size = sum(len(pa.Codec("zstd", 1).compress(text)) for text in groups)
    builder = Builder(size, len(groups))
    for text in groups:
        builder.add(ROW_GROUP_ROWS, text, bare=True)
    body = builder.finish()
    index, texts = parse(body, size=size), [text.lower() for text in groups]
    source = corpus.source() if arguments.real else "made lines"
    print(f"{sum(map(len, groups)) / 1e6:.0f} MB of {source} in {len(groups)} row groups,")
    print(f"{size / 1e6:.1f} MB compressed, {len(body) / 1e6:.2f} MB of filters")
    print(f"{'text that occurs nowhere':<26}{'in vain, %':>12}{'pages':>8}")
    dice = random.Random(2)
    for name, make in IDS.items():
        vain = pages = kept = 0
        for asked in (make(dice) for _ in range(_ASKED)):
            grams = grams_of(asked)
            pages += len(list(index.pages(grams)))
            may = index.may_hold(grams)
            for text, held in zip(texts, may.tolist(), strict=True):
                absent = asked.encode() not in text
                kept += absent
                vain += held and absent
        print(f"{name:<26}{100 * vain / max(kept, 1):>12.1f}{pages / _ASKED:>8.1f}")


if __name__ == "__main__":
    main()
