"""A real Apache Kafka broker for tests: one KRaft node on free loopback ports, its folder kept over restarts."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.support.servers import ServerMissing, free_port

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
START_DEADLINE_S = 60
PARTITIONS = 4


class KafkaServer:
    """A broker that can be stopped, killed and started again on what it had written.

    A client moves on to the address that the broker advertises, so a proxy in front of `bootstrap` would only see its
    first connection. A fault proxy goes in front of `proxied_port` and listens on `proxy_port`: the broker sends
    clients that came through it there again.
    """

    format_options: Sequence[str] = ("--standalone",)

    def __init__(self, folder: Path) -> None:
        self._bin = _kafka_home() / "bin"
        self._folder = folder
        self._log = folder / "log"
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.proxied_port, self.proxy_port, controller_port = (free_port() for _ in range(4))
        self._properties.write_text(self._settings(controller_port))
        self._format()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def proxied_bootstrap(self) -> str:
        return f"127.0.0.1:{self.proxy_port}"

    def start(self) -> None:
        """Returns when the broker leads and answers. After `kill` that takes its old session's end: some 3 s."""
        assert self._process is None
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._bin / "kafka-server-start.sh", self._properties], stdout=output, stderr=output, env=self._env()
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
        self.kill()
        raise AssertionError(f"Kafka does not answer: {self._log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        self._end(kill=False)

    def kill(self) -> None:
        """As a power cut ends a process: without a signal to handle, and without a flush."""
        self._end(kill=True)

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}})
            admin.wait_for_topics([name])
        finally:
            admin.close()

    def _end(self, *, kill: bool) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=500)
        except KafkaError:
            time.sleep(0.05)
            return False
        try:
            return bool(admin.describe_cluster()["brokers"])
        except KafkaError:
            return False
        finally:
            admin.close()

    def _format(self) -> None:
        command = [self._bin / "kafka-storage.sh", "format", "--cluster-id", CLUSTER_ID, *self.format_options]
        done = subprocess.run(
            [*command, "--config", self._properties],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._env(),
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")

    def _env(self) -> dict[str, str]:
        """A distribution's own scripts write their logs where they are installed unless told where."""
        return {"KAFKA_HEAP_OPTS": "-Xms128m -Xmx256m", **os.environ, "LOG_DIR": str(self._folder / "logs")}

    def _settings(self, controller_port: int) -> str:
        host = "127.0.0.1"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{host}:{self.port},"
            f"PROXIED://{host}:{self.proxied_port},CONTROLLER://{host}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{host}:{self.port},PROXIED://{host}:{self.proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{host}:{controller_port}",
            "log.dirs": self._folder / "data",
            "num.network.threads": 2,
            "num.io.threads": 4,
            "num.partitions": PARTITIONS,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": PARTITIONS,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": PARTITIONS,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 * 1024**2,
            # After a kill the node may register again only once its old session has ended: 9 s by default.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def running_kafka() -> Iterator[KafkaServer]:
    """
    Raises:
        ServerMissing: Kafka or Java is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="turnpike-kafka-", ignore_cleanup_errors=True) as folder:
        server = KafkaServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _kafka_home() -> Path:
    stated = os.environ.get("KAFKA_HOME", "")
    if not stated or not (Path(stated) / "bin" / "kafka-server-start.sh").is_file():
        raise ServerMissing("Kafka is not installed: unpack Apache Kafka 4 from kafka.apache.org, set KAFKA_HOME to it")
    java = shutil.which(
        "java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if "JAVA_HOME" in os.environ else None
    )
    if java is None:
        raise ServerMissing("Java is not installed: apt-get install -y --no-install-recommends openjdk-17-jre-headless")
    return Path(stated).resolve()
