"""The reference pages, made from the code they describe: `make docs`.

`tests/test_docs.py` fails when a page is not what this module makes of the code.
"""

from __future__ import annotations

import argparse
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from compactor.metrics import COUNTERS, GAUGES
from docs import forwarder_reference
from service.http.errors import classify
from service.metrics.aliases import NOT_EXPORTED
from service.metrics.scrape import METRICS
from service.settings import Settings
from tailrace.cli.canary import METRICS as CANARY
from tailrace.cli.main import VERBS
from tailrace.forwarder.metrics import METRICS as FORWARDERS
from tailrace.logstore import errors
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import (
    LETTERS,
    LEVEL_KEYS,
    NUMBERS,
    OTEL_KEYS,
    PYTHON_KEYS,
    SPELLINGS,
    SYSLOG_KEYS,
)
from tailrace.logstore.settings import table
from tailrace.logstore.state import STATE_KINDS, StateKind
from tailrace.pipelines.process import METRICS as PIPELINES
from tests.upstream.openmetadata import COUNTS, SOURCES, rows

ROOT = Path(__file__).parents[1]
DECISION_AREAS = {
    "journal": "Journal and appends",
    "runs": "Logs of runs",
    "meaning": "Times, levels and text",
    "http": "HTTP",
    "live": "Live views",
    "search": "Search",
    "segments": "Segments and their queue",
    "compaction": "Compaction and the table",
    "store": "Object store",
    "coordination": "Leases and coordination",
    "nodes": "Several nodes",
    "access": "Access",
    "client": "Client",
    "forwarder": "Forwarder",
    "pipelines": "Log pipelines",
    "page": "Page",
    "operating": "Operating",
    "project": "The project",
}
DECISION_HEAD = re.compile(
    r"# (?P<number>\d{3}) (?P<title>.+)\n\nArea: (?P<area>\w+)\. Status: (?P<status>.+)\.\n"
)
_NOT_EXPORTED = textwrap.fill(
    "Metrics of OpenMetadata that Tailrace does not have, because they have no meaning here or "
    "another metric says more.",
    100,
)

_COMPACTOR = textwrap.fill(
    "Each compactor writes these metrics to the file `compaction.metrics_file` and sends them to"
    " the"
    " gateway "
    "`compaction.push_gateway`. A service includes the file of a compactor on its data folder in"
    " its "
    "own `/metrics`. Counters in the file rise over passes, restarts and compactors. Leases of "
    "compactors are measured under the names above, with the source `compactor|compact` for "
    "nodes and `compactor|hour` for hours.",
    100,
)
_FORWARDER = textwrap.fill(
    "`tailrace forward --config` serves these metrics at `metrics.listen` of its configuration."
    " The label "
    "`source` is the name of the source in the configuration.",
    100,
)
_PIPELINES = textwrap.fill(
    "`tailrace pipelines` serves these metrics at `pipelines.metrics_listen`, each process for its"
    " own"
    " work. "
    "`/health/live` at that address answers 503 if the process is stuck, and `/health/ready` if"
    " the "
    "store does not answer or a pipeline's file is wrong; both name all problems. Metrics that "
    "appenders declare have names that begin with `tailrace_pipelines_appender_`.",
    100,
)
_CANARY = textwrap.fill(
    "`tailrace canary` serves these metrics at `--listen`, also `/health/live` and"
    " `/health/ready`.",
    100,
)
_RENAMED = textwrap.fill(
    "Until the next version, these old names are exported as well as the new ones, with the same "
    "values.",
    100,
)


def pages() -> dict[str, str]:
    """Every made page by its path from the root."""
    return {
        "docs/reference/settings.md": _settings(),
        "docs/reference/cli.md": _cli(),
        "docs/reference/metrics.md": _metrics(),
        "docs/reference/errors.md": _errors(),
        "tests/upstream/openmetadata.md": _openmetadata(),
        "docs/reference/forwarder-reference.md": _forwarder(),
        "docs/reference/state-objects.md": _state_objects(),
        "docs/reference/guarantees-tests.md": _guarantees_tests(),
        "docs/use/levels.md": _levels(),
        "docs/develop/decisions/index.md": _decisions(),
    }


def _levels() -> str:
    """The page with its table of spellings made anew."""
    before, begin, rest = (ROOT / "docs/use/levels.md").read_text().partition("<!-- spellings -->")
    _, end, after = rest.partition("<!-- /spellings -->")
    words = (
        (level, _codes(SPELLINGS[level]), _codes(LETTERS[level]), ", ".join(NUMBERS[level]))
        for level in LEVELS
    )
    lines = _table("level | words | letters | numbers", words)
    keys = _codes(key for key in (*LEVEL_KEYS, *OTEL_KEYS, *PYTHON_KEYS, *SYSLOG_KEYS))
    lines += ["", textwrap.fill(f"Level keys (the first one in the line counts): {keys}.", 140)]
    return "\n".join([before + begin, "", *lines, "", end + after])


def _guarantees_tests() -> str:
    """Each promise of the guarantees, with the cases of `tests/promises.toml`."""
    text = (
        "What can go wrong with each promise of the [guarantees](guarantees.md), what Tailrace"
        " keeps then, and the tests that try to break it. `make test` runs all of them except whole"
        " programs: `make demo` and `make torture`, which CI runs too, `make clients`, which"
        " installs OpenMetadata's own clients, and `make collector`, which builds OpenTelemetry's."
    )
    lines = [_head("Guarantees and their tests", text)]
    for promise in promises():
        cases = (
            (case["when"], case["kept"], ", ".join([*_each(case["tests"]), *_also(case)]))
            for case in promise["case"]
        )
        lines += [f"## {promise['name']}", ""]
        lines += [*_table("what happens | what is kept | tests", cases), ""]
    return "\n".join(lines).rstrip() + "\n"


def promises() -> list[dict[str, Any]]:
    """The promises in the order of the page, each with its `name` and its cases."""
    found = tomllib.loads((ROOT / "tests/promises.toml").read_text())["promise"]
    assert isinstance(found, list)
    return found


def _each(tests: Iterable[str]) -> Iterator[str]:
    return (f"`{test}`" for test in tests)


def _also(case: dict[str, Any]) -> list[str]:
    return [case["also"]] if "also" in case else []


def _decisions() -> str:
    """The index of all decisions, by area."""
    areas: dict[str, list[tuple[str, str, str]]] = {area: [] for area in DECISION_AREAS}
    for path in sorted((ROOT / "docs/develop/decisions").glob("[0-9]*.md")):
        found = DECISION_HEAD.match(path.read_text())
        if found is None or found["area"] not in areas:
            raise ValueError(
                f"{path.name} does not begin with its title and a line `Area: … Status: …`; the"
                f" areas are {', '.join(areas)}"
            )
        link = f"[{found['title']}]({path.name})"
        areas[found["area"]].append((found["number"], link, found["status"]))
    text = (
        "Each record explains a choice that would otherwise be discussed again. The records are"
        " listed by"
        " area. [Record 000](000-how-decisions-are-written.md) says how to write one."
    )
    lines = [_head("Decisions", text)]
    for area, records in areas.items():
        lines += [f"## {DECISION_AREAS[area]}", ""]
        lines += [*_table("number | decision | status", iter(records)), ""]
    archived = (
        (found["number"], f"[{found['title']}](archive/{path.name})", _from_index(found["status"]))
        for path in sorted((ROOT / "docs/develop/decisions/archive").glob("[0-9]*.md"))
        if (found := DECISION_HEAD.match(path.read_text()))
    )
    lines += ["## Archive", "", *_table("number | decision | status", archived)]
    return "\n".join(lines).rstrip() + "\n"


def _from_index(status: str) -> str:
    """The status of an archived decision with its links as seen from the folder above."""
    return status.replace("](../", "](")


def error_classes() -> Iterator[type[errors.TailraceError]]:
    """The tree of `tailrace.logstore.errors`, depth first."""

    def below(cls: type[errors.TailraceError]) -> Iterator[type[errors.TailraceError]]:
        yield cls
        for child in cls.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from below(child)

    return below(errors.TailraceError)


def _page(title: str, text: str, header: str, rows: Iterator[tuple[str, ...]]) -> str:
    return "\n".join([_head(title, text), *_table(header, rows)]) + "\n"


def _head(title: str, text: str) -> str:
    paragraphs = [
        textwrap.fill(paragraph, 100, break_on_hyphens=False) for paragraph in text.split("\n")
    ]
    return "\n\n".join([f"# {title}", "<!-- Made by `make docs`. -->", *paragraphs]) + "\n"


def _table(header: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {header} |", "|" + " --- |" * (header.count("|") + 1)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(texts: Iterable[str]) -> str:
    return " ".join([_code(text) for text in texts])


def _settings() -> str:
    text = (
        "Flags of `tailrace serve` take precedence over the environment, the environment over "
        "`tailrace.yaml` (or the file that `--config` or `TAILRACE_CONFIG` names), and the file "
        "over the defaults. A dot is a section of the file, and `__` in the environment: "
        "`TAILRACE_FLUSH__SEGMENT_SECONDS=5`. Bytes may be written as `64MiB`. The service refuses "
        "to start with a key that is not listed.\n"
        "`${NAME:-default}` in the file is replaced from the environment, as OpenMetadata's server "
        "does it: the default is used only if the variable is not set, and `$${NAME}` is kept.\n"
        "OpenMetadata's section `logStorageConfiguration` (also `logStorage`) is accepted in the "
        "file, on its own or nested in `pipelineServiceClientConfiguration`; the settings under "
        "`runs.` have its names in Tailrace's spelling. The file may be OpenMetadata's own "
        "`openmetadata.yaml`: only this section of it is read, so set everything else by flags and "
        "environment."
    )
    rows = (
        (_code(row.name), _code(row.default), row.help, _code(row.variable))
        for row in table(Settings)
    )
    return _page("Settings", text, "setting | default | what it does | variable", rows)


def _cli() -> str:
    text = (
        "Exit status: 0 done, 1 an error, printed on stderr as `error:` and `hint:` (`verify`, "
        "`doctor`: also faults, on stdout), 2 a wrong command line (`query`: a partial result), "
        "130 interrupted. `serve`: 3 if a stop left lines in the journal. `compact` exits as the "
        "compactor does: 1 done with alarms, 3 nothing could be done, 4 something stored is "
        "damaged."
    )
    lines = [_head("Command line", text)]
    for name, verb in VERBS.items():
        lines += [f"## tailrace {name}", "", verb.help, ""]
        lines += _command(verb.parser(name))
    return "\n".join(lines).rstrip() + "\n"


def _command(parser: argparse.ArgumentParser) -> list[str]:
    """A verb's arguments; then, of each act that it has, those that are its own."""
    lines = [*_table("argument | what it says", _arguments(parser)), ""]
    for acts in parser._actions:
        if isinstance(acts, argparse._SubParsersAction):
            known = {name for name, _ in _arguments(parser)}
            said = {action.dest: action.help for action in acts._choices_actions}
            for act, below in acts.choices.items():
                rows = [row for row in _arguments(below) if row[0] not in known]
                lines += [f"`{act}`: {below.description or said[act]}", ""]
                lines += [*_table("argument | what it says", rows), ""] if rows else []
    return lines


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    # Not `format_help()`: its layout differs between versions of Python.
    for action in parser._actions:
        value = action.metavar or ("" if action.choices is None else "|".join(action.choices))
        if action.help != argparse.SUPPRESS:
            names = ", ".join(action.option_strings)
            yield _code(f"{names} {value}".strip()), (action.help or "") % vars(action)


def _metrics() -> str:
    text = (
        "`GET /metrics`, in the text format of Prometheus. Counters end in `_total` there, "
        "histograms in `_bucket`, `_sum` and `_count`. With several workers every sample has the "
        "label `worker`, and the gauge `tailrace_worker_up` says which workers answered."
    )
    rows = ((_code(m.name), m.kind, _codes(m.labels), m.help) for m in METRICS)
    own = _page("Metrics", text, "metric | kind | labels | what it says", rows)
    theirs = ((_code(m.name), m.kind, _codes(m.labels), m.help) for m in (*COUNTERS, *GAUGES))
    compactor = _table("metric | kind | labels | what it says", theirs)
    others = ((_code(name), why) for name, why in NOT_EXPORTED.items())
    old = {m.alias: m.name for m in METRICS} | {m.alias: m.name for m in (*COUNTERS, *GAUGES)}
    renamed = ((_code(alias), _code(name)) for alias, name in old.items() if alias)
    forwarders = ((_code(m.name), m.kind, _codes(m.labels), m.help) for m in FORWARDERS)
    forwarder = _table("metric | kind | labels | what it says", forwarders)
    lines = [own, "## The compactor", "", _COMPACTOR, "", *compactor, ""]
    lines += ["## The forwarder", "", _FORWARDER, "", *forwarder, ""]
    pipelines = ((_code(m.name), m.kind, _codes(m.labels), m.help) for m in PIPELINES)
    table = _table("metric | kind | labels | what it says", pipelines)
    lines += ["## Log pipelines", "", _PIPELINES, "", *table, ""]
    canary = ((_code(m.name), m.kind, _codes(m.labels), m.help) for m in CANARY)
    table = _table("metric | kind | labels | what it says", canary)
    lines += ["## The canary", "", _CANARY, "", *table, ""]
    lines += ["## Renamed", "", _RENAMED, "", *_table("old name | name", renamed), ""]
    lines += ["## Not exported", "", _NOT_EXPORTED, "", *_table("name | why", others)]
    return "\n".join(lines) + "\n"


def _errors() -> str:
    text = (
        "Every error is `application/problem+json` (RFC 9457): `type`, `title`, `status`, "
        "`detail`, `hint`, `request_id`, and for OpenMetadata's client `code` and `message`. "
        "429, 503 and 507 carry `Retry-After`. Programs act on `type`."
    )
    return _page("Errors", text, "type | status | when | what to do", _error_rows())


def _error_rows() -> Iterator[tuple[str, ...]]:
    for cls in error_classes():
        status, kind = classify(cls(""))
        when = (cls.__doc__ or "").partition("\n")[0]
        yield _code(kind), str(status), when, cls.hint


def _openmetadata() -> str:
    text = (
        "Tailrace takes the place of OpenMetadata's streamable logs: its clients and its page "
        "speak to it unmodified, through "
        "[a proxy](../../docs/operate/openmetadata-proxy.md) that sends it the logs. [Decision 018]"
        "(../../docs/develop/decisions/018-store-run-reports-as-separate-objects.md) says why "
        "reports, the last run and unknown pipelines are as they are. All routes are in "
        "`openapi.yaml`.\n"
        "Each behaviour that OpenMetadata tests, or asks for and does not test, has a test here, "
        "below `tests/openmetadata/`. Where ours differs on purpose the test asserts ours, and the "
        "third column says it. Upstream's integration tests pass if nothing is stored; ours fail."
    )
    lines = [_head("OpenMetadata", text)]
    for group, source in SOURCES.items():
        lines += [f"## {group}: {source} ({COUNTS[group]})", ""]
        lines += [*_table("upstream | asks | ours, where it differs | test", rows(group)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _forwarder() -> str:
    text = (
        "The keys of `tailrace forward --config`; [the guide](../use/forwarder.md) has examples. "
        "The keys of a single source stand at the top of the file. Several sources stand below "
        "`receivers`, each as `file_log/NAME` (also `filelog/NAME`). A key that is not listed is "
        "refused.\n"
        "Durations have a unit (`200ms`, `1m30s`, `7d`), sizes may have one (`16KiB`, `1MiB`)."
        " Regular "
        "expressions are RE2's, as in OpenTelemetry. `${NAME}`, `${NAME:-default}` and "
        "`${env:NAME}` are replaced from the environment.\n"
        "The last column compares with OpenTelemetry's `file_log` receiver of v0.156."
    )
    lines = [_head("Forwarder reference", text)]
    for title, prefix, model in forwarder_reference.SECTIONS:
        table = _table(forwarder_reference.HEADER, forwarder_reference.rows(prefix, model))
        lines += [f"## {title}", "", *table, ""]
    return "\n".join(lines).rstrip() + "\n"


def _state_objects() -> str:
    text = (
        "A state object is a small JSON object that records the progress of some work, its owner,"
        " or "
        "what is valid. Each one ends with a checksum ([formats](formats.md#state-objects)). No "
        "program uses an object that does not match its checksum; the table says what programs do"
        " instead.\n"
        "Every error names the object. `/health/ready` of a node names each damaged object that "
        "the node has read, until it reads an intact one. `tailrace verify` names all of them, and "
        "`tailrace verify --repair` turns back a single bit that has changed. The last column is "
        "for objects with more than one changed bit, and for objects that are cut or empty."
    )
    rows = (
        (kind.name, _code(kind.key) + _place(kind), kind.damaged, kind.remedy)
        for kind in STATE_KINDS
    )
    return _page("State objects", text, "kind | key | what programs do | how it comes back", rows)


def _place(kind: StateKind) -> str:
    return "" if kind.place == "store" else f" ({kind.place})"


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
