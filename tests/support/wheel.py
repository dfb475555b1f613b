"""A wheel of this checkout, built as it is built for a release, but for the optimisation of the native kernels."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "engine", "gateway", "kernels", "migrations")


def build_wheel(folder: Path, names: Iterable[str] = SOURCES) -> Path:
    """Build from copies of these files and folders, in `folder`. Returns the wheel."""
    source = folder / "src"
    source.mkdir()
    for name in names:
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
