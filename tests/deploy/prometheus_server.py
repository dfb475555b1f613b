"""A Prometheus server for tests: the real one, on a free loopback port, its data thrown away at the end."""

import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import START_DEADLINE_S, ServerMissing, free_port

MISSING = "Prometheus is not installed: apt-get install -y --no-install-recommends prometheus"


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """`url` is where its API and its pages are."""

    url: str


def prometheus_program(name: str) -> str:
    """The path of `prometheus` or `promtool`, which come together.

    Raises:
        ServerMissing: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(MISSING)
    return found


@contextmanager
def running_prometheus(config: str, *more: str) -> Iterator[PrometheusServer]:
    """A server that follows `config`, the text of a prometheus.yml; what that names relatively is not found. `more`:
    options besides.

    Raises:
        ServerMissing: it is not installed.
    """
    program = prometheus_program("prometheus")
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="turnpike-prometheus-") as folder:
        config_file, log = Path(folder, "prometheus.yml"), Path(folder, "log")
        config_file.write_text(config, encoding="utf-8")
        options = [f"--config.file={config_file}", f"--storage.tsdb.path={folder}/data"]
        options += [f"--web.listen-address={address}", "--log.level=warn", *more]
        with log.open("wb") as output:
            process = subprocess.Popen([program, *options], stdout=output, stderr=output)
        try:
            _await_ready(process, f"http://{address}", log)
            yield PrometheusServer(f"http://{address}")
        finally:
            process.terminate()
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise AssertionError(f"prometheus does not get ready: {log.read_text(errors='replace')[-4000:]}")
