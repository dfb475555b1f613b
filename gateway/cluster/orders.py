"""The messages between `turnpike up` and its driver: a JSON object a line."""

from typing import Literal

import msgspec

Phase = Literal["pending", "starting", "running", "ended"]
"""pending: not placed. starting: its process loads. running: it takes requests. ended: its process has ended."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """A worker that should run. `attempt`: its process is started once for each number. `node`: the address of the
    machine where it runs already; None: any. `stop`: end it. `host`: its listener's; None: that of its machine."""

    id: str
    attempt: int
    command: list[str]
    environment: dict[str, str]
    cpus: float
    gpus: float
    work_dir: str
    host: str | None = None
    node: str | None = None
    stop: bool = False
    stop_seconds: float = 30.0


class Orders(msgspec.Struct, frozen=True):
    """All workers that should be known. One that is no longer there is forgotten, and its resources are free."""

    workers: list[WorkerOrder]


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker as its actor sees it. `reason`: the last lines of its log, of one that has ended."""

    id: str
    attempt: int
    phase: Phase
    node: str | None = None
    address: str | None = None
    pid: int | None = None
    reason: str = ""


class Reports(msgspec.Struct, frozen=True):
    """All workers that were ordered."""

    workers: list[WorkerReport]
