"""A node whose doors nobody uses imports none of the libraries that decode for them."""

from __future__ import annotations

import json
import subprocess
import sys

_HEAVY = ("google.protobuf", "opentelemetry.proto", "cramjam", "lark", "wsproto", "websockets")
_SCRIPT = """
import json, sys
import service.main
from service.doors.routes import open_doors
from service.doors.repeats import Repeats
from service.doors.settings import DoorSettings
from service.http.loki import loki_query_routes
from service.http.loki_labels import loki_label_routes
from service.http.loki_tail import *
from tailrace.logstore.clock import SystemClock

settings = DoorSettings()
assert len(open_doors(settings, Repeats(None, None, SystemClock(), settings))) == 4
loki_query_routes(lambda: None), loki_label_routes(lambda: None, None)
print(json.dumps(sorted(sys.modules)))
"""


def test_doors_load_their_libraries_with_the_first_request() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True
    ).stdout
    loaded = json.loads(shown)
    assert "service.doors.otlp" in loaded
    assert [name for name in loaded if name.startswith(_HEAVY)] == []
