"""The Helm chart and its manifests: valid, and what they set is what the programs know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import load_settings
from tailrace.forwarder.config.load import read
from tests.kubernetes.manifests import CHART, DEPLOY, FOLDER, FORMS, manifest, render
from tests.servers.helm import helm, is_built, kubeconform

SCHEMAS = Path(__file__).with_name("schemas")
# Go builds Helm for minutes, so on a new machine one run in six does. Then each run uses it.
BUILDS = 1 if is_built() else 6


def objects(name: str) -> list[dict[str, Any]]:
    found = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
    return [one for one in found if one is not None]


def one(name: str, kind: str, ending: str = "") -> dict[str, Any]:
    """The only object of that kind whose name has that ending."""
    (found,) = [
        each
        for each in objects(name)
        if each["kind"] == kind and each["metadata"]["name"] == f"tailrace{ending}"
    ]
    return found


# --- Helm -----------------------------------------------------------------------------------------


@pytest.mark.helm
@pytest.mark.in_turn(BUILDS, "helm")
@pytest.mark.parametrize("name", FORMS)
def test_the_chart_makes_the_manifests_and_they_fit_the_schemas(name: str) -> None:
    text = manifest(name)
    assert (FOLDER / f"{name}.yaml").read_text() == text, "run `make manifests`"
    done = kubeconform(SCHEMAS, text)
    assert done.returncode == 0, done.stdout
    assert f"Valid: {len(objects(name))}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


@pytest.mark.helm
@pytest.mark.in_turn(BUILDS, "helm")
def test_the_schemas_refuse_a_key_that_there_is_not() -> None:
    for right, wrong in [("podManagementPolicy", "podManagement"), ("endpoints:", "endpoint:")]:
        done = kubeconform(SCHEMAS, manifest("cluster").replace(right, wrong))
        assert done.returncode == 1
        assert f"'{wrong.rstrip(':')}' not allowed" in done.stdout


@pytest.mark.helm
@pytest.mark.in_turn(BUILDS, "helm")
@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
def test_the_chart_is_clean(flags: list[str]) -> None:
    flags = [flag for flag in flags if "show-only" not in flag and "templates/" not in flag]
    done = helm("lint", "--strict", str(CHART), *flags)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
@pytest.mark.in_turn(BUILDS, "helm")
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("replicas=2", "need settings.store on S3"),
        ("replicas=2,settings.store=s3://a/b", "TAILRACE_NODES__SECRET"),
        ("compactor.kind=cronJob", "cannot reach the node's volume"),
        ("compactor.kind=cronjob", "must be one of service, cronJob, spark, none"),
    ],
)
def test_values_that_do_not_work_are_refused(flags: str, why: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(why)):
        render("--set", flags)


# --- what is in the manifests ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["single", "cluster"])
def test_the_service_takes_its_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tailrace.yaml"
    file.write_text(one(name, "ConfigMap")["data"]["tailrace.yaml"])
    (container,) = one(name, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    for variable, value in values.items():
        monkeypatch.setenv(variable, value.replace("$(POD_NAME)", "tailrace-0"))
    if "envFrom" in container:
        monkeypatch.setenv("TAILRACE_NODES__SECRET", "a-secret-of-all-nodes")
    settings, warnings = load_settings(config=str(file))
    assert warnings == []
    assert settings.node_name == "tailrace-0"
    assert settings.nodes.url == "http://tailrace-0.tailrace-nodes.tailrace.svc:8790"
    assert settings.nodes.ask is (name != "single")
    assert settings.compaction.enabled is (name == "single")
    (port,) = container["ports"]
    assert port["containerPort"] == settings.server.port
    spec = one(name, "StatefulSet")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > settings.server.stop_seconds + 10
    mounted = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert {settings.data, values["TAILRACE_CONFIG"]} <= mounted


def test_the_forwarder_takes_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "forwarder.yaml"
    file.write_text(one("cluster", "ConfigMap", "-forwarder")["data"]["forwarder.yaml"])
    config = read(str(file))
    assert config.targets == ("http://tailrace:8790",)
    (container,) = one("cluster", "DaemonSet", "-forwarder")["spec"]["template"]["spec"][
        "containers"
    ]
    (port,) = container["ports"]
    assert config.metrics.listen == f"0.0.0.0:{port['containerPort']}"
    mounted = {volume["mountPath"]: volume for volume in container["volumeMounts"]}
    assert not mounted[config.storage].get("readOnly")
    # Its own lines would beget lines.
    (source,) = config.sources
    assert source.template == "kubernetes"
    (role,) = [each for each in objects("cluster") if each["kind"] == "ClusterRole"]
    (rule,) = role["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["list"])
    assert {each["name"] for each in container["env"]} == {"NODE_NAME"}
    assert any(container["name"] in pattern for pattern in source.exclude)


def test_monitoring_is_that_of_the_folder_deploy() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert one("cluster", "PrometheusRule")["spec"] == rules
    dashboard = one("cluster", "ConfigMap", "-dashboard")["data"]["tailrace.json"]
    assert dashboard == (DEPLOY / "grafana" / "tailrace.json").read_text()
    jobs = {
        each["spec"]["endpoints"][0]["relabelings"][0]["replacement"]
        for each in objects("cluster")
        if each["kind"] == "ServiceMonitor"
    }
    assert jobs == {"tailrace", "tailrace-forwarder"}
    assert json.loads(dashboard)["title"] == "Tailrace"


def test_each_service_monitor_finds_one_service_with_its_port() -> None:
    services = [each for each in objects("cluster") if each["kind"] == "Service"]
    for monitor in (each for each in objects("cluster") if each["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (found,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for port in found["spec"]["ports"]}
        assert monitor["spec"]["endpoints"][0]["port"] in ports


@pytest.mark.parametrize("name", FORMS)
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    for each in objects(name):
        spec = each.get("spec", {})
        template = spec.get("jobTemplate", each).get("spec", {}).get("template")
        if template is None:
            continue
        (container,) = template["spec"]["containers"]
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        token = template["spec"].get("automountServiceAccountToken", True)
        assert token is (name == "compactor-spark" or each["kind"] == "DaemonSet")
