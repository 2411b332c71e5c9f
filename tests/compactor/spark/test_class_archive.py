"""The archive of Spark's classes is found for the Java and the jars that it was made with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.spark.session import archive_conf, archive_file, make_archive
from tailrace.logstore.errors import Unavailable

OPTIONS = "spark.driver.defaultJavaOptions"
_START = """
from compactor.spark.engine import SparkWishes
from compactor.spark.session import Session
session = Session(SparkWishes("512m", json_log=True))
print(session.get().range(5).count(), "SharedArchiveFile" in
      session.get().sparkContext._conf.get("spark.driver.defaultJavaOptions"))
session.stop()
"""


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark of one jar, and a Java, of which nothing is run."""
    home, java = tmp_path / "a spark", tmp_path / "java"
    for file in (home / "jars" / "core.jar", java / "bin" / "java"):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"1")
        file.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(java))
    return home


def _made() -> Path:
    archive = archive_file()
    assert archive is not None
    archive.write_bytes(b"classes")
    return archive


def test_spark_is_told_of_an_archive_that_is_there(spark_home: Path) -> None:
    assert archive_conf() == {}
    archive = _made()
    assert archive.parent == spark_home
    assert f'"-XX:SharedArchiveFile={archive}"' in archive_conf()[OPTIONS]


@pytest.mark.usefixtures("spark_home")
@pytest.mark.parametrize("file", ["a spark/jars/core.jar", "java/bin/java"])
def test_another_jar_or_java_has_another_archive(tmp_path: Path, file: str) -> None:
    before = _made()
    (tmp_path / file).write_bytes(b"22")
    assert archive_conf() == {}
    assert archive_file() != before


@pytest.mark.usefixtures("spark_home")
def test_one_that_is_there_is_not_made_again() -> None:
    made = _made()
    assert make_archive() == made
    assert made.read_bytes() == b"classes"


def test_without_java_or_spark_there_is_none(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home / "elsewhere"))
    assert archive_conf() == {}
    with pytest.raises(Unavailable):
        make_archive()


def _of_another_class_path(archive: Path | None) -> None:
    """A real one, of which Java warns."""
    assert archive is not None
    (jar,) = (archive.parent / "jars").glob("spark-launcher_*.jar")
    java = shutil.which(os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")) or "java"
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds*=off", "-cp", str(jar)]
    command = [java, *options, "org.apache.spark.launcher.Main", "Master"]
    subprocess.run(command, capture_output=True, timeout=60, check=False)
    tried = [java, f"-XX:SharedArchiveFile={archive}", "-cp", "elsewhere", "-version"]
    said = subprocess.run(tried, capture_output=True, timeout=60, check=True)
    assert b"shared archive" in said.stdout + said.stderr


@pytest.mark.spark
@pytest.mark.in_turn(4, "archive")
def test_an_archive_that_java_cannot_use_is_left_alone_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = archive_file()
    assert found is not None
    for name in ("bin", "jars"):
        (tmp_path / name).symlink_to(found.parent / name)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    _of_another_class_path(archive_file())
    ended = subprocess.run(
        [sys.executable, "-c", _START],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout == "5 True\n"
    assert "shared archive" not in ended.stderr
