"""The services of docker-compose.yml as programs of this machine: the same settings at other addresses.

Our own run as their container would let them: a root file system that cannot be written, no capability, a tmpfs at
/tmp, the volumes where the image has them, and no variable but those of the image and of the service.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.dockerfile import image_environment
from tests.support.kafka_server import KafkaServer
from tests.support.program import TURNPIKE
from tests.support.servers import ServerMissing

ROOT = Path(__file__).parents[2]
STATE, CACHE = "/var/lib/turnpike", "/var/cache/turnpike"
HEALTH_DEADLINE_S = 180

_CONTAINER = f"""
set -eu
state=$1 models=$2 checkout=$3
shift 3
mount -t tmpfs tmpfs {Path(STATE).parent}
mkdir {STATE}
mount --bind "$state" {STATE}
mount -t tmpfs tmpfs {Path(CACHE).parent}
mkdir -p {CACHE}/models
mount --bind "$models" {CACHE}/models
for folder in {Path(STATE).parent} {Path(CACHE).parent}; do mount -o remount,ro $folder; done
case "$checkout" in /tmp/*) mount --bind "$checkout" /mnt ;; esac  # the program is in it
mount -t tmpfs tmpfs /tmp
case "$checkout" in /tmp/*) mkdir -p "$checkout" && mount --bind /mnt "$checkout" ;; esac
mount -o remount,bind,ro /
cd {STATE}
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


class ComposedKafka(KafkaServer):
    """A broker with the properties that the image makes of the service's variables."""

    format_options = ()  # its voters are stated

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        super().__init__(folder)

    def _settings(self, controller_port: int) -> str:
        places = {
            "//:9092": f"//127.0.0.1:{self.port}",
            "kafka:9092": f"127.0.0.1:{self.port}",
            "//:9093": f"//127.0.0.1:{controller_port}",
            "localhost:9093": f"127.0.0.1:{controller_port}",
            "/var/lib/kafka/data": str(self._folder / "data"),
        }
        settings = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): replaced(value, places)
            for name, value in self._environment.items()
            if name != "KAFKA_HEAP_OPTS"
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def composed_redis(service: Mapping[str, Any], port: int, folder: Path) -> Iterator[None]:
    """Redis by the service's own command.

    Raises:
        ServerMissing: it is not installed.
    """
    if shutil.which("redis-server") is None:
        raise ServerMissing("Redis is not installed: apt-get install -y --no-install-recommends redis-server")
    places = {"port 6379": f"port {port}", "dir /data": f"dir {folder}"}
    command = [replaced(word, places) for word in service["command"]]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], **service["environment"]}
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True)
class Host:
    """Where our containers run. `places` is what is written in the compose file -> what stands for it here."""

    places: Mapping[str, str]
    state: Path
    models: Path

    def environment(self, service: Mapping[str, Any]) -> dict[str, str]:
        """The environment of a process in the container of `service`."""
        stated = image_environment("cpu") | service["environment"]
        path = f"{TURNPIKE.parent}:{os.environ['PATH']}"
        seen = {name: replaced(value, self.places) for name, value in stated.items()}
        return seen | {"PATH": path, "HOME": STATE}

    def command(self, arguments: Sequence[str]) -> list[str]:
        jail = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _CONTAINER, "sh"]
        return [*jail, str(self.state), str(self.models), str(ROOT), *arguments]

    def run(self, service: Mapping[str, Any], *arguments: str) -> str:
        """`turnpike` to its end, as `docker compose exec` or a service that ends; what it printed."""
        done = subprocess.run(
            self.command([str(TURNPIKE), *arguments]),
            env=self.environment(service),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def running(self, service: Mapping[str, Any], *arguments: str, log: Path) -> Iterator[None]:
        """A service from its start, over the moment when it is healthy, to SIGTERM, after which it must end with 0."""
        command = self.command([str(TURNPIKE), *(replaced(each, self.places) for each in arguments)])
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment(service))
        try:
            self.await_healthy(service, log, process)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def await_healthy(
        self, service: Mapping[str, Any], log: Path | None = None, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Until the service's own health check says so."""
        kind, *words = service["healthcheck"]["test"]
        check = ["sh", "-c", *words] if kind == "CMD-SHELL" else list(words)
        check = [replaced(word, self.places) for word in check]
        said = ""
        deadline = time.monotonic() + HEALTH_DEADLINE_S
        while time.monotonic() < deadline and (process is None or process.poll() is None):
            done = subprocess.run(
                check, env=self.environment(service), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode == 0:
                return
            said = done.stdout.decode(errors="replace")
            time.sleep(1)  # as the service does while it starts
        raise AssertionError(f"{check} is not content: {said[-1000:]}\n{log.read_text()[-4000:] if log else ''}")


def replaced(text: str, places: Mapping[str, str]) -> str:
    for place, here in places.items():
        text = text.replace(place, here)
    return text


def can_make_containers() -> bool:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0 and shutil.which("setpriv") is not None
