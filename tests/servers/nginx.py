"""A real nginx: on `PATH`, where distributions put it, or where `.ci/debian` put it.

    with running_nginx(configuration, folder): ...

`configuration` is what stands in its `http` block. It runs as one process with its files in
`folder`, so neither rights nor files of the machine matter.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.debian import find_program, why_no_program

_START_SECONDS = 30.0
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_MAIN = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 256; }}
http {{
access_log off;
{paths}
{configuration}
}}
"""


@contextmanager
def running_nginx(configuration: str, folder: Path) -> Iterator[Path]:
    """Gives the file of its error log. Raises `RuntimeError` with that if it does not start."""
    command = find_program("nginx")
    assert command is not None, why_no_program("nginx")
    paths = "\n".join([f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY])
    main = folder / "nginx.conf"
    main.write_text(_MAIN.format(folder=folder, paths=paths, configuration=configuration))
    log, pid = folder / "error.log", folder / "nginx.pid"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [command, "-p", str(folder), "-e", "stderr", "-c", str(main)], stderr=said
        )
    try:
        # It listens before it writes this file.
        deadline = time.monotonic() + _START_SECONDS
        while not pid.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nginx did not start: {log.read_text()}")
            time.sleep(0.01)
        yield log
    finally:
        process.terminate()
        process.wait(timeout=_START_SECONDS)
