"""`turnpike worker` on this machine, in a session of its own: started, found again by its record, and ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from gateway.cluster.orders import WorkerOrder, WorkerReport

_START = (
    "import sys; from subprocess import DEVNULL, Popen; log = open(sys.argv[1], 'wb'); "
    "print(Popen(sys.argv[2:], stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True).pid)"
)
"""The worker's parent is a process that ends at once: Ray ends the children of an actor together with it."""
_TURNPIKE = "from gateway.management.cli import main; main()"
_HEAD_BYTES = 1 << 18
"""A log states its worker's address within these."""
_TAIL_BYTES = 2000
_POLL_SECONDS = 0.1
_KILL_SECONDS = 10.0
"""Time beyond the drain after which a worker is killed."""


class _Record(msgspec.Struct):
    """A process that was started. `ticks`: its start time, as the kernel has it: a process id may be used again."""

    attempt: int
    pid: int
    ticks: str
    log: str


class WorkerProcess:
    """The processes of one worker, one after another, of which at most one runs."""

    def __init__(self, worker_id: str, work_dir: Path) -> None:
        self._id = worker_id
        self._folder = work_dir / worker_id
        self._path = self._folder / "process.json"

    def ensure(self, order: WorkerOrder, node: str) -> WorkerReport:
        """Start the order's process, unless one of this worker runs here or this attempt has ended; then report."""
        record = self._record()
        if record is None or (not _runs(record) and record.attempt < order.attempt):
            record = self._start(order, node)
        if not _runs(record):
            return WorkerReport(self._id, record.attempt, "ended", node, reason=_tail(Path(record.log)))
        address = _address(Path(record.log))
        phase = "starting" if address is None else "running"
        return WorkerReport(self._id, record.attempt, phase, node, address, record.pid)  # type: ignore[arg-type]

    def stop(self, seconds: float) -> None:
        """Drain the process and wait for its end, for `seconds` and some more; then kill it. Idempotent."""
        record = self._record()
        if record is None:
            return
        deadline = time.monotonic() + seconds + _KILL_SECONDS
        _signal(record, signal.SIGTERM)
        while _runs(record) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        _signal(record, signal.SIGKILL)

    def _record(self) -> _Record | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return None

    def _start(self, order: WorkerOrder, node: str) -> _Record:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{order.attempt}.log"
        for old in self._folder.glob("*.log"):
            if old != log and old.stem.isdecimal() and int(old.stem) < order.attempt - 1:
                old.unlink()  # the last two are kept
        host = order.host or (f"[{node}]" if ":" in node else node)
        worker = [sys.executable, "-c", _TURNPIKE, "worker", "--listen", f"{host}:0"]
        worker += ["--data-dir", str(self._folder), *order.command]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TURNPIKE_", "RAY_"))}
        path = os.pathsep.join(filter(None, sys.path))
        started = subprocess.run(
            [sys.executable, "-c", _START, str(log), *worker],
            env={**own, **order.environment, "PYTHONPATH": path},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(started.stdout)
        record = _Record(order.attempt, pid, _ticks(pid) or "", str(log))
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(record))
        new.replace(self._path)
        return record


def _ticks(pid: int) -> str | None:
    """The start time of a process; None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _runs(record: _Record) -> bool:
    return bool(record.ticks) and _ticks(record.pid) == record.ticks


def _signal(record: _Record, number: int) -> None:
    if _runs(record):
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)


def _address(log: Path) -> str | None:
    """The address that a worker's log states once it takes requests."""
    try:
        with log.open("rb") as file:
            lines = file.read(_HEAD_BYTES).splitlines()
    except OSError:
        return None
    for line in lines:
        if b'"ready"' in line and b'"address"' in line:
            try:
                return str(msgspec.json.decode(line)["address"])
            except (msgspec.MsgspecError, KeyError):
                continue
    return None


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
