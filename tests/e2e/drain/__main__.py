"""As many cycles as one likes: `python -m tests.e2e.drain --cycles 100 --seed 7`. Exit code 1 where a promise broke."""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.drain.books import Books
from tests.e2e.drain.cycles import Run
from tests.support.clickhouse_server import running_clickhouse
from tests.support.servers import running_redis
from tests.support.tiny_models import make_checkpoint

REPORT_EVERY = 10


def report(run: Run, books: Books) -> None:
    print(", ".join(f"{what}: {count}" for what, count in sorted(books.outcomes.items())))
    late = sorted(run.exits_s)
    print(f"seconds after the deadline: median {statistics.median(late):.1f}, most {late[-1]:.1f}")
    for finding in books.findings[:100]:
        print(f"WRONG: {finding}")
    print(f"{len(run.seen)} requests, {len(books.findings)} findings")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    started = time.monotonic()

    def progress(cycle: int) -> None:
        if (cycle + 1) % REPORT_EVERY == 0:
            print(f"{cycle + 1} cycles in {time.monotonic() - started:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder, running_redis() as redis, running_clickhouse() as clickhouse:
        checkpoint = make_checkpoint(Path(folder) / "tiny", "qwen3")
        run = Run(Path(folder), checkpoint, redis.url, clickhouse.new_database(), options.seed)
        books = asyncio.run(run.cycles(options.cycles, progress))
    report(run, books)
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if books.findings else 0


if __name__ == "__main__":
    sys.exit(main())
