"""The proxy as a process, until SIGTERM or ctrl-C; then it tells what it did, as JSON.

    python -m tests.faults --upstream http://127.0.0.1:9000 --listen 127.0.0.1:9100 \
        --seed 7 --rate 0.05 --kind stall=0.001
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from tests.faults.kinds import Kind
from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Schedule, evenly


def kind_and_rate(text: str) -> tuple[Kind, float]:
    """`dropped=0.1`."""
    name, _, rate = text.partition("=")
    return Kind(name), float(rate)


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = ", ".join(kind.value for kind in Kind)
    parser.add_argument("--upstream", required=True, help="http:// address of the S3 server")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port, 0 for any")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="of all kinds but stall together")
    parser.add_argument(
        "--kind", type=kind_and_rate, action="append", default=[], help=f"kind=rate: {kinds}"
    )
    parser.add_argument("--stall-seconds", type=float, default=30.0)
    parser.add_argument("--delay-seconds", type=float, default=0.05)
    return parser.parse_args(words)


async def serve(arguments: argparse.Namespace) -> Schedule:
    """Until a signal."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    schedule = Schedule(
        arguments.seed,
        {**evenly(arguments.rate), **dict(arguments.kind)},
        delay_seconds=arguments.delay_seconds,
        stall_seconds=arguments.stall_seconds,
    )
    host, _, port = arguments.listen.rpartition(":")
    async with FaultProxy(arguments.upstream, schedule, host=host, port=int(port)) as proxy:
        print(f"listening on {proxy.url}", flush=True)
        await ended.wait()
    return schedule


def main() -> int:
    """0 after a signal."""
    schedule = asyncio.run(serve(parse(sys.argv[1:])))
    injected = {kind.value: count for kind, count in sorted(schedule.injected.items(), key=str)}
    print(json.dumps({"requests": schedule.requests, "injected": injected}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
