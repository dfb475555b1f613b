"""As many cycles as one likes: `python -m tests.e2e.kill --cycles 1000 --seed 7`. Exit code 1 where a book differs."""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.kill.books import Books
from tests.e2e.kill.cycles import Run
from tests.support.clickhouse_server import running_clickhouse
from tests.support.kafka_server import running_kafka

REPORT_EVERY = 50


def report(run: Run, books: Books) -> None:
    print("killed: " + ", ".join(f"{name} {times}" for name, times in run.deaths.items()))
    print(f"{books.requests} requests, {books.tokens} tokens received")
    print(f"  ended {books.ended}, left {books.left}, cut {books.cut}, unanswered {books.unanswered.total()}")
    print(f"  received and not billed of the cut: {_spread(books.lost_tokens, 'tokens')}")
    print(f"  the first of these, before the end: {_spread(books.lost_ms, 'ms')}")
    print(f"  billed to those who left, and not received: {books.unreceived_tokens} tokens")
    print(f"  whole answers billed that nobody received: {books.lost_whole}")
    for finding in books.findings[:100]:
        print(f"WRONG: {finding}")
    print(f"{len(books.findings)} findings")


def _spread(values: Sequence[float], unit: str) -> str:
    if not values:
        return "none"
    return f"median {statistics.median(values):.0f}, most {max(values):.0f} {unit} (of {len(values)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    started = time.monotonic()

    def progress(cycle: int) -> None:
        if (cycle + 1) % REPORT_EVERY == 0:
            print(f"{cycle + 1} cycles in {time.monotonic() - started:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder, running_kafka() as kafka, running_clickhouse() as clickhouse:
        run = Run(Path(folder), kafka, clickhouse.new_database(), options.seed)
        started = time.monotonic()
        books = asyncio.run(run.cycles(options.cycles, progress))
    report(run, books)
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if books.findings else 0


if __name__ == "__main__":
    sys.exit(main())
