"""An archive of Spark's classes in Java's memory format, which each later JVM maps.

Starting a JVM with Spark is mostly reading, parsing and verifying some 20,000 classes. Java can
write the result into an archive (class data sharing). `python -m
compactor.spark.class_archive` makes one, by a small merge and a small rewriting in a JVM that
writes the archive as it ends. `make setup` does so. The archive lies beside Spark's jars: a user
who may write there may change what Spark does anyway.

The file is named after the Java and the jars that it was made with. Once either has changed, the
file is not found, and Spark starts without it. Java compares them as well, and silently starts
without an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.spark.engine import Engine, MergeInput, RewriteInput
from logstore import ulid
from logstore.errors import TailraceError, Unavailable
from logstore.runs.deletions import Deletion
from logstore.table.schema import COLUMNS, PARTITIONS

_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_QUIET: Final = "-Xlog:cds*=off"  # else it warns of an archive that does not fit
_LINES: Final = 1_000
_NAME: Final = "tailrace-classes-{}.jsa"
_UNNAMEABLE: Final = frozenset('":\\')  # Spark's options and Java's list of archives have them


def archive_conf() -> dict[str, str]:
    """Spark's configuration with which its JVM uses the archive; empty if there is none."""
    archive = archive_file()
    return _java(f"SharedArchiveFile={archive}") if archive and archive.is_file() else {}


def archive_file() -> Path | None:
    """The path of the archive of this Java and Spark, if one can be made; None without either."""
    from pyspark.find_spark_home import _find_spark_home

    java = shutil.which(os.path.join(os.environ.get("JAVA_HOME") or "", "bin", "java"))
    java = java or shutil.which("java")
    spark = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    if java is None or _UNNAMEABLE & set(str(spark)):
        return None
    try:
        jars = sorted((spark / "jars").iterdir())
        stats = [(str(path), path.stat()) for path in (Path(java).resolve(), *jars)]
    except OSError:
        return None
    made_with = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return spark / _NAME.format(hashlib.sha256(repr(made_with).encode()).hexdigest()[:16])


def make_archive() -> Path:
    """Makes the archive, unless it is there, and removes those of other versions.

    It takes half a minute and 170 MB. Raises `Unavailable`.
    """
    archive = archive_file()
    if archive is None:
        raise Unavailable("there is no Java, or no Spark that an archive can be made for")
    if archive.is_file():
        return archive
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-", dir=archive.parent) as made:
            new = Path(made) / archive.name
            _write(new, Path(made))
            new.replace(archive)
        for other in archive.parent.glob(_NAME.format("*")):
            if other != archive:
                other.unlink()
    except OSError as error:
        raise Unavailable(f"the archive of classes cannot be written: {error}") from error
    return archive


def _java(option: str) -> dict[str, str]:
    return {_OPTIONS: f'"-XX:{option}" {_QUIET}'}


def _write(archive: Path, folder: Path) -> None:
    from compactor.spark.conf import SparkWishes
    from compactor.spark.session import Session

    session = Session(SparkWishes("1g", more=_java(f"ArchiveClassesAtExit={archive}")))
    try:
        _work(session, folder)
    finally:
        session.stop()


def _work(engine: Engine, folder: Path) -> None:
    """Runs the jobs of a pass, with a few lines of one hour."""
    files = [folder / f"{number}.parquet" for number in range(2)]
    for path in files:
        _write_lines(path)
    segment, held = ({str(path): path.stat().st_size} for path in files)
    deletions = [Deletion("f", "gone", _LINES, ulid.encode(1)), Deletion("gone", None, 1, "")]
    bounds = [0, _LINES // 2]
    engine.merge(MergeInput(segment, {}, bounds, [0, 1], [], 0, _LINES), str(folder / "merged"))
    again = MergeInput(segment, held, bounds, [0, 0], deletions, 0, _LINES)
    engine.merge(again, str(folder / "again"))
    work = RewriteInput(segment | held, 2 * _LINES, 2, deletions)
    engine.rewrite(work, str(folder / "rewritten"))
    engine.share_batches(segment, held)


def _write_lines(path: Path) -> None:
    schema = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
    rows = [
        {
            "ulid": ulid.encode(number),
            "fqn": "f",
            "run_id": "r",
            "pos": number,
            "message": str(number),
            "attributes": [("name", "value")],
        }
        for number in range(_LINES)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{make_archive()}\n")
    except TailraceError as error:
        sys.exit(f"Spark will start without an archive of its classes: {error}")
