"""The jars that Spark needs for S3, fetched once for a machine into the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "jars.sha256"


@cache
def why_no_jars() -> str | None:
    """A sentence that says why they cannot be had here; None if they can. Fetches if need be."""
    folder = jars_folder()
    if folder.is_dir():
        return None
    print("fetching Spark's jars for S3, once for this machine", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Aside and renamed: another run may be at it, or this one may be killed.
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        done = subprocess.run(
            [sys.executable, "-m", "compactor.jars", f"{aside}/jars"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return f"python -m compactor.jars failed: {done.stderr.strip()[-300:]}"
        if not folder.is_dir():
            os.rename(f"{aside}/jars", folder)
    return None


def jars_folder() -> Path:
    """Where they are. Another list of them is another folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    return Path(home) / "tailrace" / f"spark-jars-{digest}"
