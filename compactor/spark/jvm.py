"""Spark's JVM: starts it, relays its log, checks that it lives, and ends it.

Spark logs by log4j, which gets a layout of JSON with our names. Earlier output, or output of Java
itself (its launcher, the fetching of jars, a JVM that crashes), is text, on standard output or
error. If this process starts the JVM, both are a pipe to this process, and each line that is no
JSON becomes the message of a record of ours. For people, a start that succeeds is silent: output
before the layout was set is logged only if the JVM ends before.

`spark-submit` has started its JVM before us. For lines of JSON, only the layout is set in it, and
the output until then is text unless the JVM gets `deploy/spark/json-log.properties`.

py4j's own log is silent: the error that a failed call raises has the same content once. A signal
that ends this process may end Spark's JVM as well; calls that then break off are expected.

A JVM may be killed for its memory, and a cluster may end an application. A process that continues
then starts another one, and pyspark has to forget the old one.

A JVM that is stopped (SIGSTOP, a debugger) answers no call, and py4j waits without a limit. So each
call is watched (`killed_if_frozen`). A JVM that lives uses processor time, also while it waits for
the store, and however slow the machine is; without any for long, it is killed and its call fails.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from compactor.spark.engine import submitted

if TYPE_CHECKING:
    from pyspark import SparkConf

log = logging.getLogger("spark")

_PY4J: Final = f"{os.sep}py4j{os.sep}"
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
    "org.apache.hadoop.util.NativeCodeLoader": "error",  # there is none in pyspark
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


_READY: Final = b"tailrace: log4j is laid out"
_KEPT_LINES: Final = 1000
_LAST_WORDS_SECONDS: Final = 5.0
_END_SECONDS: Final = 60.0
_LOOKS: Final = 20
_SUBMIT: Final = b"org.apache.spark.deploy.SparkSubmit"
_SCRIPT: Final = b"/spark-submit"


def reason(error: Exception) -> str:
    """Java's message of a py4j error; for other errors the first line, or the error's name.

    The first line is py4j's own, and the second is Java's exception.
    """
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - without its JVM an error fails to format itself
        lines = []
    java = len(lines) > 1 and lines[1].startswith(": ")
    return (lines[1].removeprefix(": ") if java else "".join(lines[:1])) or type(error).__name__


def quiet_py4j() -> None:
    """Silences py4j's logger, also towards the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)  # once, however often it is called


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return _PY4J not in record.pathname


def launch(conf: SparkConf, *, all_of_it: bool) -> None:
    """Starts the JVM of this configuration, unless there is one, and logs its output.

    Without `all_of_it` the output of a successful start is left out, and the output of a JVM that
    another process started is not relayed. Raises `PySparkRuntimeError`, `Py4JError`.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        if all_of_it:
            _lay_out(SparkContext._jvm)
        return
    reading, writing = os.pipe()
    relay = _Relay(os.fdopen(reading, "rb"), all_of_it=all_of_it)
    relay.start()
    _relays.append(relay)
    try:
        gateway: Any = launch_gateway(conf, {"stdout": writing, "stderr": writing})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(writing)
        relay.join(_LAST_WORDS_SECONDS)  # its output is logged before the error is raised
        raise
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)
    _lay_out(SparkContext._jvm)
    gateway.jvm.java.lang.System.err.println(_READY.decode())


def hush() -> None:
    """Drops the output of the JVM from now on: it is being ended in the middle of its work."""
    for relay in _relays:
        relay.hushed = True


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


_relays: Final[list[_Relay]] = []


class _Relay(threading.Thread):
    """Logs each line; JSON is passed on unchanged. Ends with the JVM."""

    def __init__(self, lines: BinaryIO, *, all_of_it: bool) -> None:
        super().__init__(name="words of the JVM", daemon=True)
        self._lines = lines
        self._held: deque[bytes] | None = None if all_of_it else deque(maxlen=_KEPT_LINES)
        self._fields = all_of_it
        self.hushed = False

    def run(self) -> None:
        with self._lines:
            for line in self._lines:
                if line.rstrip() == _READY:
                    self._held = None
                elif self._held is not None:
                    self._held.append(line)
                else:
                    self._log_line(line)
        for line in self._held or ():
            self._log_line(line)

    def _log_line(self, line: bytes) -> None:
        if self.hushed:
            return
        said = _parsed(line)
        if said is None:
            log.warning("%s", line.decode(errors="replace").rstrip())
        elif self._fields:
            log.warning("%s", said["message"], extra={"fields": said})
        else:
            level = logging.getLevelNamesMapping().get(said.get("level", ""), logging.WARNING)
            words = [f"{said.get('logger')}: {said['message']}", said.get("traceback", "")]
            log.log(level, "%s", "\n".join(words).rstrip())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) and "message" in said else None


def lives(spark: SparkSession) -> bool:
    """Whether its JVM answers, and Spark itself has not ended it."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, ConnectionError):
        return False


def end(spark: SparkSession) -> None:
    """Ends the session and, if this process started it, its JVM."""
    with suppress(Py4JError, ConnectionError):
        if lives(spark):
            spark.stop()
    spark.sparkContext._jsc = None  # otherwise a dead one is asked
    spark.sparkContext.stop()
    end_jvm()


def end_jvm() -> None:
    """Ends the JVM that this process started, if any; Spark's stop leaves it running.

    An idle compactor releases its memory that way.
    """
    gateway = SparkContext._gateway
    if gateway is None or submitted():
        return
    end_gateway(gateway)
    SparkContext._gateway = SparkContext._jvm = None


def end_gateway(gateway: Any) -> None:
    """Asks the JVM of a gateway to end; kills it if it takes long."""
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("Spark's JVM has not ended in %g s; it is killed", _END_SECONDS)
        gateway.proc.kill()
        gateway.proc.wait()


def end_dead_jvm() -> None:
    """Forgets the JVM if it does not answer, so that the next start makes another one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, ConnectionError):
        end_jvm()


@contextmanager
def killed_if_frozen(seconds: float) -> Iterator[None]:
    """Kills Spark's JVM if it uses no processor time for `seconds` while the block runs.

    Calls that wait for it then fail. It needs `/proc`; without one, nothing is watched.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(over, seconds), name="JVM watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()


def _watch(over: threading.Event, seconds: float) -> None:
    before: dict[int, int] = {}
    # Looks are counted, not seconds: this process may have been stopped together with the JVM.
    unchanged = 0
    while not over.wait(seconds / _LOOKS):
        ticks = _processor_ticks()
        unchanged = unchanged + 1 if ticks and ticks == before else 0
        before = ticks
        if unchanged >= _LOOKS:
            log.error("Spark's JVM has used no processor time for %g s; it is killed", seconds)
            for pid in ticks:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            unchanged = 0


def _processor_ticks() -> dict[int, int]:
    """The ticks that each process of the JVM has used: the JVM, and its launchers at a start."""
    found: dict[int, tuple[int, int]] = {}
    with suppress(OSError):
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(OSError):
                found |= _submit_of(pid)
    if submitted():
        return {pid: ticks for pid, (_, ticks) in found.items() if pid == os.getppid()}
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    return {pid: ticks for pid, (_, ticks) in found.items() if pid in ours}


def _submit_of(pid: int) -> dict[int, tuple[int, int]]:
    """The parent and the ticks of this process, by its number, if it runs `spark-submit`."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read()
    if _SUBMIT not in words and _SCRIPT not in words:
        return {}
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return {pid: (int(fields[1]), int(fields[11]) + int(fields[12]))}
