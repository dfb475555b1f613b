"""The actor that has a worker's place in Ray. Its machine needs this package; tokens do not pass through it."""

from pathlib import Path

import msgspec
import ray

from gateway.cluster.orders import WorkerOrder
from gateway.cluster.worker_process import WorkerProcess


class WorkerActor:
    """Runs one worker on its machine."""

    def __init__(self, worker_id: str, work_dir: str) -> None:
        self._process = WorkerProcess(worker_id, Path(work_dir))
        self._node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]

    def ensure(self, order: bytes) -> bytes:
        """See `WorkerProcess.ensure`; order and report are encoded."""
        stated = msgspec.json.decode(order, type=WorkerOrder)
        return msgspec.json.encode(self._process.ensure(stated, self._node))

    def stop(self, seconds: float) -> None:
        """See `WorkerProcess.stop`."""
        self._process.stop(seconds)
