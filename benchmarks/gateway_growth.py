"""Growth with `gateway_processes`: `python -m benchmarks.gateway_growth`.

Streams of a model that weighs nothing, whose engine is in a process of its own, through 1 and 2 gateway processes on
one port, over PostgreSQL, Redis and ClickHouse, with a journal each. This process generates the load. Printed are
tokens a second, and for each process the CPU seconds of 1,000 tokens. Where cores are fewer than busy processes, as on
two, the second figure is the one to go by: it says what the gateways make with a core each.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import orjson
import uvloop

from benchmarks import weightless
from benchmarks.sse.client import Target, ask
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.clickhouse_server import running_clickhouse
from tests.support.gateway_processes import Group, Stores, running_group
from tests.support.servers import new_postgres_database, running_postgres, running_redis

COUNTS = (1, 2)
STREAMS = 128
STREAM_TOKENS = 500
STEP_MS = 1.0
SECONDS = 8.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes_of(group: Group, count: int) -> dict[str, int]:
    """Ids by what they do."""
    gateways = group.gateways() if count > 1 else {0: group.process.pid}
    named = {f"gateway {index}": pid for index, pid in gateways.items()}
    children = Path(f"/proc/{group.process.pid}/task").glob("*/children")
    for pid in {int(each) for found in children for each in found.read_text().split()}:
        if b"benchmarks.weightless_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            named["engine"] = pid
    return named | {"load generator": os.getpid()}


def measure(group: Group, count: int, seconds: float) -> tuple[float, Mapping[str, float]]:
    """Tokens a second, and CPU seconds of 1,000 tokens by process."""
    fields = {"prompt": "Once", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    body = orjson.dumps({"model": weightless.MODEL} | fields)
    target = Target(group.port, group.key, "/v1/completions", body)
    uvloop.run(ask(target, STREAMS, 1.0))
    processes = processes_of(group, count)
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    asked = uvloop.run(ask(target, STREAMS, seconds))
    tokens = len(asked.whole_ms) * STREAM_TOKENS
    spent = {name: (cpu_seconds(pid) - before[name]) / tokens * 1000 for name, pid in processes.items()}
    return tokens / asked.seconds, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each number of processes")
    options = parser.parse_args()
    command, environment = weightless.command(STEP_MS, own_process=True)
    model = f"{weightless.MODEL}={fetch('smollm2', Settings().models_dir)}"
    rates: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        running_postgres() as postgres,
        running_redis() as redis,
        running_clickhouse() as clickhouse,
    ):
        for count in COUNTS:
            stores = Stores(new_postgres_database(postgres.url), redis.url, clickhouse.new_database())
            with running_group(
                Path(name) / str(count),
                stores,
                "--model",
                model,
                count=count,
                environment={**environment, "TURNPIKE_ENGINE_PROCESS": "true"},
                program=tuple(command),
            ) as group:
                time.sleep(3.0)  # what a start leaves to do is done
                rates[count], spent = measure(group, count, options.seconds)
            print(f"{count} gateway processes: {rates[count]:.0f} tokens/s; CPU seconds of 1,000 tokens:")
            for process, seconds in spent.items():
                print(f"  {process:>14}: {seconds:.4f}")
            gateways = sum(seconds for process, seconds in spent.items() if process.startswith("gateway"))
            print(
                f"  {'all gateways':>14}: {gateways:.4f}, that is {1000 / gateways:.0f} tokens/s on a core", flush=True
            )
    print(f"tokens/s with 2 over 1: {rates[2] / rates[1]:.2f}, on {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
