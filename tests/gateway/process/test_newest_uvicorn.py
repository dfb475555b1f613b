"""The connections' tests on the newest release of uvicorn, ahead of an upgrade."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn

from tests.e2e.clients.environments import NEWEST_UVICORN

ROOT = Path(__file__).parents[3]
CONNECTION_TESTS = (
    "tests/gateway/process/test_uvicorn_internals.py",
    "tests/gateway/process/test_connection.py",
    "tests/gateway/process/test_hostile_connections.py",
    "tests/gateway/test_server.py",
)


def test_connections_on_the_newest_release() -> None:
    folder = NEWEST_UVICORN.made_folder()
    variables = os.environ | {"PYTHONPATH": str(folder)}  # before the installed packages

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )

    version = python("-c", "import uvicorn; print(uvicorn.__version__)").stdout.strip()
    if version == uvicorn.__version__:
        pytest.skip(f"the newest release at the last `make clients` is the installed one, {version}")
    tests = python("-m", "pytest", "-p", "no:cacheprovider", *CONNECTION_TESTS)
    assert tests.returncode == 0, f"uvicorn {version}:\n{tests.stdout}{tests.stderr}"
