"""Which workers a cluster has, and which should be started, started again and ended. Pure: its clock is an argument.

    waiting -> starting -> ready -> draining -> stopping -> gone
       ^          |          |
       `----------+----------'  its process has ended; it is started again after a delay

`draining` workers are no longer in the fleet and still run, until all gateways have seen it. Without reports of the
driver, as while Ray is away, nothing is started, and workers stay in the fleet: gateways know which of them answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.workers.supervisor import backoff_seconds
from gateway.cluster.cluster_file import LOCAL, ClusterFile
from gateway.cluster.fleet_file import FleetWorker
from gateway.cluster.orders import Orders, WorkerOrder, WorkerReport

LINGER_S = 3.0
"""Time from the change of the fleet file to the end of a worker: gateways look at it twice a second."""
STEADY_S = 60.0
"""A worker that has run for this long starts without a delay when its process has ended."""
UNPIN_S = 30.0
"""Time that a worker's machine may be away and the worker unreachable before it is started elsewhere."""
_LOOPBACK = "127.0.0.1"

State = Literal["waiting", "starting", "ready", "draining", "stopping"]


@dataclass(slots=True)
class _Worker:
    """`since_s`: in its state. `reached_s`: when it answered last, or its state began."""

    id: str
    group: str
    state: State
    since_s: float
    attempt: int = 1
    failures: int = 0
    address: str | None = None
    node: str | None = None
    pid: int | None = None
    reached_s: float = 0.0

    def become(self, state: State, now_s: float) -> None:
        if state != self.state:
            self.state, self.since_s, self.reached_s = state, now_s, now_s


class Supervision:
    """The workers of one cluster."""

    def __init__(self, cluster: ClusterFile, known: Iterable[FleetWorker] = (), now_s: float = 0.0) -> None:
        """`known`: workers of the fleet file that a former supervision has left."""
        self._cluster = cluster
        self._workers: dict[str, _Worker] = {}
        self._ending = False
        self.log: list[str] = []
        """Messages for the operator since the last look; the caller clears it."""
        for each in known:
            if each.group in cluster.workers:
                state: State = "ready" if each.state == "ready" and each.address else "starting"
                self._workers[each.id] = _Worker(
                    each.id, each.group, state, now_s, each.attempt, 0, each.address or None, each.node, each.pid, now_s
                )

    @property
    def is_empty(self) -> bool:
        """Whether there are no workers."""
        return not self._workers

    def end(self) -> None:
        """End all workers, and start none."""
        self._ending = True

    def scale(self, desired: Mapping[str, int], now_s: float) -> None:
        """Add and remove workers until each group has its number."""
        for group in self._cluster.workers:
            wanted = 0 if self._ending else desired.get(group, 0)
            alive = [each for each in self._of(group) if each.state not in ("draining", "stopping")]
            for worker in self._of(group):
                if worker.state == "draining" and len(alive) < wanted:
                    worker.become("ready", now_s)
                    alive.append(worker)
            for _ in range(wanted - len(alive)):
                self._add(group, now_s)
            # Those that serve the longest have the fullest caches.
            order = sorted(alive, key=lambda each: (each.state == "ready", -each.since_s))
            for worker in order[: max(len(alive) - wanted, 0)]:
                self.log.append(f"{worker.id} ends")
                worker.become("draining" if worker.state == "ready" else "stopping", now_s)

    def observe(self, reports: Iterable[WorkerReport], now_s: float) -> None:
        """Take in the driver's view of all workers that it was ordered."""
        seen = {report.id: report for report in reports}
        for worker in list(self._workers.values()):
            report = seen.get(worker.id)
            if report is not None and report.attempt >= worker.attempt:
                self._follow(worker, report, now_s)

    def reach(self, addresses: Iterable[str], now_s: float) -> None:
        """Workers at these addresses answer. One that does not, and whose machine is away, is started elsewhere."""
        answering = set(addresses)
        for worker in self._workers.values():
            if worker.address in answering:
                worker.reached_s = now_s

    def step(self, now_s: float) -> None:
        """The changes that follow from the time alone."""
        for worker in self._workers.values():
            if worker.state == "draining" and now_s - worker.since_s >= LINGER_S:
                worker.become("stopping", now_s)
            elif worker.state == "waiting" and now_s - worker.since_s >= backoff_seconds(worker.failures):
                worker.attempt += 1
                worker.become("starting", now_s)

    def orders(self) -> Orders:
        """For the driver."""
        return Orders([self._order(each) for each in self._workers.values() if each.state != "waiting"])

    def fleet(self) -> list[FleetWorker]:
        """For the fleet file."""
        tls = self._cluster.tls
        return [
            FleetWorker(
                address=each.address or "",
                id=each.id,
                group=each.group,
                state=each.state,
                attempt=each.attempt,
                node=each.node,
                pid=each.pid,
                server_name=None if tls is None else tls.server_name,
            )
            for each in self._workers.values()
        ]

    def count(self, group: str, state: State) -> int:
        """Workers of a group in a state."""
        return sum(each.state == state for each in self._of(group))

    def check(self) -> None:
        """Assert the invariants."""
        for worker in self._workers.values():
            assert worker.state not in ("ready", "draining") or worker.address, f"{worker.id} has no address"
        addresses = [each.address for each in self._workers.values() if each.state == "ready"]
        assert len(addresses) == len(set(addresses)), "two workers at one address"

    def _of(self, group: str) -> list[_Worker]:
        return [each for each in self._workers.values() if each.group == group]

    def _add(self, group: str, now_s: float) -> None:
        number = 1 + max((int(each.id.rpartition("-")[2]) for each in self._of(group)), default=0)
        worker = _Worker(f"{group}-{number}", group, "starting", now_s, reached_s=now_s)
        self._workers[worker.id] = worker
        self.log.append(f"{worker.id} starts")

    def _follow(self, worker: _Worker, report: WorkerReport, now_s: float) -> None:
        match report.phase:
            case "pending":
                away = now_s - worker.reached_s >= UNPIN_S
                if worker.node is not None and away and worker.state in ("starting", "ready"):
                    self.log.append(f"{worker.id}: its machine {worker.node} is away; it is started elsewhere")
                    worker.node = worker.pid = worker.address = None
                    worker.attempt += 1
                    worker.become("starting", now_s)
                elif away and worker.state in ("draining", "stopping"):
                    del self._workers[worker.id]
            case "starting":
                if worker.state == "ready":  # Ray has moved it
                    worker.address = None
                    worker.become("starting", now_s)
                worker.attempt, worker.node, worker.pid = report.attempt, report.node, report.pid
            case "running":
                worker.attempt, worker.node, worker.pid = report.attempt, report.node, report.pid
                if worker.state == "starting" or (worker.state == "ready" and worker.address != report.address):
                    worker.address = report.address
                    worker.become("ready", now_s)
                    self.log.append(f"{worker.id} is ready at {worker.address} (process {worker.pid})")
            case "ended" if worker.state == "stopping":
                del self._workers[worker.id]
                self.log.append(f"{worker.id} has ended")
            case "ended":
                self._restart(worker, report, now_s)

    def _restart(self, worker: _Worker, report: WorkerReport, now_s: float) -> None:
        if worker.state == "draining":
            worker.become("stopping", now_s)
            return
        if worker.state == "waiting":
            return
        steady = worker.state == "ready" and now_s - worker.since_s >= STEADY_S
        worker.failures = 0 if steady else worker.failures + 1
        worker.attempt = report.attempt
        worker.address = worker.pid = worker.node = None
        worker.become("waiting", now_s)
        log = self._cluster.work_dir / worker.id / f"{report.attempt}.log"
        again = f"it starts again in {backoff_seconds(worker.failures):g} s"
        self.log.append(f"{worker.id} has ended; {again}; its log on {report.node} is {log}")

    def _order(self, worker: _Worker) -> WorkerOrder:
        group = self._cluster.workers[worker.group]
        loopback = self._cluster.address == LOCAL and self._cluster.tls is None
        return WorkerOrder(
            id=worker.id,
            attempt=worker.attempt,
            command=self._cluster.command(worker.group),
            environment=self._cluster.environment(worker.group),
            cpus=group.cpus,
            gpus=group.gpus,
            work_dir=str(self._cluster.work_dir),
            host=_LOOPBACK if loopback else None,
            node=worker.node,
            stop=worker.state == "stopping",
            stop_seconds=self._cluster.drain_s,
        )
