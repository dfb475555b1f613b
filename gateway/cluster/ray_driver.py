"""Ray's client: `python -m gateway.cluster.ray_driver ADDRESS`. It reads orders from standard input, and writes reports
to standard output. Its end ends a head that it has started; the workers survive it.

Each worker has a placement group of one bundle (STRICT_PACK: all of its devices are on one machine) and an actor in it,
which Ray starts again, on another machine where its own is lost.
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gateway.cluster.orders import Orders, Reports, WorkerOrder, WorkerReport
from gateway.cluster.ray_actor import WorkerActor

ROUND_SECONDS = 0.5
_NODE_SHARE = 0.001
"""Of a machine's resource `node:ADDRESS`, by which a worker that runs there is found again."""


class _Placed:
    """A worker's placement group and actor, and the call of the actor that has no answer yet."""

    def __init__(self, order: WorkerOrder) -> None:
        self.node = order.node
        bundle = {key: each for key, each in (("CPU", order.cpus), ("GPU", order.gpus)) if each}
        if order.node is not None:
            bundle[f"node:{order.node}"] = _NODE_SHARE
        self.group: PlacementGroup = placement_group([bundle or {"CPU": _NODE_SHARE}], strategy="STRICT_PACK")
        self.actor: Any = None
        self.call: Any = None
        self.stopping: Any = None
        self.report: WorkerReport | None = None

    def advance(self, order: WorkerOrder) -> WorkerReport:
        """Make the next call, and report the last one's answer.

        Raises:
            RayError: the actor is gone.
        """
        if self.actor is None:
            if order.stop and order.node is None:
                return WorkerReport(order.id, order.attempt, "ended", reason="it was not placed")
            if not self.group.wait(timeout_seconds=0):
                return WorkerReport(order.id, order.attempt, "pending", order.node)
            self.actor = self._start(order)
        if order.stop and self.stopping is None:
            self.stopping = self.actor.stop.remote(order.stop_seconds)
        if self.stopping is not None and _is_done(self.stopping):
            ray.get(self.stopping)
            node = None if self.report is None else self.report.node
            return WorkerReport(order.id, order.attempt, "ended", node, reason="it was stopped")
        if self.stopping is None and (self.call is None or _is_done(self.call)):
            if self.call is not None:
                self.report = msgspec.json.decode(ray.get(self.call), type=WorkerReport)
            self.call = self.actor.ensure.remote(msgspec.json.encode(order))
        return self.report or WorkerReport(order.id, order.attempt, "pending", order.node)

    def remove(self) -> None:
        """Free its resources."""
        if self.actor is not None:
            ray.kill(self.actor)
        remove_placement_group(self.group)

    def _start(self, order: WorkerOrder) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=0)
        kind: Any = ray.remote(WorkerActor)
        return kind.options(
            num_cpus=order.cpus, num_gpus=order.gpus, scheduling_strategy=strategy, max_restarts=-1, max_concurrency=2
        ).remote(order.id, order.work_dir)


def _is_done(call: Any) -> bool:
    ready, _ = ray.wait([call], timeout=0)
    return bool(ready)


class Driver:
    """Follows the orders."""

    def __init__(self) -> None:
        self._placed: dict[str, _Placed] = {}

    def round(self, orders: Orders) -> Reports:
        """One look at all workers."""
        for worker_id in self._placed.keys() - {order.id for order in orders.workers}:
            self._placed.pop(worker_id).remove()
        return Reports(list(self._reports(orders)))

    def _reports(self, orders: Orders) -> Iterator[WorkerReport]:
        for order in orders.workers:
            placed = self._placed.get(order.id)
            if placed is not None and placed.actor is None and placed.node != order.node:
                placed.remove()  # it waits for a machine that it need not be on any more
                placed = None
            if placed is None:
                placed = self._placed[order.id] = _Placed(order)
            try:
                yield placed.advance(order)
            except RayError as error:
                print(f"{order.id}: the actor is lost: {error}", file=sys.stderr, flush=True)
                self._placed.pop(order.id).remove()
                yield WorkerReport(order.id, order.attempt, "pending", order.node)


class _Inbox:
    """The last orders of standard input, read on a thread. `ended`: there will be no more."""

    def __init__(self) -> None:
        self.orders = Orders([])
        self.ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        unread = b""
        while data := os.read(sys.stdin.fileno(), 1 << 16):  # a buffered read holds a lock
            *lines, unread = (unread + data).split(b"\n")
            if lines:
                self.orders = msgspec.json.decode(lines[-1], type=Orders)
        self.ended.set()


def connect(address: str) -> None:
    """Connect to Ray, or start a head on this machine: without a dashboard, and without reports on its usage."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    head: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 80 << 20} if address == "local" else {}
    ray.init(address=address, log_to_driver=False, namespace="turnpike", **head)


def main() -> None:
    reports, sys.stdout = sys.stdout, sys.stderr  # Ray prints
    inbox = _Inbox()
    connect(sys.argv[1])
    driver = Driver()
    while not inbox.ended.is_set():
        done = driver.round(inbox.orders)
        reports.write(msgspec.json.encode(done).decode() + "\n")
        reports.flush()
        inbox.ended.wait(ROUND_SECONDS)
        ray.nodes()  # type: ignore[no-untyped-call]  # asks the head: while it does not answer, there are no reports
    ray.shutdown()


if __name__ == "__main__":
    main()
