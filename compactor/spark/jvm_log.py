"""The words of Spark's JVM on standard error, told as our own log is: lines of JSON.

Spark logs by log4j, which is given a layout with our names. What comes before that, or from
Java itself (its launcher, the fetching of jars, a JVM that breaks), is text: so standard error
of a JVM that this process starts is a pipe to it, and each line that is no JSON is the message
of a line that is. `spark-submit` has started its JVM before us: there the layout alone is set,
and what it says until then is text unless it is given `deploy/spark/json-log.properties`.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

if TYPE_CHECKING:
    from pyspark import SparkConf

log = logging.getLogger("spark")

_TEMPLATE: Final = {
    "time": {
        "$resolver": "timestamp",
        "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"},
    },
    "level": {
        "$resolver": "pattern",
        "pattern": "%level{WARN=WARNING, FATAL=CRITICAL}",
        "stackTraceEnabled": False,
    },
    "logger": {"$resolver": "logger", "field": "name"},
    "message": {"$resolver": "message", "stringified": True},
    "traceback": {
        "$resolver": "exception",
        "field": "stackTrace",
        "stackTrace": {"stringified": True},
    },
}
_LOGGERS: Final = {  # as in Spark's own configuration: warnings that mean nothing here
    "org.apache.parquet.CorruptStatistics": "error",
    "org.sparkproject.jetty.util.component.AbstractLifeCycle": "error",
}
CONFIGURATION: Final = {
    "rootLogger.level": "warn",
    "rootLogger.appenderRef.stderr.ref": "stderr",
    "appender.stderr.type": "Console",
    "appender.stderr.name": "stderr",
    "appender.stderr.target": "SYSTEM_ERR",
    "appender.stderr.layout.type": "JsonTemplateLayout",
    "appender.stderr.layout.eventTemplate": orjson.dumps(_TEMPLATE).decode(),
} | {
    f"logger.{number}.{key}": value
    for number, (name, level) in enumerate(_LOGGERS.items())
    for key, value in (("name", name), ("level", level))
}
"""log4j's, as in `deploy/spark/json-log.properties`."""


def hear(conf: SparkConf) -> None:
    """Starts the JVM of this configuration, unless there is one, and has it talk JSON.

    Raises `PySparkRuntimeError`, `Py4JError`.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        reading, writing = os.pipe()
        threading.Thread(target=_relay, args=[os.fdopen(reading, "rb")], daemon=True).start()
        try:
            gateway: Any = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            os.close(writing)
        SparkContext._ensure_initialized(gateway=gateway)
    _lay_out(SparkContext._jvm)


def _lay_out(jvm: Any) -> None:
    java, core = jvm.java, jvm.org.apache.logging.log4j.core
    wanted = java.util.Properties()
    for name, value in CONFIGURATION.items():
        wanted.setProperty(name, value)
    builder = core.config.properties.PropertiesConfigurationBuilder()
    builder.setConfigurationSource(core.config.ConfigurationSource.NULL_SOURCE)
    builder.setLoggerContext(core.LoggerContext.getContext(False))
    built = builder.setRootProperties(wanted).build()
    core.config.Configurator.reconfigure(built)


def _relay(lines: BinaryIO) -> None:
    """Logs each line; what is JSON as it stands. Ends with the JVM."""
    with lines:
        for line in lines:
            said = _parsed(line)
            if said is None:
                log.warning("%s", line.decode(errors="replace").rstrip())
            else:
                log.warning("%s", said.get("message"), extra={"fields": said})


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) and "message" in said else None
