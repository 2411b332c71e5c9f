"""The alert rules: sound, tested both ways, about metrics that there are, and explained."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from compactor.metrics import METRICS as COMPACTORS
from service.metrics.scrape import METRICS
from service.metrics.workers import UP
from tailrace.cli.canary import METRICS as CANARIES
from tailrace.forwarder.metrics import METRICS as FORWARDERS
from tailrace.pipelines.process import METRICS as PIPELINES
from tests.servers.promtool import promtool

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "prometheus"
TESTS = sorted(path.name for path in (FOLDER / "tests").glob("*.yml"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in ALERTS]
EXPORTED: dict[str, str] = {UP: "gauge"}
EXPORTED |= {m.name: m.kind for m in METRICS} | {m.name: m.kind for m in COMPACTORS}
EXPORTED |= {m.name: m.kind for m in PIPELINES} | {m.name: m.kind for m in FORWARDERS}
EXPORTED |= {m.name: m.kind for m in CANARIES}
BY_PROMETHEUS = {"up"}
METRIC = re.compile(r"\b(?:tailrace|om)_\w+|\bup\b")


def exported() -> set[str]:
    """Every name that a sample of ours can have."""
    endings = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
        "summary": ("_sum", "_count"),
    }
    return {name + end for name, kind in EXPORTED.items() for end in endings[kind]}


def test_each_program_that_a_rule_looks_at_has_a_scrape_target() -> None:
    """And the rule of programs that are down knows its job."""
    text = (FOLDER / "alerts.yml").read_text()
    comment = "\n".join(re.findall(r"^#   (.*)", text.partition("groups:")[0], re.MULTILINE))
    (found,) = re.findall(r"^scrape_configs:.*\n(?: .*\n)+", comment, re.MULTILINE)
    jobs = {one["job_name"] for one in yaml.safe_load(found)["scrape_configs"]}
    used = set(METRIC.findall(" ".join(rule["expr"] for rule in ALERTS)))
    programs = {
        "tailrace": [metric.name for metric in METRICS],
        "tailrace-pipelines": [metric.name for metric in PIPELINES],
        "tailrace-forwarder": [metric.name for metric in FORWARDERS],
        "tailrace-canary": [metric.name for metric in CANARIES],
    }
    needed = {
        job
        for job, names in programs.items()
        if any(name.startswith(tuple(names)) for name in used)
    }
    assert needed == jobs == set(programs)
    (down,) = [rule["expr"] for rule in ALERTS if rule["alert"] == "TailraceDown"]
    assert set(re.findall(r"[a-z-]+", down.partition("~")[2])) == jobs


@pytest.mark.promtool
def test_the_rules_are_sound() -> None:
    done = promtool("check", "rules", "alerts.yml", folder=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.promtool
@pytest.mark.parametrize("name", TESTS)
def test_the_rules_fire_when_they_should(name: str) -> None:
    done = promtool("test", "rules", f"tests/{name}", folder=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


def _noticed(folder: Path, expression: Callable[[str], str]) -> set[str]:
    """The alerts whose own tests fail where each rule has another expression than its own."""
    copy = folder / "prometheus"
    shutil.copytree(FOLDER, copy)
    rules = yaml.safe_load((copy / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = expression(rule["expr"])
    (copy / "alerts.yml").write_text(yaml.safe_dump(rules))
    done = promtool("test", "rules", *[f"tests/{test}" for test in TESTS], folder=copy)
    failed = r"""(?:alertname: |expr: .*?alertname=\\")(\w+)"""
    return set(re.findall(failed, done.stdout + done.stderr))


@pytest.mark.promtool
def test_rules_that_never_fire_are_noticed(tmp_path: Path) -> None:
    assert _noticed(tmp_path, lambda own: f"({own}) unless on() vector(1)") == set(NAMES)


@pytest.mark.promtool
def test_rules_that_always_fire_are_noticed(tmp_path: Path) -> None:
    def metric(own: str) -> str:
        found = METRIC.search(own)
        assert found is not None
        return found.group()

    assert _noticed(tmp_path, metric) == set(NAMES)


def test_every_metric_that_a_rule_names_is_exported() -> None:
    for rule in ALERTS:
        named = set(METRIC.findall(rule["expr"]))
        assert named, rule["alert"]
        assert named <= exported() | BY_PROMETHEUS, rule["alert"]


def test_metrics_that_the_words_of_a_rule_or_the_manual_name_are_exported() -> None:
    names = set(EXPORTED)
    words = [text for rule in ALERTS for text in rule["annotations"].values()]
    words.append((ROOT / "docs" / "operate" / "monitoring.md").read_text())
    named = {name for text in words for name in re.findall(r"\b(?:tailrace|om)_\w+", text)}
    assert named - exported() - names == set()


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_a_rule_says_how_bad_it_is_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 60


def test_the_manual_has_one_section_for_every_alert_and_says_what_to_do() -> None:
    text = (ROOT / "docs" / "operate" / "monitoring.md").read_text()
    sections = re.findall(r"^### `(\w+)`\n\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert sorted(name for name, _ in sections) == sorted(NAMES)
    for name, section in sections:
        meaning, _, advice = section.partition("**What to do:**")
        assert len(meaning) > 20, name
        assert len(advice) > 20, name


def test_the_rules_of_the_design_keep_its_thresholds() -> None:
    rules = {rule["alert"]: rule["expr"] for rule in ALERTS}
    assert "om_streamable_logs_pending_flush_bytes > 50e6" in rules["TailracePendingFlushBytes"]
    assert "rate(om_s3_errors_total[5m]) * 60 > 1" in rules["TailraceS3Errors"]
    assert "consecutive_flush_failures >=" in rules["TailraceFlushFailures"]
