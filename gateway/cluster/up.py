"""`turnpike up`: keeps a cluster's workers running, until SIGTERM or Ctrl-C ends them all."""

import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from engine.workers.tls import client_context
from gateway.cluster.cluster_file import ClusterFile
from gateway.cluster.driver_process import DriverProcess, ray_command
from gateway.cluster.fleet_file import FleetWorker, locked, read_fleet, write_fleet
from gateway.cluster.load import WorkerLoads
from gateway.cluster.scaling import Scaler
from gateway.cluster.supervision import Supervision
from gateway.errors import OperatorError
from gateway.process.engine_loading import tls_files
from gateway.process.termination import Termination
from gateway.telemetry.logs import configure_logging

ROUND_SECONDS = 0.5
END_SECONDS = 30.0
"""Time beyond the drain after which `turnpike up` ends although workers may run: their leases end them."""

_log = structlog.get_logger("turnpike.up")


class Cluster:
    """The parts of `turnpike up`, and one round of its loop."""

    def __init__(
        self, cluster: ClusterFile, driver: DriverProcess, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Adopts the workers of the fleet file.

        Raises:
            OperatorError: the fleet file or a certificate cannot be used.
        """
        self._cluster = cluster
        self._driver = driver
        self._clock = clock
        known = read_fleet(cluster.fleet_file)
        self.supervision = Supervision(cluster, known, clock())
        self._scalers = {name: Scaler(cluster.scaling, group.min, group.max) for name, group in cluster.workers.items()}
        for name, scaler in self._scalers.items():
            adopted = sum(each.group == name for each in known)
            scaler.workers = min(max(adopted, scaler.workers), cluster.workers[name].max)
        self._loads = WorkerLoads(_context(cluster), cluster.scaling.service_class)
        self._written: list[FleetWorker] | None = None
        self._starts = 0

    def round(self) -> None:
        """Take in what is, and order what should be."""
        now_s, supervision = self._clock(), self.supervision
        reports = self._driver.exchange(supervision.orders())
        if self._driver.starts_total != self._starts:
            if self._starts and (reason := _last_error(self._driver.last_words())):
                _log.warning("the connection to ray has ended", reason=reason, log=str(self._driver.log))
            self._starts = self._driver.starts_total
            _log.info("connecting to ray", address=self._cluster.address, start=self._starts)
        if reports is not None:
            supervision.observe(reports.workers, now_s)
        supervision.reach(self._loads.answering(), now_s)
        supervision.scale({name: self._wanted(name, now_s) for name in self._scalers}, now_s)
        supervision.step(now_s)
        self._publish()

    def close(self) -> None:
        """End the driver and the connections. The workers are not ended."""
        self._driver.close()
        self._loads.close()

    def _wanted(self, group: str, now_s: float) -> int:
        scaler = self._scalers[group]
        workers = [each for each in self.supervision.fleet() if each.group == group and each.state == "ready"]
        if (sample := self._loads.sample(workers, now_s)) is not None:
            before = scaler.workers
            if scaler.observe(sample) != before:
                load = {"requests": sample.requests, "wait_s": round(sample.wait_s, 3)}
                _log.info("scaling", group=group, workers=scaler.workers, before=before, **load)
        return scaler.workers

    def _publish(self) -> None:
        workers = self.supervision.fleet()
        self._loads.follow(each for each in workers if each.state in ("ready", "draining"))
        if workers != self._written:
            try:
                write_fleet(self._cluster.fleet_file, workers)
                self._written = workers
            except OSError as error:
                _log.error("the fleet file cannot be written", path=str(self._cluster.fleet_file), error=str(error))
        for message in self.supervision.log:
            _log.info(message)
        self.supervision.log.clear()


def _last_error(log: str) -> str:
    """The line of the last exception in a log; empty without one."""
    lines = [line for line in log.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return lines[-1] if lines else ""


def _context(cluster: ClusterFile) -> ssl.SSLContext | None:
    if cluster.tls is None:
        return None
    try:
        return client_context(tls_files(cluster.tls))
    except OSError as error:
        raise OperatorError(f"tls: {error}") from error


def run_up(cluster: ClusterFile, termination: Termination, log_path: Path | None = None) -> None:
    """Keep the cluster until a signal, then drain and end its workers.

    Raises:
        OperatorError: a file or a certificate cannot be used, or workers did not end in time.
    """
    configure_logging("info", "auto")
    log_path = log_path or cluster.work_dir / "ray.log"
    driver = DriverProcess(ray_command(cluster.address), log_path)
    with locked(cluster.fleet_file):
        running = Cluster(cluster, driver)
        try:
            _run(running, cluster, termination)
        finally:
            running.close()


def _run(running: Cluster, cluster: ClusterFile, termination: Termination) -> None:
    ends_s: list[float] = []

    def begin() -> None:
        ends_s.append(time.monotonic() + cluster.drain_s + END_SECONDS)

    termination.begins(begin)
    _log.info("up", fleet_file=str(cluster.fleet_file), groups=list(cluster.workers))
    while not (ends_s and running.supervision.is_empty):
        if ends_s:
            running.supervision.end()
            if time.monotonic() > ends_s[0]:
                raise OperatorError(f"workers run that cannot be ended; their leases end them in {cluster.lease_s:g} s")
        running.round()
        time.sleep(ROUND_SECONDS)
    _log.info("down")
