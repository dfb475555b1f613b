"""From an empty machine to the first answer: `python -m benchmarks.first_minutes`.

Clones this repository's HEAD into an empty folder and runs the README's commands there, with an empty home folder and
an empty cache of pip: `make run`, the two commands that it prints, and a second start. Prints a line for each step:
seconds, processor seconds, and the bytes that it left on the disk. Packages and the model come over the network.
"""

import argparse
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.demo_banner import commands_of, read_banner
from tests.support.servers import free_port

ROOT = Path(__file__).parents[1]
KEPT = ("PATH", "LANG", "CXX", "SSL_CERT_FILE")
"""Variables that the steps inherit, and those of pip, which name the index."""


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    seconds: float
    cpu_s: float
    mib: float

    def __str__(self) -> str:
        return f"| `{self.command}` | {self.seconds:.1f} | {self.cpu_s:.1f} | {self.mib:.0f} |"


class Newcomer:
    """Runs commands in `folder/turnpike`, the clone, with `folder/home` as the home folder, and measures them."""

    def __init__(self, folder: Path) -> None:
        self.clone, self._home = folder / "turnpike", folder / "home"
        self._home.mkdir()
        self._server: subprocess.Popen[str] | None = None
        self.environment = {name: value for name in KEPT if (value := os.environ.get(name)) is not None}
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environment |= {"HOME": str(self._home), "TURNPIKE_PORT": str(free_port())}
        self._begin()

    def run(self, command: Sequence[str], shown: str, cwd: Path) -> str:
        done = subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{shown}: {done.stderr[-2000:]}")
        self.record(shown)
        return done.stdout

    def serve(self, command: Sequence[str], shown: str) -> str:
        """Start a server. Returns its banner."""
        server = self._server = subprocess.Popen(
            command,
            cwd=self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert server.stdout is not None
        banner = read_banner(server.stdout)
        self.record(shown)
        return banner

    def stop(self) -> None:
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.communicate(timeout=60)
            self._server = None

    def record(self, shown: str) -> None:
        """A step ends here."""
        cpu_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        if self._server is not None:
            cpu_s += _group_cpu_s(self._server.pid)
        files = [path for top in (self.clone, self._home) for path in top.rglob("*") if not path.is_symlink()]
        size = sum(path.stat().st_size for path in files if path.is_file())
        seconds = time.perf_counter() - self._began_s
        print(Step(shown, seconds, cpu_s - self._cpu_s, (size - self._bytes) / 2**20), flush=True)
        self._begin(cpu_s, size)

    def _begin(self, cpu_s: float = 0.0, size: int = 0) -> None:
        self._cpu_s, self._bytes, self._began_s = cpu_s, size, time.perf_counter()


def _group_cpu_s(group: int) -> float:
    """Processor seconds of the processes of a group, and of those that they waited for."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.first_minutes", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as folder:
        newcomer = Newcomer(Path(folder))
        print("| command | s | processor s | MiB on the disk |\n|---|---|---|---|")
        clone = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(newcomer.clone)]
        newcomer.run(clone, "git clone", Path(folder))
        for command, shown in (
            (["make", "run"], "make run"),
            ([".venv/bin/turnpike", "serve", "--demo"], "turnpike serve --demo"),
        ):
            try:
                banner = newcomer.serve(command, f"{shown}, to its banner")
                answer = newcomer.run(["bash", "-c", commands_of(banner)], "export TURNPIKE_KEY, curl", newcomer.clone)
            finally:
                newcomer.stop()
            if "Paris" not in answer:
                raise SystemExit(f"no answer: {answer}")
            newcomer.record("Ctrl-C")
        size = sum(path.stat().st_size for path in (newcomer.clone / ".venv").rglob("*") if not path.is_symlink())
        print(f".venv: {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
