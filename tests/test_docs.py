"""Nothing public is undocumented: settings, metrics, routes, verbs, errors, and the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from compactor.metrics import METRICS as COMPACTORS
from docs import generate
from docs.prose import find_hard_messages
from service.doors.settings import DOORS
from service.http.app import documented
from service.http.errors import classify
from service.metrics.scrape import METRICS
from service.settings import Settings
from tailrace.cli.main import VERBS
from tailrace.forwarder.metrics import METRICS as FORWARDERS
from tailrace.logstore.settings import table
from tailrace.pipelines.process import METRICS as PIPELINES

ROOT = Path(__file__).parents[1]
PAGES = generate.pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_made_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name], "run `make docs`"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings.md", [row.name for row in table(Settings)]),
        ("settings.md", [row.variable for row in table(Settings)]),
        ("metrics.md", [metric.name for metric in METRICS]),
        ("metrics.md", [metric.name for metric in COMPACTORS]),
        ("metrics.md", [metric.name for metric in FORWARDERS]),
        ("metrics.md", [metric.name for metric in PIPELINES]),
        ("metrics.md", [f"| `{one.alias}` | `{one.name}` |" for one in METRICS if one.alias]),
        ("metrics.md", [f"| `{one.alias}` | `{one.name}` |" for one in COMPACTORS if one.alias]),
        ("errors.md", [classify(cls(""))[1] for cls in generate.error_classes()]),
        ("cli.md", [f"tailrace {verb}" for verb in VERBS]),
    ],
)
def test_the_page_names_each(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert [name for name in names if name not in text] == []


def test_every_setting_metric_verb_and_error_says_what_it_is() -> None:
    assert [row.name for row in table(Settings) if len(row.help) < 10] == []
    assert [metric.name for metric in METRICS if not metric.help] == []
    assert [metric.name for metric in COMPACTORS if not metric.help] == []
    assert [metric.name for metric in FORWARDERS if not metric.help] == []
    assert [name for name, verb in VERBS.items() if not verb.help] == []
    assert [cls.__name__ for cls in generate.error_classes() if not cls.__doc__] == []


def _code_of(package: str) -> list[Path]:
    return list((ROOT / package).rglob("*.py"))


def test_every_setting_is_read_somewhere() -> None:
    packages = ("service", "compactor", "tailrace")
    programs = [path for name in packages for path in _code_of(name)]
    code = "".join(p.read_text() for p in programs if p.name != "settings.py")
    # Read by properties of the settings themselves.
    inside = {"data", "store", "node_id", "server.insecure", "s3.addressing"}
    inside |= {"flush.bulk_milliseconds", "query.index_bytes", "query.scan_copies_bytes"}
    of_partitions = ("partition_prefix", "ageing_seconds", "store.object_store", "store.dynamodb")
    inside |= {f"source_coordination.{name}" for name in of_partitions[:2]}
    inside |= {f"source_coordination.{name}.ttl" for name in of_partitions[2:]}
    inside |= {"source_coordination.max_retry_seconds"}
    inside |= {f"doors.{door}_idle_minutes" for door in DOORS}
    names = [row.name for row in table(Settings) if row.name not in inside]
    assert [name for name in names if f".{name.rpartition('.')[2]}" not in code] == []


def test_every_error_class_is_in_the_drawing_of_the_tree() -> None:
    from tailrace.logstore import errors

    drawing = errors.__doc__ or ""
    assert [c.__name__ for c in generate.error_classes() if c.__name__ not in drawing] == []


def test_every_route_is_in_openapi_yaml() -> None:
    written = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    routes = documented().openapi()["paths"]
    assert {path: sorted(verbs) for path, verbs in routes.items()} == {
        path: sorted(verbs) for path, verbs in written.items()
    }
    for path, verbs in written.items():
        for verb, operation in verbs.items():
            assert operation.get("summary") or operation.get("description"), f"{verb} {path}"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 120
    assert {"make run", "make test"} <= set(re.findall(r"^(make \w+) ", text, re.MULTILINE))
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_test_of_a_promise_exists() -> None:
    cases = [case for promise in generate.promises() for case in promise["case"]]
    assert [case["when"] for case in cases if not case["tests"]] == []
    for test in [test for case in cases for test in case["tests"]]:
        path, _, name = test.partition("::")
        code = (ROOT / path).read_text()
        assert not name or re.search(rf"^ *(?:async )?def {name}\(", code, re.MULTILINE), test


def test_the_guarantees_name_each_promise_that_has_tests() -> None:
    text = (ROOT / "docs" / "reference" / "guarantees.md").read_text()
    promised = text.partition("## What Tailrace promises")[2].partition("\n## ")[0]
    named = re.findall(r"^- \*\*(.+?)\.\*\*", promised, re.MULTILINE)
    assert named == [promise["name"] for promise in generate.promises()]


def test_commands_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)) <= targets
    verbs = set(re.findall(r"(?:`|^)tailrace (\w+)", text, re.MULTILINE))
    assert {"run", "query", "tail"} <= verbs <= set(VERBS)


def test_decisions_are_numbered_and_say_what_was_rejected() -> None:
    numbers = []
    for page in sorted((ROOT / "docs" / "develop" / "decisions").glob("[0-9]*.md")):
        numbers.append(int(page.name[:3]))
        text = page.read_text()
        for part in ("## Decision", "## Reasons", "## Rejected"):
            assert part in text, f"{page.name} has no {part}"
    assert numbers == sorted(set(numbers))  # branches that land later fill the gaps


def test_messages_that_are_hard_to_read_are_found() -> None:
    long = " ".join(["word"] * 31)
    source = f'''
"""Those that are told {long}."""
raise Conflict(f"{{name}} is held", hint="Stop those that hold it.")
log.warning("{long}")
counter("runs", "Runs of which nobody heard.", help="Who closed it is unknown.")
setting("plain", description="The time until a run is closed.")
print("of which")
'''
    found = [(one.line, one.kind, one.words) for one in find_hard_messages("m.py", source)]
    assert found == [
        (3, "message with 'those that'", 5),
        (4, "message", 31),
        (5, "message with 'of which'", 5),
        (5, "message with 'Who c'", 5),
    ]
