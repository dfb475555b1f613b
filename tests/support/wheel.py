"""A wheel of this checkout, built as it is built for a release, but for the optimisation of the native kernels."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "engine", "gateway", "kernels", "migrations")
"""All that a wheel is built from. The image's build stage copies these and what it installs before the build."""


def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once a run: the compiler takes most of a minute. The workers of a parallel run share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    built = folder / "wheel.path"
    with (folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            built.write_text(str(_build_wheel(tmp_path_factory.mktemp("wheel"))), encoding="utf-8")
    return Path(built.read_text(encoding="utf-8"))


def _build_wheel(folder: Path) -> Path:
    """Build from copies, in `folder`. Returns the wheel."""
    source = folder / "src"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    # How fast the kernels are is nothing to these tests, and the compiler is done in half the time.
    build = (source / "setup.py").read_text(encoding="utf-8")
    assert '"-O3"' in build
    (source / "setup.py").write_text(build.replace('"-O3"', '"-O1"'), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", folder / "made", source],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return next((folder / "made").glob("turnpike-*.whl"))
