"""The workers that a client is connected to, while the fleet changes."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from engine.workers.messages import ToWorker
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.sources import Member

logger = logging.getLogger(__name__)

REAP_SECONDS = 0.25
"""Time between two looks for removed workers without requests."""


class Link(Protocol):
    """A connection to a worker: see `RemoteLink`."""

    restarts_total: int

    def start(self) -> None: ...

    def send(self, message: ToWorker) -> bool: ...

    def close(self) -> None: ...


class Membership:
    """Adds workers to a `ReplicaSet` and removes them. Thread-safe.

    A removed worker gets no new requests, and is disconnected when it has none left. What it has when it is lost
    moves to the others, or waits for the first that is ready. One that returns before that stays connected.
    """

    def __init__(self, replicas: ReplicaSet, connect: Callable[[Member, Replica], Link]) -> None:
        """`connect`: makes the link of a worker, not started, whose events go to the replica."""
        self._set = replicas
        self._connect = connect
        self._changing = threading.Lock()
        """Held by changes of the members, and not by the threads of links: closing a link waits for its thread."""
        self._links: dict[Replica, Link] = {}
        self._members: dict[Replica, Member] = {}
        self._former_restarts = 0
        self._closing = threading.Event()
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def restarts_total(self) -> int:
        """Connections that have ended, of all workers that there were."""
        return self._former_restarts + sum(link.restarts_total for link in list(self._links.values()))

    def update(self, members: Iterable[Member]) -> None:
        """The fleet has these workers, and no others."""
        wanted = {member.address: member for member in members}
        with self._changing:
            if self._closing.is_set():
                return
            for replica, member in list(self._members.items()):
                stays = wanted.get(member.address) == member
                if stays:
                    del wanted[member.address]
                if stays != replica.listed:
                    logger.info("the worker %s %s", replica.name, "is back" if stays else "is removed")
                    with self._set.lock:
                        replica.listed = stays
            for member in wanted.values():
                self._add(member)
        self.reap()

    def reap(self) -> None:
        """Disconnect removed workers without requests."""
        with self._changing:
            with self._set.lock:
                ended = [each for each in self._links if not each.listed and self._is_done(each)]
            for replica in ended:
                self._former_restarts += self._links[replica].restarts_total
                del self._members[replica]
                self._links.pop(replica).close()
            with self._set.lock:
                gone = [each for each in self._set.replicas if each not in self._links and not len(each.requests)]
                self._set.remove(gone)

    def keep_reaping(self, members: Callable[[], Collection[Member]]) -> Callable[[], None]:
        """Reap from time to time on a thread, until this is closed. Returns what makes it read `members` at once."""
        self._thread = threading.Thread(target=self._run, args=(members,), name="turnpike-membership", daemon=True)
        self._thread.start()
        return self._due.set

    def close(self) -> None:
        """Close all links. Idempotent."""
        self._closing.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        with self._changing:
            for link in self._links.values():
                link.close()

    def check(self) -> None:
        """Assert the invariants."""
        with self._changing, self._set.lock:
            assert self._links.keys() == self._members.keys()
            listed = [member.address for replica, member in self._members.items() if replica.listed]
            assert len(listed) == len(set(listed)), "a worker is connected to twice"
            assert self._links.keys() <= set(self._set.replicas), "a connected worker is not in the set"
            for replica in self._set.replicas:
                assert replica in self._links or not replica.listed, f"{replica.name} has no connection"

    def _is_done(self, replica: Replica) -> bool:
        """Whether a removed worker's link can be closed: it has no requests, or they wait for any worker."""
        return not len(replica.requests) or not replica.requests.connected

    def _add(self, member: Member) -> None:
        def send(message: ToWorker) -> bool:
            link = self._links.get(replica)
            return link is not None and link.send(message)

        replica = Replica(member.address, self._set, send)
        link = self._connect(member, replica)
        self._members[replica] = member
        self._links[replica] = link
        with self._set.lock:
            self._set.add(replica)
        link.start()

    def _run(self, members: Callable[[], Collection[Member]]) -> None:
        while not self._closing.is_set():
            try:
                if self._due.wait(REAP_SECONDS):
                    self._due.clear()
                    self.update(members())
                else:
                    self.reap()
            except Exception:  # a thread that ended here would leave the fleet as it is for good
                logger.exception("the workers of the fleet could not be changed")
