"""The exporters of docker-compose.yml as programs of this machine, on the stores of the tests."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.servers import START_DEADLINE_S, ServerMissing, free_port

KMINION = {
    "kminion_exporter_up": {"version"},
    "kminion_kafka_consumer_group_topic_lag": {"group_id", "topic_name"},
}
"""Metrics of Kafka's exporter that rules read, as it documents them (KMinion, docs/metrics.md): it is in no package."""
CLICKHOUSE = {
    "ClickHouseAsyncMetrics_DiskAvailable_default": set[str](),
    "ClickHouseAsyncMetrics_DiskTotal_default": set[str](),
    "ClickHouseAsyncMetrics_MaxPartCountForPartition": set[str](),
}
"""Metrics of ClickHouse's server that rules read (system.asynchronous_metrics): the engine alone lacks that table."""


@contextmanager
def running_exporter(program: str, environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """`program`, answering; its address without a path.

    Raises:
        ServerMissing: it is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise ServerMissing(f"an exporter is not installed: apt-get install -y --no-install-recommends {program}")
    address = f"127.0.0.1:{free_port()}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [found, f"--web.listen-address={address}"],
            stdout=output,
            stderr=output,
            env={"PATH": os.environ["PATH"], **environment},
        )
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                httpx.get(f"http://{address}/")
                break
            except httpx.TransportError:
                said = log.read_text(errors="replace")
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def metrics_of(text: str) -> dict[str, set[str]]:
    """Each metric of a scrape, with its labels."""
    named: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            named.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return named


def value_of(text: str, series: str) -> float:
    """Of the one line that begins with `series`."""
    (line,) = [each for each in text.splitlines() if re.match(rf"{re.escape(series)}[ {{]", each)]
    return float(line.rpartition(" ")[2])
