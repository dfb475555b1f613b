"""The limit of open files is raised at the start."""

import subprocess
import sys

PROGRAM = """
import resource
from gateway.process.open_files import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int({hard})))
raise_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(hard: int) -> tuple[list[str], str]:
    """The limits after the start, and the log. In a process of its own: a hard limit is lowered for good."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(hard=hard)], capture_output=True, text=True, check=True)
    *log, last = done.stdout.splitlines()
    return last.split(), "\n".join(log)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    assert limits(5000) == (["5000", "5000"], "")


def test_a_low_hard_limit_is_warned_of() -> None:
    found, log = limits(512)
    assert found == ["512", "512"]
    assert "raise the limit of open files" in log
    assert "512" in log
