"""The Spark session, started at the first need, and its threads.

**Session.** An idle pass costs no JVM: pyspark is imported when Spark starts, and not before. If
executors are other processes, maybe on other machines, a store that is a folder must be the same
folder for all; this is checked before any work. After each job the rows that the tasks report are
compared with the rows in its files (`compactor/commit.py`).

**Threads.** `in_thread` runs Spark's calls in threads that the end of the process does not wait
for. A job or a start takes minutes, and a process that has to stop may have seconds. Every step may
be interrupted anywhere, so such a call is abandoned; its JVM ends when it finds the pipe from this
process closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.spark.engine import (
    DEFAULTS,
    NEEDED,
    MergeInput,
    RewriteInput,
    SparkWishes,
    WrittenCounts,
    is_here,
    submitted,
)
from compactor.spark.s3 import COMMITTER, FILE_SYSTEM, S3A, SUBMIT
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.java import why_no_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs the call in its own thread. Returns its result or raises its error.

    Cancelling does not end it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def give(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # it is the result of `call`

    def run() -> None:
        result, failure = None, None
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=run, name="spark", daemon=True).start()
    return await future


log = logging.getLogger("tailrace.compactor")

_NO_JAVA: Final = "Compaction needs Java 17 or newer, found by JAVA_HOME or PATH."
_NO_JVM: Final = (
    "Spark's own messages are above this one. The usual cause is a heap that is too small, or"
    " larger than the memory: `compaction.driver_memory` is {}."
)
_NO_JARS: Final = (
    " On S3, Spark also needs jars that it fetches at its first start;"
    " `python -m compactor.spark.s3 FOLDER` fetches them once, for `compaction.jars`."
)
_NO_START: Final = "Spark's own messages are above this one."
_HEAP: Final = "INVALID_DRIVER_MEMORY"
_SMALL_HEAP: Final = "Raise `compaction.driver_memory`, which is {}."
_ENDING_SECONDS: Final = 10.0  # what is lost with a JVM that is ending anyway is nothing
_SUBMITTED: Final = "local[*]"  # the value of spark-submit if no master was given
_TRIES: Final = 4  # tasks for each core, so that each executor has one
_SHARE_IT: Final = (
    "Mount the store's folder at the same path on the driver's machine and those of all"
    " executors, or keep the store on S3."
)
_NO_PYSPARK: Final = "Install pyspark 4.1.1 in the environment of this program."


class Session:
    """One Spark session that can be stopped and started again; implements `SparkEngine`."""

    def __init__(
        self, wishes: SparkWishes | str, s3a: S3A | None = None, folder: str | None = None
    ) -> None:
        """`wishes` may be the driver's memory alone. Executors must share `folder`."""
        self._wishes = SparkWishes(wishes) if isinstance(wishes, str) else wishes
        self._s3a = s3a
        self._folder = folder
        self._spark: SparkSession | None = None
        self._secrets: dict[str, str] = {}
        self._starting = False

    @property
    def running(self) -> bool:
        """Whether a JVM runs that can be stopped."""
        return self._spark is not None

    def get(self) -> SparkSession:
        """The session, started if needed, also if the previous one has ended.

        Raises `Unavailable` where Spark cannot run.
        """
        secrets = self._s3a.secrets() if self._s3a else {}
        if secrets != self._secrets or self._is_gone():  # the keys of a role are renewed
            self.stop()
        if self._spark is None:
            with self._being_started():
                self._spark = _start(self._wishes, self._s3a, secrets)
            self._secrets = secrets
            self._try_folder(self._spark)
        return self._spark

    def cores(self) -> int:
        """As `SparkEngine.cores`."""
        with self._watched():
            spark = self.get()
            from compactor.spark.jobs import failing  # imports pyspark, which is loaded by now

            with failing():
                return int(spark.sparkContext.defaultParallelism)

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        """As `SparkEngine.merge`."""
        with self._watched():
            spark = self.get()
            from compactor.spark.jobs import merge

            return merge(spark, work, folder)

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        """As `SparkEngine.rewrite`."""
        with self._watched():
            spark = self.get()
            from compactor.spark.jobs import rewrite

            return rewrite(spark, work, folder)

    def share_batches(self, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
        """As `SparkEngine.share_batches`."""
        with self._watched():
            spark = self.get()
            from compactor.spark.jobs import share_batches

            return share_batches(spark, some, others)

    def tasks(self) -> tuple[int, int] | None:
        """The tasks done, and all tasks, of the active stages; None without any."""
        spark = self._spark
        if spark is None or self._starting:
            return None
        return _tasks_of(spark)

    def stop(self) -> None:
        """Ends the session and, if this process started it, its JVM."""
        if self._spark is None:
            return
        from compactor.spark.jvm import end

        spark, self._spark = self._spark, None
        with self._watched(_ENDING_SECONDS):
            end(spark)

    def abandon(self) -> None:
        """As `stop`, while a thread of this process waits for a job or a start.

        The process is about to end. The call of the waiting thread fails or never returns; this is
        expected, and not logged.
        """
        if self._spark is None or self._starting:
            return  # a JVM that is being started ends when it finds our end of its input closed
        from py4j.protocol import Py4JError

        # It may have got the signal as well, and be gone.
        with suppress(Py4JError, OSError), self._watched(_ENDING_SECONDS):
            self._spark.sparkContext.setLogLevel("OFF")
            self.stop()

    @contextmanager
    def _watched(self, seconds: float | None = None) -> Iterator[None]:
        """A JVM that is frozen is killed, so that the calls of the block end."""
        try:
            from compactor.spark.jvm import killed_if_frozen
        except ImportError:  # without pyspark there is no JVM; a start says so
            yield
            return
        with killed_if_frozen(seconds or self._wishes.frozen_seconds):
            yield

    def _is_gone(self) -> bool:
        if self._spark is None:
            return False
        from compactor.spark.jvm import lives

        if lives(self._spark):
            return False
        log.warning("Spark ended; starting it again")
        return True

    @contextmanager
    def _being_started(self) -> Iterator[None]:
        self._starting = True
        try:
            yield
        finally:
            self._starting = False

    def _try_folder(self, spark: SparkSession) -> None:
        if self._folder is None or is_here(spark.sparkContext.master):
            return
        try:
            try_folder(spark, self._folder)
        except Unavailable:
            self.stop()
            raise


def _start(wishes: SparkWishes, s3a: S3A | None, secrets: Mapping[str, str]) -> SparkSession:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        from compactor.spark.jvm import end_dead_jvm, launch, quiet_py4j, reason
    except ImportError as error:
        raise Unavailable(f"Spark does not start: {error}", hint=_NO_PYSPARK) from error
    quiet_py4j()
    try:
        conf = _conf(wishes, s3a)
        launch(conf, all_of_it=wishes.json_log)
        if s3a is not None:
            _close_files()
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        if s3a is not None:
            _log_s3(spark, secrets)
    except PySparkRuntimeError as error:
        raise _not_started(error, wishes.driver_memory, on_s3=s3a is not None) from error
    except (Py4JError, ConnectionError) as error:  # a JVM that fails: its master does not answer
        end_dead_jvm()
        said = reason(error)
        hint = _SMALL_HEAP.format(wishes.driver_memory) if _HEAP in said else _NO_START
        raise Unavailable(f"Spark does not start: {said}", hint=hint) from error
    return spark


def _not_started(error: Exception, memory: str, *, on_s3: bool) -> Unavailable:
    """The error if no JVM runs: Java is missing, or the JVM ended at once."""
    no_java = why_no_java()
    if no_java is not None:
        return Unavailable(f"Spark does not start: {no_java}", hint=_NO_JAVA)
    hint = _NO_JVM.format(memory) + (_NO_JARS if on_s3 else "")
    return Unavailable(f"Spark does not start: {error}", hint=hint)


def _conf(wishes: SparkWishes, s3a: S3A | None) -> SparkConf:
    from pyspark import SparkConf, SparkContext

    if submitted():
        # Connects to spark-submit's JVM, so that SparkConf has its flags.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    if conf.get("spark.master", None) == _SUBMITTED:
        conf.setMaster(DEFAULTS["spark.master"])
    for name, value in wishes.defaults().items():
        conf.setIfMissing(name, value)
    needed = NEEDED | (s3a.needed() if s3a else {})
    if not submitted():
        conf.setIfMissing("spark.driver.memory", wishes.driver_memory)
        needed |= s3a.launch() if s3a else {}
    return conf.setAll(list(needed.items()))


def _close_files() -> None:
    """Closes S3 file systems that spark-submit's JVM opened with older keys, before Spark starts.

    It cannot be done later: Spark's event log uses one of them from Spark's start to its end.
    """
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    if jvm is not None and SparkContext._active_spark_context is None:
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()


def _log_s3(spark: SparkSession, secrets: Mapping[str, str]) -> None:
    """Gives the session its secrets, after checking that its classes exist."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in (FILE_SYSTEM, COMMITTER):
        # Checked as a file: pyspark recurses without end over a class that is not found.
        if loader.getResource(name.replace(".", "/") + ".class") is None:
            spark.stop()
            raise Unavailable(
                f"this Spark has no {name}, and cannot read S3 without it",
                hint=f"Let spark-submit fetch what is missing: {SUBMIT}",
            )
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in secrets.items():
        hadoop.set(name, value)


def _tasks_of(spark: SparkSession) -> tuple[int, int] | None:
    """The tasks done, and all tasks, of the active stages; None without any, or without Spark."""
    from py4j.protocol import Py4JError

    done = known = 0
    try:
        tracker = spark.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                known += info.numTasks
    except (Py4JError, OSError):  # it is being stopped, so no tasks run
        return None
    return (done, known) if known else None


def try_folder(spark: SparkSession, folder: str) -> None:
    """Checks that executors can write below `folder`, made if needed. Raises `Unavailable`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = int(spark.sparkContext.defaultParallelism) * _TRIES
    place = os.path.join(folder, f"try-{spark.sparkContext.applicationId}")
    try:
        os.makedirs(folder, exist_ok=True)
        spark.range(0, tasks, 1, tasks).write.parquet(place)
        check_rows(place, tasks)
    except (PySparkException, Py4JError, OSError) as error:
        raise Unavailable(f"executors cannot write to {folder}", hint=_SHARE_IT) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_rows(folder: str, written: int) -> None:
    """Raises `Unavailable` unless the Parquet files in `folder` hold `written` rows."""
    found = 0
    try:
        for inner, _, names in os.walk(folder):
            for name in names:
                if name.startswith("part-"):
                    found += pq.read_metadata(os.path.join(inner, name)).num_rows
    except (OSError, pa.ArrowInvalid) as error:
        raise Unavailable(f"files of executors cannot be read: {error}", hint=_SHARE_IT) from error
    if found != written:
        raise Unavailable(
            f"executors wrote {written} rows, and {found} of them are in {folder}", hint=_SHARE_IT
        )
