"""The load of workers, by a connection to each: they send it to every client. The connections renew the leases, too."""

import ssl
from collections.abc import Iterable, Sequence

from engine.workers.membership import Membership
from engine.workers.remote_link import Address, RemoteLink
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.sources import Member
from gateway.cluster.fleet_file import FleetWorker
from gateway.cluster.scaling import Sample

_STEP_SECONDS = 60.0


class WorkerLoads:
    """Connected to all workers that have an address. Sends no requests."""

    def __init__(self, context: ssl.SSLContext | None, service_class: str) -> None:
        self._set = ReplicaSet()
        self._context = context
        self._class = service_class
        self._membership = Membership(self._set, self._connect)

    def follow(self, workers: Iterable[FleetWorker]) -> None:
        """Connect to these workers, and to no others."""
        self._membership.update(Member(each.address, each.server_name) for each in workers if each.address)

    def answering(self) -> frozenset[str]:
        """The addresses of connected workers."""
        return frozenset(each.name for each in self._set.replicas if each.requests.connected)

    def sample(self, workers: Sequence[FleetWorker], at_s: float) -> Sample | None:
        """The load of these workers; None: none of them is connected."""
        addresses = {each.address for each in workers}
        with self._set.lock:
            here = [each for each in self._set.replicas if each.name in addresses and each.requests.connected]
            if not here:
                return None
            requests = sum(queue.requests for each in here for queue in each.queues.values())
            wait_s = min(self._wait_s(each) for each in here)
        return Sample(at_s, len(here), requests, wait_s)

    def close(self) -> None:
        """End the connections."""
        self._set.close("turnpike up ends")
        self._membership.close()

    def _connect(self, member: Member, replica: Replica) -> RemoteLink:
        address = Address.parse(member.address)
        return RemoteLink(address, self._context, replica, step_seconds=_STEP_SECONDS, server_name=member.server_name)

    def _wait_s(self, replica: Replica) -> float:
        """The longest of its models'."""
        waits = []
        for name, queue in replica.queues.items():
            ranks = replica.facts[name].ranks if name in replica.facts else {}
            service_class = self._class if self._class in ranks else next(iter(ranks), None)
            if service_class is not None:
                waits.append(queue.predicted_wait(service_class, 1).first_token_ns / 1e9)
        return max(waits, default=0.0)
