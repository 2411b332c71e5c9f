"""What rules of access cost an append: requests per second and CPU time, with and without them.

    python -m benchmarks.access [--seconds 2] [--rounds 40]

Two services run side by side, one with rules and one without, and are under load in short turns, of
which two at a time are compared, so that both meet the same machine. Bodies of one line, 8
connections over 8 runs: the fast path, on which the check is the largest part of a request. Clients
of the first send a token, those of the other none. The rules have 100 tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import yaml

from benchmarks.ingest import CONNECTIONS, PATHS, make_case
from benchmarks.process import Load, Watched, load
from service.access.rules import make_token
from tests.e2e.service_process import ServiceProcess

TOKENS = 100


def write_rules(path: Path) -> str:
    """Writes the rules, and gives the token of one of them."""
    made = [make_token(os.urandom) for _ in range(TOKENS)]
    rules = [
        {
            "id": token_id,
            "name": f"client {number}",
            "secrets": [{"sha256": sha256}],
            "scopes": {"ingest": [f"other{number}.*", "bench.*"]},
        }
        for number, (_, token_id, sha256) in enumerate(made)
    ]
    path.write_text(yaml.safe_dump({"tokens": rules}))
    return made[TOKENS // 2][0]


def measure(
    service: ServiceProcess, token: str, seconds: float, folder: Path
) -> tuple[Load, float]:
    """What wrk saw, and the CPU time of a request in microseconds."""
    case = make_case(folder, 1, "raw")
    watched = Watched(service.pid)
    seen = load(
        service.url,
        PATHS,
        case.bodies,
        seconds=seconds,
        connections=CONNECTIONS,
        content_type=case.content_type,
        folder=folder,
        token=token,
    )
    return seen, watched.end() / seen.requests * 1e6


def main() -> None:
    """Prints a row a round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        folder = Path(temporary).resolve()
        token = write_rules(folder / "rules.yaml")
        rules = str(folder / "rules.yaml")
        services = {
            "open": (ServiceProcess(folder / "open"), ""),
            "rules": (ServiceProcess(folder / "closed", TAILRACE_ACCESS__RULES=rules), token),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in services}
        try:
            for service, _ in services.values():
                service.start()
            print("round         req/s    p50 ms   CPU us  errs")
            for number in range(arguments.rounds + 1):
                turns = list(services.items())
                for name, (service, sent) in turns if number % 2 else reversed(turns):
                    seen, cost = measure(service, sent, arguments.seconds, folder)
                    print(
                        f"{number:>5} {name:<6} {seen.rate:>7.0f} {seen.p50_ms:>9.2f} "
                        f"{cost:>8.1f} {seen.errors:>5}",
                        flush=True,
                    )
                    if number:  # the first warms up
                        found[name].append((seen.rate, cost))
        finally:
            for service, _ in services.values():
                if service.running:
                    service.kill()
        pairs = list(zip(found["rules"], found["open"], strict=True))
        rate, cost = (
            statistics.median(ours[at] / bare[at] for ours, bare in pairs) for at in (0, 1)
        )
        print(
            f"with rules: {rate:.3f} of the requests a second, "
            f"{cost:.3f} of the CPU time of a request (medians of {len(pairs)} rounds)"
        )


if __name__ == "__main__":
    main()
