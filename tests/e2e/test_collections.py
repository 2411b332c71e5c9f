"""`tailrace serve` loads its modules without collections, and leaves them out of later ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

_WATCHED = """
import gc, importlib.abc, json, sys

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("service.settings", "service.main"):
            collecting[name] = gc.isenabled()

collecting = {}
sys.meta_path.insert(0, Watch())
from tailrace.cli.main import main
try:
    status = main(["serve", "--data", sys.argv[1], "--port", sys.argv[2]])
except SystemExit as error:
    status = error.code
print(json.dumps([collecting, gc.isenabled(), gc.get_freeze_count() > 10_000, bool(status)]))
"""


def test_what_is_loaded_is_no_work_for_the_collector(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends once it is loaded
        asked = [
            sys.executable,
            "-c",
            _WATCHED,
            str(tmp_path / "data"),
            str(taken.getsockname()[1]),
        ]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == [{"service.settings": False, "service.main": False}, True, True, True]
