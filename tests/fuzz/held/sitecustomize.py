"""Tells what held a process's event loop; Python imports it from `PYTHONPATH`.

A thread samples where the loop's thread is. The loop looks at its own processor time at intervals.
If it took too much since the last look, the samples since then are appended to `FUZZ_HELD`, the
most frequent ones first.
"""

import os
import sys
import threading
import time
from collections import Counter

import uvloop

_LOOK_SECONDS = 0.01
_SAMPLE_SECONDS = 0.004
_MOST_SECONDS = 0.1
_FRAMES = 6
_new_event_loop = uvloop.new_event_loop


def _place(thread: int) -> str:
    frame, names = sys._current_frames().get(thread), list[str]()
    while frame is not None and len(names) < _FRAMES:
        code = frame.f_code
        names.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(names)


def _watched() -> uvloop.Loop:
    loop, thread, samples = _new_event_loop(), threading.get_ident(), list[str]()
    taken = time.thread_time()

    def sample() -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            samples.append(_place(thread))

    def look() -> None:
        nonlocal taken
        before, taken = taken, time.thread_time()
        if taken - before > _MOST_SECONDS:
            with open(os.environ["FUZZ_HELD"], "a") as out:
                print(f"{taken - before:.3f} s of the processor:", file=out)
                for place, count in Counter(samples).most_common(5):
                    print(f"  {count:3} of {len(samples)}: {place}", file=out)
        samples.clear()
        loop.call_later(_LOOK_SECONDS, look)

    threading.Thread(target=sample, daemon=True).start()
    loop.call_soon(look)
    return loop


uvloop.new_event_loop = _watched
