"""Where peers are installed, and what installs them: in steps, each done once."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.config.settings import Settings

Step = tuple[str, Callable[[Path], None]]
"""Name, and the function that takes the step in the environment's folder."""


class InstallError(Exception):
    """A step failed. One line that says which, and where its output lies."""


def root() -> Path:
    return Settings().models_dir.parent / "peers"


def installed(folder: Path, steps: Sequence[Step]) -> bool:
    return all(_mark(folder, name).exists() for name, _ in steps)


def install(folder: Path, steps: Sequence[Step]) -> None:
    """All steps that are not done yet, in their order.

    Raises:
        InstallError: one failed; those before it are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, work) in enumerate(steps, 1):
        if _mark(folder, name).exists():
            continue
        print(f"{folder.name}: {name} ({number} of {len(steps)})", flush=True)
        began_s = time.perf_counter()
        work(folder)
        _mark(folder, name).touch()
        print(f"{folder.name}: {name} took {time.perf_counter() - began_s:.0f} s", flush=True)


def call(folder: Path, *command: str | Path) -> None:
    """Run it in the folder; its output goes to the folder's log.

    Raises:
        InstallError: it failed.
    """
    log = folder / "install.log"
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        try:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, check=False)
        except OSError as error:
            raise InstallError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise InstallError(f"{command[0]} ended with status {done.returncode}; see {log}")


def make_venv(folder: Path) -> None:
    call(folder, sys.executable, "-m", "venv", folder)


def pip_install(folder: Path, *arguments: str) -> None:
    call(folder, folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", *arguments)


def _mark(folder: Path, step: str) -> Path:
    return folder / f".done-{step.replace(' ', '-')}"
