"""A standalone cluster of Spark whose workers are on hosts of their own, as far as Spark knows.

Spark never runs the second attempt of a task on the host of its first, and all workers of a
`local-cluster` are on one. Here each has an address of the loopback network to itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.servers.ports import free_port
from tests.servers.quick_java import quick_daemons

HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone(workers: int, folder: Path) -> Iterator[str]:
    """The address of a master with so many workers of one core; they are gone with the block."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        at_home = {"SPARK_LOCAL_IP": "127.0.0.1"}
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        running.enter_context(_started(f"{_DEPLOY}.master.Master", at, at_home))
        for number in range(workers):
            host = f"127.0.0.{number + 2}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host))
            here = ("--host", host, "--webui-port", "0", *size, address)
            home = {"SPARK_LOCAL_IP": host}
            running.enter_context(_started(f"{_DEPLOY}.worker.Worker", here, home))
        yield address


@contextmanager
def _started(
    name: str, arguments: tuple[str, ...], environment: Mapping[str, str]
) -> Iterator[None]:
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), name, *arguments],
        env={**os.environ, **quick_daemons(), "SPARK_HOME": str(HOME), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=300)
