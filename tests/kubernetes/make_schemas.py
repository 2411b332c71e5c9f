"""Writes the schemas of the kinds that the chart makes, from Kubernetes' and the operator's own.

    python -m tests.kubernetes.make_schemas KUBERNETES OPERATOR

KUBERNETES is a folder `vX.Y.0-local-strict` of the PyPI package kubernetes-validate; OPERATOR the
folder example/prometheus-operator-crd of the Go module
github.com/prometheus-operator/prometheus-operator. Descriptions are left out, and each kind has a
file of its own with the definitions that it needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).with_name("schemas")
KINDS = (
    *("statefulset-apps-v1", "daemonset-apps-v1", "cronjob-batch-v1", "service-v1"),
    *("configmap-v1", "serviceaccount-v1", "poddisruptionbudget-policy-v1"),
    *("networkpolicy-networking-v1", "role-rbac-v1", "rolebinding-rbac-v1"),
    *("clusterrole-rbac-v1", "clusterrolebinding-rbac-v1"),
)
OPERATORS = ("servicemonitors", "prometheusrules")
_PREFIX = "/api/_definitions.json#/$defs/"


def main(kubernetes: Path, operator: Path) -> None:
    """Writes all files."""
    definitions = json.loads((kubernetes / "_definitions.json").read_text())["$defs"]
    for name in KINDS:
        schema = json.loads((kubernetes / f"{name}.json").read_text())
        _write(name, {**schema, "$defs": _needed(schema, definitions)})
    for plural in OPERATORS:
        text = (operator / f"monitoring.coreos.com_{plural}.yaml").read_text()
        crd = yaml.safe_load(text)
        (version,) = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
        schema = _strict(version["schema"]["openAPIV3Schema"])
        _write(f"{crd['spec']['names']['singular']}-monitoring-v1", schema)


def _needed(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in found:
                found[name] = definitions[name]
                waiting.append(definitions[name])
    return dict(sorted(found.items()))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference.rpartition("/")[2]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _strict(value: Any) -> Any:
    """A CRD's schema that refuses keys that it does not name, but for the object's metadata."""
    if isinstance(value, list):
        return [_strict(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: _strict(each) for key, each in value.items()}
    if made.get("type") == "object" and "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def _short(value: Any, *, named: bool = False) -> Any:
    """Without descriptions and Kubernetes' own remarks; `named`: its keys are names of fields."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value.replace(_PREFIX, "#/$defs/") if isinstance(value, str) else value
    return {
        key: _short(each, named=not named and key in ("properties", "$defs"))
        for key, each in value.items()
        if named or not (key in ("description", "$id") or key.startswith("x-kubernetes"))
    }


def _write(name: str, schema: Any) -> None:
    text = json.dumps(_short(schema), separators=(",", ":"), sort_keys=True)
    (FOLDER / f"{name}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
