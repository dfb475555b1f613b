"""`python -m tests.deploy.platforms`: whether the locked dependencies of a plain `pip install turnpike` have wheels for
other platforms, asked of the package index. Needs the network; nothing is installed.

On Linux the oldest C library that all have wheels for is part of the platform: glibc 2.31 (Debian 11, Ubuntu 20.04,
Amazon Linux 2023), of llguidance.
"""

import subprocess
import sys
from pathlib import Path

PLATFORMS = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).parents[2]


def missing(platform: str, python: str) -> str:
    """The reason that a platform lacks a wheel; empty: it has all."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--only-binary", ":all:"]
    command += ["--python-platform", platform, "--python-version", python]
    command += ["pyproject.toml", "-c", "requirements.lock"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def main() -> None:
    failed = False
    for platform in PLATFORMS:
        for python in PYTHONS:
            reason = missing(platform, python)
            failed |= bool(reason)
            print(f"{platform:24} Python {python}: {reason or 'all wheels'}", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
