"""The workers of a cluster against a simulated driver, in virtual time: processes end, Ray goes away, `up` restarts."""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from gateway.cluster.cluster_file import ClusterFile
from gateway.cluster.fleet_file import FleetWorker, read_fleet, write_fleet
from gateway.cluster.orders import WorkerOrder, WorkerReport
from gateway.cluster.supervision import LINGER_S, UNPIN_S, Supervision
from gateway.errors import OperatorError

CLUSTER = ClusterFile(models={"m": Path("/m")}, workers={"m": {"max": 4}})
STEP_S = 0.5


@dataclass
class Process:
    attempt: int
    address: str
    node: str
    ready_s: float
    alive: bool = True


@dataclass
class Machine:
    """Workers' processes, by worker, which outlive the driver."""

    processes: dict[str, Process] = field(default_factory=dict)
    started: int = 0
    driver: bool = True
    nodes: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")

    def reports(self, orders: list[WorkerOrder], now_s: float) -> list[WorkerReport]:
        return [self._report(order, now_s) for order in orders]

    def _report(self, order: WorkerOrder, now_s: float) -> WorkerReport:
        process = self.processes.get(order.id)
        if order.node is not None and order.node not in self.nodes:
            return WorkerReport(order.id, order.attempt, "pending", order.node)
        if order.stop:
            self.processes.pop(order.id, None)
            return WorkerReport(order.id, order.attempt, "ended")
        if process is None or (not process.alive and process.attempt < order.attempt) or process.node not in self.nodes:
            self.started += 1
            address = f"tcp://{self.nodes[0]}:{9000 + self.started}"
            process = self.processes[order.id] = Process(order.attempt, address, self.nodes[0], now_s + 3)
        if not process.alive:
            return WorkerReport(order.id, process.attempt, "ended", process.node, reason="killed")
        if now_s < process.ready_s:
            return WorkerReport(order.id, process.attempt, "starting", process.node, None, 1)
        return WorkerReport(order.id, process.attempt, "running", process.node, process.address, 1)


class World:
    def __init__(self) -> None:
        self.machine = Machine()
        self.now_s = 0.0
        self.supervision = Supervision(CLUSTER)
        self.wanted = 1

    @property
    def serving(self) -> set[str]:
        return {each.address for each in self.supervision.fleet() if each.state == "ready"}

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.now_s += STEP_S
            if self.machine.driver:
                reports = self.machine.reports(self.supervision.orders().workers, self.now_s)
                self.supervision.observe(reports, self.now_s)
            alive = [each.address for each in self.machine.processes.values() if each.alive]
            self.supervision.reach(alive, self.now_s)
            self.supervision.scale({"m": self.wanted}, self.now_s)
            self.supervision.step(self.now_s)
            self.supervision.check()

    def restart_up(self) -> None:
        self.supervision = Supervision(CLUSTER, self.supervision.fleet(), self.now_s)


def test_workers_are_started_restarted_and_scaled() -> None:
    world = World()
    world.run(10)
    assert len(world.serving) == 1
    world.wanted = 3
    world.run(10)
    assert len(world.serving) == 3
    [first, *_] = world.machine.processes.values()
    first.alive = False
    world.run(1)
    assert first.address not in world.serving, "gateways are not sent to a process that has ended"
    world.run(10)
    assert len(world.serving) == 3
    world.wanted = 1
    world.run(LINGER_S - 1)
    assert (len(world.serving), len(world.machine.processes)) == (1, 3), "it ends after gateways have seen it"
    world.run(5)
    assert len(world.machine.processes) == 1
    assert {each.address for each in world.machine.processes.values()} == world.serving


def test_a_worker_that_ends_at_once_is_started_with_growing_delays() -> None:
    world = World()
    for _ in range(600):
        for process in world.machine.processes.values():
            process.alive = False
        world.run(STEP_S)
    assert 5 <= world.machine.started <= 20, "in five minutes"


def test_without_ray_workers_stay_and_are_adopted() -> None:
    world = World()
    world.wanted = 2
    world.run(10)
    serving = world.serving
    world.machine.driver = False
    world.run(100)
    assert world.serving == serving
    world.restart_up()
    world.run(10)
    assert world.serving == serving
    world.machine.driver = True
    world.run(10)
    assert world.serving == serving
    assert world.machine.started == 2


def test_a_worker_of_a_lost_machine_is_started_elsewhere() -> None:
    world = World()
    world.run(10)
    [old] = world.machine.processes.values()
    world.restart_up()
    world.machine.nodes = ("10.0.0.2",)
    old.alive = False
    world.run(UNPIN_S - 5)
    assert world.machine.started == 1, "it may come back"
    world.run(20)
    [new] = world.serving
    assert new.startswith("tcp://10.0.0.2:")


def test_a_reachable_worker_stays_whatever_ray_says_of_its_machine() -> None:
    world = World()
    world.run(10)
    world.restart_up()
    world.machine.nodes = ("10.0.0.2",)
    world.run(300)
    assert world.machine.started == 1
    assert len(world.serving) == 1


def test_the_end_drains_and_ends_all() -> None:
    world = World()
    world.wanted = 3
    world.run(5.5)
    world.wanted = 4
    world.run(STEP_S)
    world.supervision.end()
    world.run(STEP_S)
    assert not world.serving
    world.run(10)
    assert world.supervision.is_empty
    assert not world.machine.processes


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_whatever_happens_it_comes_to_rest_with_the_wanted_workers(first: int) -> None:
    for seed in range(first, first + 100):
        random, world = Random(seed), World()
        for _ in range(random.randint(5, 60)):
            match random.randrange(7):
                case 0:
                    world.wanted = random.randint(0, 4)
                case 1:
                    world.machine.driver = not world.machine.driver
                case 2:
                    world.restart_up()
                case 3 if world.machine.processes:
                    random.choice(list(world.machine.processes.values())).alive = False
                case 4:
                    world.machine.nodes = random.choice([("10.0.0.1", "10.0.0.2"), ("10.0.0.2",), ("10.0.0.1",)])
            world.run(random.choice([STEP_S, 3, 20]))
        world.machine.driver, world.machine.nodes = True, ("10.0.0.1", "10.0.0.2")
        world.run(150)
        alive = {each.address for each in world.machine.processes.values() if each.alive}
        assert len(world.serving) == world.wanted, seed
        assert world.serving <= alive, seed
        assert world.supervision.count("m", "draining") == world.supervision.count("m", "stopping") == 0


def test_the_fleet_file_keeps_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    assert read_fleet(path) == []
    workers = [FleetWorker("tcp://10.0.0.1:9", "m-1", "m", "ready", 3, "10.0.0.1", 12, "workers")]
    write_fleet(path, workers)
    assert read_fleet(path) == workers
    path.write_text('{"workers": [{"address": "tcp://10.0.0.1:9"}]}')
    with pytest.raises(OperatorError, match="is no fleet file of turnpike up"):
        read_fleet(path)
