"""The plain manifests of deploy/kubernetes, which Helm makes from the chart: `make manifests`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.helm import helm, why_no_helm

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "tailrace"
FOLDER = DEPLOY / "kubernetes"
VERSION = "v1.34.0"
"""Of Kubernetes: that of the schemas."""
_CLUSTER = ("--values", str(CHART / "values-cluster.yaml"))
FORMS: Mapping[str, Sequence[str]] = {
    "single": (),
    "cluster": _CLUSTER,
    "compactor-spark": (
        *_CLUSTER,
        *("--set", "compactor.kind=spark", "--show-only", "templates/compactor.yaml"),
    ),
}
"""The flags of each form; the last one is the compactor alone, in place of the cluster's."""
_HEAD = "# Made from deploy/helm/tailrace by `make manifests`: kubectl apply --namespace tailrace\n"


def render(*flags: str) -> str:
    """The chart's manifests. Raises `RuntimeError` with what Helm says."""
    release = ("template", "tailrace", str(CHART), "--namespace", "tailrace")
    done = helm(*release, "--kube-version", VERSION, *flags)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def manifest(name: str) -> str:
    """The text of a file of the folder."""
    return f"{_HEAD}{render(*FORMS[name])}"


def main() -> int:
    """Writes all files."""
    why = why_no_helm()
    if why is not None:
        print(why, file=sys.stderr)
        return 1
    for name in FORMS:
        (FOLDER / f"{name}.yaml").write_text(manifest(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
