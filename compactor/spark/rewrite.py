"""The Spark job: table files of one hour in, a few of about one size out, sorted over all.

Lines are ordered by (fqn, run_id, ulid) over all files together: each file has a range of
that key, so whoever reads a run opens one file, and a run larger than a file is cut by ULID.
Where one file is to come out, that is one shuffle and one sort, as for a merge. For several,
the ranges come from a sample of the keys, a few percent of the bytes, read before: choosing
lines by a hash of their ULID, it is the same whichever task reads them. Ranges only say
how even the files are. A record's copies have one key, so they meet in one file anyway.

Output is `part-{part:05d}-….parquet` in a folder of its own. Addresses are paths or `s3://`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.lines import BUCKET, KEY, failing, once, read, without, write
from compactor.spark.rewrite_input import RewriteInput
from compactor.spark.search import bucketed

_SAMPLES: Final = 1_000  # keys for each file: their sizes differ by some percent

Key: TypeAlias = tuple[str, ...]


def rewrite(spark: SparkSession, work: RewriteInput, folder: str) -> int:
    """Writes the lines of `work.files` below `folder`, each once, without the deleted ones.

    Gives the number of lines written.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    with failing():
        lines = without(spark, read(spark, work.files, work.sizes), work.deletions)
        ranges = _ranges(lines, work) if work.parts > 1 else []
        return write(once(_spread(lines, ranges), [F.col("ulid")]), folder)


def cuts(keys: Sequence[Key], parts: int) -> list[Key]:
    """The lowest key of each part but the first, rising, at most `parts` - 1.

    `keys` are a sample. One that stands for more than a part begins one part only.
    """
    ordered = sorted(keys)
    chosen = [ordered[len(ordered) * part // parts] for part in range(1, parts)] if ordered else []
    return sorted(set(chosen))


def _ranges(lines: DataFrame, work: RewriteInput) -> list[Key]:
    one_in = max(work.rows // (_SAMPLES * work.parts), 1)
    sample = lines.select(*KEY).where(F.pmod(F.xxhash64("ulid"), F.lit(one_in)) == 0)
    return cuts([tuple(key) for key in orjson.loads(_text(sample))], work.parts)


def _text(keys: DataFrame) -> str:
    """All of them as JSON. Collecting rows would leave a socket of pyspark's open each time."""
    listed = F.collect_list(F.array(*KEY))
    found: Any = keys.agg(F.to_json(listed))
    text: str = found._jdf.head().getString(0)
    return text


def _spread(lines: DataFrame, ranges: Sequence[Key]) -> DataFrame:
    begins = _constant([("",) * len(KEY), *ranges])
    parts = len(ranges) + 1
    found = bucketed(lines, F.struct(*KEY), begins, parts)
    return found.repartitionById(parts, BUCKET)


def _constant(keys: Sequence[Key]) -> Column:
    """An array of structs: one literal for Py4J, which Spark takes apart once, when it plans."""
    schema = f"array<struct<{','.join(f'{name}:string' for name in KEY)}>>"
    text = orjson.dumps([dict(zip(KEY, key, strict=True)) for key in keys]).decode()
    return F.from_json(F.lit(text), schema)
