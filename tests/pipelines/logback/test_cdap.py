"""CDAP's own configurations of logback, in short: every line is converted, or named.

As `cdap-log-pipeline.xml` and `test-appender.xml` of cdap-watchdog, and cdap-standalone's
`logback.xml`, which are under the Apache License 2.0.
"""

from __future__ import annotations

from tailrace.pipelines.logback import convert

CDAP_DEFAULT = """<?xml version="1.0" encoding="UTF-8"?>
<configuration>
  <appender name="CDAPLogAppender" class="co.cask.cdap.logging.framework.CDAPLogAppender">
    <dirPermissions>${log.pipeline.cdap.dir.permissions}</dirPermissions>
    <filePermissions>${log.pipeline.cdap.file.permissions}</filePermissions>
    <syncIntervalBytes>10485760</syncIntervalBytes>
    <maxFileSizeInBytes>${log.pipeline.cdap.file.max.size.bytes}</maxFileSizeInBytes>
    <fileRetentionDurationDays>7</fileRetentionDurationDays>
  </appender>
  <appender name="MetricsLogAppender" class="co.cask.cdap.logging.framework.MetricsLogAppender"/>
  <logger name="org.apache.spark" level="INFO"/>
  <root level="ALL">
    <appender-ref ref="CDAPLogAppender"/>
    <appender-ref ref="MetricsLogAppender"/>
  </root>
</configuration>
"""


def test_each_line_of_cdaps_own_pipeline_is_converted_or_named() -> None:
    found = convert(CDAP_DEFAULT.encode(), "cdap")
    (metrics,) = found.content["appenders"]
    assert metrics["filter"] == {"loggers": {"root": "ALL", "org.apache.spark": "INFO"}}
    converted_lines = {1, 2, 9, 11, *range(12, 17)}  # of the document, loggers and references
    lines = range(1, CDAP_DEFAULT.count("\n") + 1)
    assert {one.line for one in found.remarks} == set(lines) - converted_lines


CDAP_STANDALONE = """<?xml version="1.0" encoding="UTF-8"?>
<configuration scan="true">
  ${TEMPLATE}
  <logger name="org.apache.spark" level="WARN"/>
  <appender name="Rolling" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>logs/cdap.log</file>
    <encoder>
      <pattern>%d{ISO8601} - %-5p [%t:%C{1}@%L] - %m%n</pattern>
    </encoder>
    <filter class="ch.qos.logback.classic.filter.ThresholdFilter">
      <level>WARN</level>
    </filter>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <maxIndex>10</maxIndex>
      <FileNamePattern>logs/cdap.log.%i</FileNamePattern>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <MaxFileSize>50000KB</MaxFileSize>
    </triggeringPolicy>
  </appender>
  <appender name="AUDIT" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>${CDAP_LOG_DIR}/access.log</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.TimeBasedRollingPolicy">
      <fileNamePattern>${CDAP_LOG_DIR}/access.log.%d{yyyy-MM-dd}</fileNamePattern>
      <maxHistory>30</maxHistory>
    </rollingPolicy>
    <encoder>
      <pattern>%msg%n</pattern>
    </encoder>
  </appender>
  <logger name="http-access" level="TRACE" additivity="false">
    <appender-ref ref="AUDIT" />
  </logger>
  <root level="DEBUG">
    <appender-ref ref="Rolling"/>
  </root>
</configuration>
"""


def test_each_line_of_cdaps_logback_is_converted_or_named() -> None:
    found = convert(CDAP_STANDALONE.encode(), "cdap")
    rolling, audit = found.content["appenders"]
    assert rolling == {
        "type": "rolling_file",
        "name": "Rolling",
        "filter": {
            "level": "WARN",
            "loggers": {"root": "DEBUG", "http-access": "OFF", "org.apache.spark": "WARN"},
        },
        "dir": "logs",
        "path": "cdap.log",
        "max_file_size": "50000KiB",
        "names": "fixed_window",
        "keep_files": 10,
        "layout": {"type": "pattern", "pattern": "%d{ISO8601} - %-5p [%t:@] - %m%n"},
    }
    assert audit["filter"] == {"loggers": {"root": "OFF", "http-access": "TRACE"}}
    assert (audit["dir"], audit["path"]) == ("${CDAP_LOG_DIR}", "access.log")
    assert (audit["keep_for"], audit["roll_every"]) == ("2592000s", "1d")
    undefined = "${CDAP_LOG_DIR} is not defined here: the environment has to"
    assert [(one.line, one.what) for one in found.remarks] == [
        (2, "the attribute scan has no counterpart"),
        (3, "the text in <configuration> has no counterpart"),
        (8, "the word %C: no record has it"),
        (8, "the word %L: no record has it"),
        (15, "rolled files have names such as cdap.1.log"),
        (22, undefined),
        (24, undefined),
        (24, "rolled files have names such as access.2026-11-23T18-00-00.000.log"),
    ]
