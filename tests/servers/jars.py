"""The jars that Spark needs for S3, fetched once for a machine into the user's cache."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

from tests.servers.cached import cache_folder, why_not_fetched

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "jars.sha256"


@cache
def why_no_jars() -> str | None:
    """A sentence that says why they cannot be had here; None if they can. Fetches if need be."""
    return why_not_fetched(
        jars_folder(),
        "Spark's jars for S3",
        lambda made: [sys.executable, "-m", "compactor.spark.s3", str(made)],
        cwd=ROOT,
    )


def jars_folder() -> Path:
    """Where they are. Another list of them is another folder."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    return cache_folder(f"spark-jars-{digest}")
