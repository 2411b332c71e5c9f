"""Work beside a loop that is running: another driver's whole pass, in the midst of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable


def elsewhere(work: Callable[[], object]) -> None:
    """Runs it in another thread, with a loop of its own, to its end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure
