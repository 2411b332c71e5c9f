"""Pipelines' files: what they may say, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from tailrace.cli.main import main
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import PipelineDefaults, SegmentRetention
from tailrace.logstore.objects.config import PipelineSettings as ProcessSettings
from tailrace.pipelines.appenders.contract import AppenderKind
from tailrace.pipelines.appenders.notify import NoticeRule
from tailrace.pipelines.appenders.registry import OURS, AppenderRegistry
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.definition import (
    AppenderPart,
    PipelineDefinition,
    beside,
    parse,
    read,
    read_folder,
)
from tailrace.pipelines.section import Seconds, Section
from tailrace.pipelines.selection import Selection
from tailrace.pipelines.world import load_settings
from tests.pipelines.events import events

OF_THE_PROCESS = {"auto_buffer_ratio", "prefetch_bytes", "segments_max_bytes"}
"""Keys of a pipeline's file whose default is a setting of its own, outside `pipelines.defaults`."""
FILES = {"type": "rolling_file", "name": "files", "dir": "/out"}


def pipeline(**more: Any) -> dict[str, Any]:
    return {"name": "p", "appenders": [FILES], **more}


def test_a_pipeline_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: p\nappenders: [{type: stdout, name: ${NAME:-out}}]\n")
    (found,) = read_folder(str(tmp_path), AppenderRegistry()).pipelines
    assert (found.settings.event_delay_ms, found.settings.checkpoint_interval_ms) == (2000, 10_000)
    assert [one.name for one in found.appenders] == ["out"]


def test_a_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not the name of a folder. A comment may have any, and `$${` is none."""
    path = tmp_path / "p.yaml"
    path.write_text(
        "# as ${THIS}\nname: p\ndescription: $${X} ${Y:-} ${SET}\n"
        "appenders: [{type: rolling_file, name: a, dir: '${LOG_DIR}/${OTHER}'}]\n"
    )
    monkeypatch.setenv("SET", "set")
    assert main(["pipelines", "check", str(path)]) == 1
    said = capsys.readouterr().err
    assert "p.yaml: appenders.0.dir needs ${LOG_DIR}; appenders.0.dir needs ${OTHER}: the" in said
    monkeypatch.setenv("LOG_DIR", "/logs")
    monkeypatch.setenv("OTHER", "app")
    found = read(str(path), AppenderRegistry())
    assert found.settings.description == "${X}  set"
    assert found.appenders[0].settings.model_dump()["dir"] == "/logs/app"


@pytest.mark.parametrize("given", [{}, {"OUTER": "o"}, {"OUTER": "o", "INNER": "i"}])
def test_a_variable_in_a_default_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Its value would end with a brace, or be `${INNER}` itself."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "p.yaml"
    path.write_text(
        "# as ${OUTER:-${INNER}}\nname: p\n"
        "appenders:\n- {type: rolling_file, name: a, dir: '/logs/${OUTER:-${INNER}}'}\n"
    )
    with pytest.raises(InvalidInput, match=r"appenders.0.dir has .* in the default of \$\{OUTER\}"):
        read(str(path), AppenderRegistry())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "keys and values"),
        (pipeline(error_threshold=3), "needs a dead_letter_dir"),
        (pipeline(auto_buffer_ratio=0.2, buffer_size_bytes=1), "not both"),
        (pipeline(auto_buffer_ratio=1), "auto_buffer_ratio: .*less than 1"),
        (pipeline(prefetch_bytes=-1), "prefetch_bytes: .*"),
        (pipeline(segments_max_bytes=0), "segments_max_bytes: .*greater"),
        ({"appenders": [FILES]}, "name is missing"),
        (pipeline(appenders=[]), "at least one appender"),
        (pipeline(evnt_delay_ms=1), "unknown key evnt_delay_ms"),
        (pipeline(event_delay_ms=-1), "event_delay_ms: .*greater"),
        (pipeline(name="a/b"), "name: must have at most 64 letters"),
        (pipeline(filter={"level": "LOUD"}), r"filter.level: must be one of TRACE"),
        (pipeline(filter={"matches": "("}), "filter.matches: is not a regular expression"),
        (
            pipeline(appenders=[{"type": "kafka", "name": "k"}]),
            "this process has no appender of the type 'kafka'",
        ),
        (pipeline(appenders=[FILES, FILES]), "two appenders are called 'files'"),
        (
            pipeline(appenders=[{**FILES, "path": "../x"}]),
            r"appenders.0.path: .*without \. and \.\.",
        ),
        (pipeline(appenders=[{**FILES, "path": "{x}"}]), r"appenders.0.path: has the field {x}"),
        (pipeline(appenders=[{**FILES, "sizes": 1}]), "unknown key appenders.0.sizes"),
        (pipeline(appenders=[{**FILES, "keep_for": "7 weeks"}]), "a time with its unit"),
        (pipeline(appenders=[{**FILES, "layout": {"type": "xml"}}]), "appenders.0.layout: "),
    ],
)
def test_what_is_wrong_is_named(content: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse(content, AppenderRegistry())


def test_all_that_is_wrong_is_named() -> None:
    appenders = [
        {**FILES, "sizes": 1, "compress": "xz", "keep_for": "7 weeks"},
        {"type": "kafka", "name": "k"},
        {
            "type": "mask",
            "name": "m",
            "rules": [{"pattern": "a"}],
            "to": {"type": "stdout", "x": 1},
        },
    ]
    with pytest.raises(InvalidInput) as caught:
        parse(pipeline(event_delay_ms=-1, evnt=1, appenders=appenders), AppenderRegistry())
    said = str(caught.value).split("; ")
    assert [one.split(":")[0] for one in said] == [
        "event_delay_ms",
        "unknown key evnt",
        "appenders.0.compress",
        "appenders.0.keep_for",
        "unknown key appenders.0.sizes",
        "this process has no appender of the type 'kafka'",
        "unknown key appenders.2.to.x",
    ]


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: [\n")
    with pytest.raises(InvalidInput, match=r"p\.yaml cannot be read"):
        read(str(path), AppenderRegistry())


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"level": "warn"}, ["b", "c"]),
        ({"fqn": "sales.*"}, ["a", "b"]),
        ({"fqn": ["hr", "sales.?"], "exclude_fqn": "*.y"}, ["a", "d"]),
        ({"run": "r2"}, ["c", "d"]),
        ({"contains": "b"}, ["b"]),
        ({"logger": "audit.*"}, ["c"]),
        ({"matches": "^[cd]$", "level": "ERROR"}, ["c"]),
    ],
)
def test_a_filter_takes_what_all_of_it_holds_for(settings: Any, taken: list[str]) -> None:
    import pyarrow as pa

    table = pa.concat_tables(
        [
            events(["a"], fqn="sales.x", run="r1", level="INFO"),
            events(["b"], fqn="sales.y", run="r1", level="WARN"),
            events(["c"], fqn="ops", run="r2", level="ERROR", attributes={"logger": "audit.login"}),
            events(["d"], fqn="hr", run="r2", level=None),
        ]
    )
    assert Selection(**settings).of(table).column("message").to_pylist() == taken


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "use" / "pipelines.md").read_text()
    kinds: list[type[Section]] = [kind.settings for kind in OURS.values()]
    known: list[type[BaseModel]] = [PipelineDefinition, AppenderPart, Selection, NoticeRule]
    for section in [*known, *kinds]:
        for name in section.model_fields:
            assert f"`{name}`" in page, f"{name} of {section.__name__}"


def test_what_a_file_does_not_say_is_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = parse(
        pipeline(retry_ms=5),
        AppenderRegistry(),
        defaults=PipelineDefaults(event_delay_ms=7, retry_ms=9),
    )
    assert (made.settings.event_delay_ms, made.settings.retry_ms) == (7, 5)
    path, config = tmp_path / "p.yaml", tmp_path / "tailrace.yaml"
    path.write_text(yaml.safe_dump(pipeline()))
    config.write_text("pipelines: {defaults: {error_threshold: 3}}")
    check = ["pipelines", "check", str(path)]
    assert main(check) == 0
    assert main([*check, "--config", str(config)]) == 1
    assert "error_threshold needs a dead_letter_dir" in capsys.readouterr().err
    monkeypatch.setenv("TAILRACE_PIPELINES__DEFAULTS__DEAD_LETTER_DIR", str(tmp_path))
    assert main([*check, "--config", str(config)]) == 0


OTHERS: dict[str, tuple[Any, Any]] = {
    "start": ("now", "oldest"),
    "dead_letter_dir": ("/dead", "/else"),
    "auto_buffer_ratio": (None, 0.25),
}


@pytest.mark.parametrize("name", [*PipelineDefaults.model_fields, *sorted(OF_THE_PROCESS)])
def test_each_default_can_be_overridden_by_a_pipelines_file(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting counts as long as the file does not say otherwise, and the file then."""
    given, other = OTHERS.get(name, (123, 456))
    monkeypatch.setenv("TAILRACE_PIPELINES__DEFAULTS__DEAD_LETTER_DIR", "/dead")
    if name in PipelineDefaults.model_fields:
        monkeypatch.setenv(f"TAILRACE_PIPELINES__DEFAULTS__{name.upper()}", str(given))
    defaults = load_settings({}, None).pipelines.defaults
    plain = parse(pipeline(), AppenderRegistry(), "", defaults).settings
    assert getattr(plain, name) == (given if name in PipelineDefaults.model_fields else None)
    made = parse(pipeline(**{name: other}), AppenderRegistry(), "", defaults).settings
    assert getattr(made, name) == other


def test_a_ratio_of_a_file_counts_before_a_size_of_the_defaults() -> None:
    defaults = PipelineDefaults(buffer_size_bytes=9)
    made = parse(pipeline(auto_buffer_ratio=0.2), AppenderRegistry(), "", defaults).settings
    assert (made.auto_buffer_ratio, made.buffer_size_bytes) == (0.2, 0)
    assert parse(pipeline(), AppenderRegistry(), "", defaults).settings.buffer_size_bytes == 9


def test_what_no_pipelines_file_can_say_is_a_processs_and_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "use" / "pipelines.md").read_text()
    table = page.partition("Other settings are those of a process")[2].partition("\n\nAn ")[0]
    ours = {*ProcessSettings.model_fields} - {"defaults"}
    ours |= {f"segments_{name}" for name in SegmentRetention.model_fields}
    left = ours - PipelineDefinition.model_fields.keys()
    assert ours - left == OF_THE_PROCESS, "each has a key in a file"
    for name in left:
        assert f"`pipelines.{name}`" in table or f"`{name}`" in table, name


def test_each_default_may_be_written_down() -> None:
    """Such as the 0 of a size that the documentation says means something."""
    kinds: list[type[BaseModel]] = [kind.settings for kind in OURS.values()]
    kinds += [PipelineDefinition, AppenderPart, Selection, NoticeRule, ProcessSettings]
    for section in kinds:
        for name, field in section.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if not field.is_required() and default is not None:
                kind: Any = Annotated.__class_getitem__((field.annotation, "", *field.metadata))  # type: ignore[attr-defined]
                assert TypeAdapter(kind).validate_python(default) == default, name
    made = parse(pipeline(buffer_size_bytes="2TiB"), AppenderRegistry())
    assert made.settings.buffer_size_bytes == 2 << 40


def test_the_examples_are_pipelines() -> None:
    folder = Path(__file__).parents[3] / "deploy" / "pipelines"
    found = {one.name: one for one in read_folder(str(folder), AppenderRegistry()).pipelines}
    assert sorted(found) == ["audit", "by-application", "objects"]
    audit, metrics, debug = found["by-application"].appenders
    table = events(["in", "out"], attributes={"logger": "audit.login"})
    assert audit.part.filter.of(table).num_rows == 2
    assert metrics.part.filter.of(table).num_rows == 0
    assert debug.part.filter.of(table).num_rows == 2


def test_two_appenders_that_write_the_same_files_are_refused(tmp_path: Path) -> None:
    """In a pipeline and in two, also behind wrappers."""
    one = {"type": "rolling_file", "name": "a", "dir": "/out/x", "path": "{fqn}.log"}
    other = {"type": "rolling_file", "dir": "/out/", "path": "x/{fqn}.log"}
    wrapped = {"type": "async", "name": "b", "to": other}
    with pytest.raises(InvalidInput, match=r"p/a and p/b both write /out/x/\{fqn\}\.log"):
        parse(pipeline(appenders=[one, wrapped]), AppenderRegistry())
    for name, appender in (("p", one), ("q", wrapped)):
        content = {"name": name, "appenders": [appender]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    folder = beside(read_folder(str(tmp_path), AppenderRegistry()))
    assert [one.name for one in folder.pipelines] == ["p"]
    assert "p/a and q/b both write" in str(folder.wrong[str(tmp_path / "q.yaml")])
    stores = [{"type": "rolling_object", "name": name} for name in "ab"]
    parse(pipeline(appenders=stores), AppenderRegistry())
    for one in stores:
        one["store"] = "s3://bucket/logs/"
    with pytest.raises(InvalidInput, match="p/a and p/b both write s3://bucket/logs/logs/"):
        parse(pipeline(appenders=stores), AppenderRegistry())


class TokenSettings(Section):
    token: Seconds = 0


class WithToken(RollingFile):
    settings = TokenSettings


class OfToken(AppenderRegistry):
    def kind(self, name: str) -> AppenderKind:
        return WithToken


def test_a_secret_that_is_wrong_is_not_shown() -> None:
    content = pipeline(appenders=[{"type": "x", "name": "x", "token": "s3cret"}])
    with pytest.raises(InvalidInput, match=r"appenders\.0\.token") as refused:
        parse(content, OfToken())
    assert "s3cret" not in f"{refused.value} {refused.value.hint}"
