"""Helm and kubeconform, which Go builds from pinned versions, once for a machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.servers.cached import cache_folder, why_not_fetched

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"
# Nothing for debuggers: a good part of the time.
_INSTALL = "go install -ldflags='-s -w' -gcflags=all=-dwarf=false"
_SCRIPT = f"""
set -e
mkdir "$1"
export GOBIN="$1" CGO_ENABLED=0
{_INSTALL} {HELM}
{_INSTALL} {KUBECONFORM}
"""


def _folder() -> Path:
    return cache_folder(f"helm-{HELM.rpartition('@')[2]}-{KUBECONFORM.rpartition('@')[2]}")


def is_built() -> bool:
    """Whether an earlier run on this machine built them."""
    return _folder().is_dir()


@cache
def why_no_helm() -> str | None:
    """A sentence that says why they cannot be had; None if they can. Builds them if need be."""
    if not _folder().is_dir() and shutil.which("go") is None:
        return "no Go found to build it"
    what = "Helm and kubeconform, by Go"
    return why_not_fetched(_folder(), what, lambda made: ["sh", "-c", _SCRIPT, "sh", str(made)])


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Helm, for a cluster of the version that the schemas are of."""
    return _run("helm", arguments)


def kubeconform(schemas: Path, manifests: str) -> subprocess.CompletedProcess[str]:
    """Compares manifests with schemas in a folder, which must know each kind and each key."""
    where = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    return _run("kubeconform", ["-strict", "-summary", "-schema-location", where], manifests)


def _run(
    program: str, arguments: Sequence[str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_folder() / program), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
