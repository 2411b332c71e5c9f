"""logback's configurations: what becomes of each part, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tailrace.cli.main import main
from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tailrace.pipelines.logback import convert, converted
from tailrace.pipelines.section import parsed
from tests.pipelines.events import events


def of(text: str) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """The pipeline of what is in a configuration, checked, and the remarks."""
    found = convert(f"<configuration>\n{text}\n</configuration>".encode(), "logback")
    content = dict(found.content)
    parse(content, AppenderRegistry())
    return content, [(one.line, one.what) for one in found.remarks]


def appender(kind: str, inside: str, root: str = "ALL") -> tuple[dict[str, Any], list[Any]]:
    """The one appender of that class."""
    content, remarks = of(
        f'<appender name="A" class="x.{kind}">{inside}</appender>\n'
        f'<root level="{root}"><appender-ref ref="A"/></root>'
    )
    (found,) = content["appenders"]
    return found, remarks


CDAP_MULTI = """
<appender name="default" class="ch.qos.logback.core.FileAppender">
  <file>/logs/default.log</file><encoder><pattern>%m%n</pattern></encoder>
</appender>
<appender name="info" class="ch.qos.logback.core.FileAppender">
  <file>/logs/info.log</file><encoder><pattern>%m%n</pattern></encoder>
</appender>
<appender name="error" class="ch.qos.logback.core.FileAppender">
  <file>/logs/error.log</file><encoder><pattern>%m%n</pattern></encoder>
</appender>
<logger name="test.info" level="INFO" additivity="false"><appender-ref ref="info"/></logger>
<logger name="test.error" level="ERROR"><appender-ref ref="error"/></logger>
<root level="ALL"><appender-ref ref="default"/></root>
"""


def test_loggers_levels_and_additivity_are_those_of_logback() -> None:
    content, remarks = of(CDAP_MULTI)
    assert remarks == []
    filters = {one["name"]: one.get("filter") for one in content["appenders"]}
    assert filters == {
        "default": {"loggers": {"root": "ALL", "test.error": "ERROR", "test.info": "OFF"}},
        "info": {"loggers": {"root": "OFF", "test.info": "INFO"}},
        "error": {"loggers": {"root": "OFF", "test.error": "ERROR"}},
    }
    levels = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR")
    table = pa.concat_tables(
        [
            events([f"{name}/{level}"], level=level, attributes={"logger": name} if name else None)
            for name in ("", "x", "test.info.deep", "test.error", "test.errors")
            for level in levels
        ]
    )
    got = {
        one.name: one.part.filter.of(table).column("message").to_pylist()
        for one in parse(content, AppenderRegistry()).appenders
    }
    all_of = [f"{name}/{level}" for name in ("", "x") for level in levels]
    rest = [f"test.errors/{level}" for level in levels]
    assert got["default"] == [*all_of, "test.error/ERROR", *rest]
    assert got["info"] == [f"test.info.deep/{level}" for level in ("INFO", "WARN", "ERROR")]
    assert got["error"] == ["test.error/ERROR"]


def test_cdaps_rolling_appender_writes_below_namespace_and_application() -> None:
    found, remarks = appender(
        "RollingLocationLogAppender",
        """<basePath>plugins/applogs</basePath>
<filePath>security/logFile-instanceId.log</filePath>
<dirPermissions>744</dirPermissions><filePermissions>644</filePermissions>
<fileMaxInactiveTimeMs>200</fileMaxInactiveTimeMs>
<rollingPolicy class="io.cdap.cdap.logging.plugins.FixedWindowRollingPolicy">
  <fileNamePattern>logFile-instanceId.log.%i</fileNamePattern>
  <minIndex>1</minIndex><maxIndex>9</maxIndex>
</rollingPolicy>
<triggeringPolicy class="x.SizeBasedTriggeringPolicy"><maxFileSize>5KB</maxFileSize>
</triggeringPolicy>
<encoder>
  <pattern>%-4relative [%thread] %-5level %logger{35} - %msg%n</pattern>
  <immediateFlush>false</immediateFlush>
</encoder>""",
    )
    assert found == {
        "type": "rolling_file",
        "name": "A",
        "dir": "plugins/applogs",
        "path": "{service}/{fqn}/security/logFile-{part}.log",
        "dir_permissions": "744",
        "file_permissions": "644",
        "idle_close": "200ms",
        "names": "fixed_window",
        "keep_files": 9,
        "max_file_size": "5KiB",
        "layout": {"type": "pattern", "pattern": " [%thread] %-5level %logger{35} - %msg%n"},
    }
    assert remarks == [
        (7, "rolled files have names such as logFile-instanceId.1.log"),
        (13, "the word %relative: no record has it"),
        (14, "<immediateFlush> of an encoder has no counterpart"),
    ]


def test_cdaps_properties_are_settings_of_the_pipeline() -> None:
    content, remarks = of(
        """<contextName>cdap log</contextName>
<property name="log.process.pipeline.event.delay.ms" value="4000"/>
<property name="log.process.pipeline.checkpoint.interval.ms" value="5000"/>
<property name="log.process.pipeline.buffer.size" value="0"/>
<property name="log.process.pipeline.logger.cache.size" value="1000"/>
<property name="log.process.pipeline.auto.buffer.ratio" value="0.25"/>
<property name="log.process.pipeline.kafka.fetch.size" value="1048576"/>
<appender name="CDAP" class="io.cdap.cdap.logging.appender.system.CDAPLogAppender"/>
<appender name="METRICS" class="io.cdap.cdap.logging.appender.system.MetricsLogAppender"/>
<root level="ALL"><appender-ref ref="CDAP"/><appender-ref ref="METRICS"/></root>"""
    )
    (metrics,) = content.pop("appenders")
    assert content == {
        "name": "cdap-log",
        "event_delay_ms": 4000,
        "checkpoint_interval_ms": 5000,
        "buffer_size_bytes": 0,
        "auto_buffer_ratio": 0.25,
    }
    assert (metrics["type"], metrics["labels"]) == ("metrics", ["level", "fqn"])
    said = dict(remarks)
    assert said[6] == "the property log.process.pipeline.logger.cache.size has no counterpart"
    assert said[8] == "the property log.process.pipeline.kafka.fetch.size has no counterpart"
    assert "have every line already" in said[9]
    assert not said.keys() & {3, 4, 5, 7}


def test_variables_in_defaults_are_resolved_as_far_as_they_are_known() -> None:
    found = convert(
        b"""<configuration><property name="KNOWN" value="/known"/>
<property name="log.process.pipeline.event.delay.ms" value="${a.ms:-${b.ms:-${c.ms:-7}0}0}"/>
<appender name="A" class="ch.qos.logback.core.FileAppender">
<file>${log.dir:-${KNOWN}}/${HERE:-${KNOWN}}${KNOWN:-${X}}/a.log</file></appender>
<appender name="B" class="ch.qos.logback.core.FileAppender">
<file>${OUTER:-${INNER}}/b.log</file></appender>
<root level="ALL"><appender-ref ref="A"/><appender-ref ref="B"/></root></configuration>""",
        "x",
    )
    first, _ = found.content["appenders"]
    assert found.content["event_delay_ms"] == 700
    assert (first["dir"], first["path"]) == ("/known/${HERE:-/known}/known", "a.log")
    said = [what for line, what in found.remarks if line == 6]
    assert any("${OUTER:-${INNER}} has a variable in its default" in what for what in said)


def test_files_by_day_are_rolled_by_time_and_size() -> None:
    found, remarks = appender(
        "RollingFileAppender",
        """<file>${DIR}/app.log</file>
<rollingPolicy class="ch.qos.logback.core.rolling.SizeAndTimeBasedRollingPolicy">
  <fileNamePattern>${DIR}/app-%d{yyyy-MM-dd_HH}.%i.log.gz</fileNamePattern>
  <maxFileSize>10MB</maxFileSize><maxHistory>30</maxHistory><totalSizeCap>2gb</totalSizeCap>
  <cleanHistoryOnStart>true</cleanHistoryOnStart>
</rollingPolicy>""".replace("${DIR}", "/var/log/x"),
        root="info",
    )
    assert found == {
        "type": "rolling_file",
        "name": "A",
        "filter": {"loggers": {"root": "INFO"}},
        "dir": "/var/log/x",
        "path": "app.log",
        "max_file_size": "10MiB",
        "names": "timestamp",
        "keep_for": "108000s",
        "keep_bytes": "2GiB",
        "compress": "gzip",
        "roll_every": "1h",
    }
    assert remarks == [
        (4, "rolled files have names such as app.2026-11-23T18-00-00.000.log"),
        (6, "<cleanHistoryOnStart> has no counterpart"),
    ]


def test_files_that_are_named_by_day_alone_are_so_here() -> None:
    found, remarks = appender(
        "RollingFileAppender",
        """<filter class="ch.qos.logback.classic.filter.LevelFilter"><level>INFO</level>
<onMatch>ACCEPT</onMatch><onMismatch>DENY</onMismatch></filter>
<rollingPolicy class="ch.qos.logback.core.rolling.TimeBasedRollingPolicy">
  <fileNamePattern>/log/info.%d{yyyy-MM-dd}.log</fileNamePattern><MaxHistory>5</MaxHistory>
</rollingPolicy>
<triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
  <MaxFileSize>10MB</MaxFileSize></triggeringPolicy>""",
    )
    assert (found["dir"], found["path"]) == ("/log", "info.{date}.log")
    assert (found["keep_for"], found["max_file_size"]) == ("432000s", "10MiB")
    assert found["filter"] == {"where": "level:INFO"}
    assert "roll_every" not in found
    assert remarks == []


@pytest.mark.parametrize(
    ("date", "history", "keep_for", "roll_every"),
    [
        ("%d{yyyy-MM}", "24", 24 * 31 * 86_400, "1d"),
        ("%d{yyyy-ww}", "52", 52 * 7 * 86_400, "1d"),
        ("%d{yyyy}", "2", 2 * 366 * 86_400, "1d"),
        ("%d{yyyy-DDD}", "30", 30 * 86_400, "1d"),
        ("%d", "30", 30 * 86_400, "1d"),
        ("%d{yyyy-MM-dd, Europe/Madrid}", "30", 30 * 86_400, "1d"),
        ("%d{yyyy-MM-dd'T'HHmm}", "60", 3_600, "1m"),
        ("%d{yyyyMMdd-hh}", "24", 86_400, "1h"),
        ("%d{yyyy/MM, aux}/%d{yyyy-MM-dd_HH}", "5", 5 * 3_600, "1h"),
        ("%d{yyyy-MM-dd}", "${DAYS:-30}", 30 * 86_400, "1d"),
        ("%d{yyyy-MM-dd}", "${DAYS}", None, "1d"),
        ("%d{yyyy-MM-dd}", "0", None, "1d"),
    ],
)
def test_files_are_kept_as_long_as_logback_keeps_them(
    date: str, history: str, keep_for: int | None, roll_every: str
) -> None:
    found, _ = appender(
        "RollingFileAppender",
        f"""<file>/log/a.log</file>
<rollingPolicy class="ch.qos.logback.core.rolling.TimeBasedRollingPolicy">
  <fileNamePattern>/log/a.{date}.log</fileNamePattern><maxHistory>{history}</maxHistory>
</rollingPolicy>""",
    )
    assert found.get("keep_for") == (None if keep_for is None else f"{keep_for}s")
    assert found["roll_every"] == roll_every


def test_defaults_of_variables_keep_their_meaning() -> None:
    made = convert(
        b"""<configuration>
<springProperty name="LOG_DIR" source="logging.file.path" defaultValue="logs"/>
<appender name="A" class="x.RollingFileAppender"><file>${LOG_DIR}/${ELSE:-a}.log</file>
<filter class="x.ThresholdFilter"><level>${LOWEST:-warn}</level></filter>
<rollingPolicy class="x.SizeAndTimeBasedRollingPolicy"><maxFileSize>${SIZE:-10MB}</maxFileSize>
<fileNamePattern>${LOG_DIR}/a.%d.%i.log</fileNamePattern></rollingPolicy></appender>
<root level="${ROOT_LEVEL:-info}"><appender-ref ref="A"/></root></configuration>""",
        "logback",
    )
    text = yaml.safe_dump(dict(made.content))
    parse(parsed(text, {}), AppenderRegistry())
    assert parsed(text, {"LOG_DIR": "/x"})["appenders"][0]["dir"] == "/x"
    remarks = [(one.line, one.what) for one in made.remarks]
    (found,) = made.content["appenders"]
    assert found["filter"] == {"level": "WARN", "loggers": {"root": "INFO"}}
    assert (found["dir"], found["path"]) == ("${LOG_DIR:-logs}", "${ELSE:-a}.log")
    assert found["max_file_size"] == "${SIZE:-10MiB}"
    assert {(2, "LOG_DIR is 'logs' or in the environment, not logging.file.path")} < set(remarks)
    assert (4, "the level is WARN, whatever the environment says") in remarks
    assert (7, "the level is INFO, whatever the environment says") in remarks


def test_wrappers_and_thresholds() -> None:
    content, remarks = of(
        """<appender name="FILE" class="x.FileAppender"><file>a.log</file></appender>
<appender name="ASYNC" class="ch.qos.logback.classic.AsyncAppender">
  <appender-ref ref="FILE"/><queueSize>500</queueSize>
</appender>
<appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
  <filter class="ch.qos.logback.classic.filter.ThresholdFilter"><level>warn</level></filter>
</appender>
<root level="TRACE"><appender-ref ref="ASYNC"/><appender-ref ref="OUT"/></root>"""
    )
    first, second = content["appenders"]
    assert (first["type"], first["to"]["type"], first["to"]["dir"]) == (
        "async",
        "rolling_file",
        ".",
    )
    assert second["filter"] == {"level": "WARN", "loggers": {"root": "TRACE"}}
    assert remarks == [(4, "<queueSize> of an appender has no counterpart")]


def test_what_has_no_counterpart_is_named_by_its_line() -> None:
    content, remarks = of(
        """<include resource="other.xml"/>
<springProfile name="prod">
  <property name="X" value="y"/>
</springProfile>
<conversionRule conversionWord="clr" converterClass="x.ColorConverter"/>
<appender name="OUT" class="x.ConsoleAppender"><target>System.err</target></appender>
<appender name="MAIL" class="ch.qos.logback.classic.net.SMTPAppender"/>
<appender name="UNUSED" class="x.ConsoleAppender"/>
<logger name="a" level="LOUD"/>
<turboFilter class="x.MarkerFilter"/>
<root><appender-ref ref="OUT"/><appender-ref ref="MAIL"/><appender-ref ref="NONE"/></root>"""
    )
    assert [one["name"] for one in content["appenders"]] == ["OUT"]
    assert remarks == [
        (2, "<include> has no counterpart"),
        (3, "<springProfile> has no counterpart, with all up to line 4"),
        (6, "<conversionRule> has no counterpart"),
        (7, "<target> of an appender has no counterpart"),
        (8, "the appender MAIL (SMTPAppender): there is none of this kind"),
        (9, "no logger refers to the appender UNUSED"),
        (10, "the level 'LOUD' is not known"),
        (11, "<turboFilter> has no counterpart"),
        (12, "there is no appender 'NONE'"),
    ]


@pytest.mark.parametrize(
    ("pattern", "text", "left_out"),
    [
        ("%d{HH:mm:ss.SSS} [%level] :%thread: \\(%logger\\) - %msg%n", None, []),
        (
            "%clr(%d{HH:mm}){faint} %clr(%5p) %cyan(%-40.40logger{39}) : %m%n%wEx",
            "%d{HH:mm} %5p %-40.40logger{39} : %m%n",
            ["colour %clr", "colour %cyan", "word %wEx: its text is in the message"],
        ),
        ("%-30(%d [%t]) %m%n", "%d [%t] %m%n", ["width of a group, %-30(…)"]),
        ("%p %C{1}:%L %m%n", "%p : %m%n", ["word %C: no record", "word %L: no record"]),
        ("%d{yyyy-MM-dd QQ} %m", "%msg%n", ["%msg%n instead"]),
        ("50% done", "%msg%n", ["%msg%n instead"]),
    ],
)
def test_patterns_keep_what_the_layout_knows(
    pattern: str, text: str | None, left_out: list[str]
) -> None:
    found, said = converted(pattern)
    assert found == (pattern if text is None else text)
    assert len(said) == len(left_out)
    assert all(one in other for one, other in zip(left_out, said, strict=True))


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><configuration>&b;</configuration>'
OUTSIDE = '<!DOCTYPE x SYSTEM "file:///etc/passwd"><configuration/>'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "line 1: a document type is not read"),
        (OUTSIDE, "line 1: a document type is not read"),
        ("<configuration>&x;</configuration>", "is not XML: undefined entity"),
        ("<configuration>", "is not XML: no element found"),
        ("<Configuration status='warn'><Appenders/></Configuration>", "no appender of the file"),
        ("<log4j/>", "is <log4j>, not <configuration>"),
        ("<configuration>" + "<a>" * 60 + "</a>" * 60 + "</configuration>", "nested too deeply"),
        ("<configuration>" + " " * (1 << 20) + "</configuration>", "at most are read"),
        ("", "is not XML"),
    ],
)
def test_files_that_cannot_be_read_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        convert(text.encode(), "x")


def test_the_command_writes_a_file_that_can_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "logback.xml", tmp_path / "pipelines" / "multi.yaml"
    out.parent.mkdir()
    source.write_text(f"<configuration>{CDAP_MULTI}<shutdownHook/></configuration>")
    command = ["pipelines", "import", str(source)]
    assert main([*command, "--name", "multi", "--out", str(out)]) == 0
    assert f"{source}:14: <shutdownHook> has no counterpart" in capsys.readouterr().err
    assert yaml.safe_load(out.read_text())["name"] == "multi"
    assert main(["pipelines", "check", str(out.parent)]) == 0
    assert "default (rolling_file), info (rolling_file)" in capsys.readouterr().out
    assert main([*command, "--out", str(out)]) == 1
    assert "cannot be written: File exists" in capsys.readouterr().err
    assert main(command) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == "logback"
