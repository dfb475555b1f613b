"""The wheel in an environment that has nothing else: its size, and that it serves."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.demo_banner import key_of, read_banner
from tests.support.servers import free_port
from tests.support.wheel import ROOT, built_once

MIB = 1 << 20
BASE_MIB = 250
WITH_EMBEDDED_MIB = 830
LOCK = ROOT / "requirements.lock"
START_S = 180


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory)


def install(environment: Path, *arguments: str) -> None:
    """As pip installs by default: it compiles every module to bytecode."""
    command = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip("the package index cannot be reached, or lacks a package")
    assert done.returncode == 0, done.stderr


def install_lock(environment: Path) -> None:
    """As the Makefile does: uv takes a fifth of pip's processor time, and where it fails, pip does it."""
    uv, python = Path(sys.executable).with_name("uv"), environment / "bin" / "python"
    locked = ("--no-deps", "--require-hashes", "-r", str(LOCK))
    command = [uv, "--quiet", "--no-cache", "pip", "install", "--python", python, *locked]
    if not uv.exists() or subprocess.run(command, capture_output=True).returncode != 0:
        install(environment, "--no-compile", *locked)


def make_environment(folder: Path) -> Path:
    """An environment with pip alone, as Python makes it from 3.12 on; 3.11 adds setuptools."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if "setuptools" in packages(folder):
        uninstall(folder, "setuptools")
    return folder


def uninstall(environment: Path, *names: str) -> None:
    subprocess.run([environment / "bin" / "pip", "uninstall", "--quiet", "--yes", *names], check=True)


def installed_mib(environment: Path) -> float:
    """The bytes of all files of an environment, pip and bytecode included; links are not followed."""
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / MIB


@contextmanager
def demo(environment: Path, folder: Path, models_dir: Path) -> Iterator[tuple[str, str]]:
    """`turnpike serve --demo` in an empty folder: its address, and the key that it prints."""
    (folder / "here").mkdir()
    port = free_port()
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TURNPIKE_MODELS_DIR": str(models_dir),
        "TURNPIKE_KV_CACHE_BYTES": "64MiB",
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [environment / "bin" / "turnpike", "serve", "--demo", "--port", str(port)],
            cwd=folder / "here",
            env=variables,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{port}", key_of(read_banner(server.stdout))
    finally:
        server.terminate()
        server.communicate(timeout=START_S)
    assert server.returncode == 0, (folder / "log").read_text(encoding="utf-8")


def answer(url: str, key: str) -> str:
    question = {"model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(question).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=START_S) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def packages(environment: Path) -> set[str]:
    command = [environment / "bin" / "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {str(each["name"]).lower() for each in listed}


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the wheel and what it needs. The first test finds it as it is; the second one adds an extra."""
    folder = make_environment(tmp_path_factory.mktemp("wheel") / "environment")
    install(folder, str(wheel))
    return folder


def test_the_base_serves_without_extras(environment: Path, smollm2_file: Path, tmp_path: Path) -> None:
    assert not packages(environment) & {
        "torch",
        "triton",
        "chdb-core",
        "kafka-python",
        "redis",
        "asyncpg",
        "pytest",
        "aiohttp",
    }
    assert installed_mib(environment) <= BASE_MIB
    with demo(environment, tmp_path, smollm2_file.parent) as (url, key):
        assert "Paris" in answer(url, key)


def test_the_embedded_store_is_added_by_pip(environment: Path, wheel: Path, smollm2_file: Path, tmp_path: Path) -> None:
    """As the README says: without the data frames that chDB declares and nothing imports."""
    install(environment, f"{wheel}[embedded]")
    uninstall(environment, "pandas", "pyarrow")
    check_embedded_store(environment, smollm2_file, tmp_path)


def test_the_lock_has_the_embedded_store(wheel: Path, smollm2_file: Path, tmp_path: Path) -> None:
    """As `make run` and the image install it, with the clients of all stores. Bytecode comes with the first start."""
    environment = make_environment(tmp_path / "environment")
    install_lock(environment)
    install(environment, "--no-compile", "--no-deps", str(wheel))
    check_embedded_store(environment, smollm2_file, tmp_path)


def check_embedded_store(environment: Path, smollm2_file: Path, folder: Path) -> None:
    """The installation is within its size, and a start of it answers a chat and keeps usage."""
    assert not packages(environment) & {"torch", "triton", "pandas", "pyarrow", "pytest"}
    with demo(environment, folder, smollm2_file.parent) as (url, key):
        assert "Paris" in answer(url, key)
        usage = urllib.request.Request(f"{url}/v1/usage", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(usage, timeout=START_S) as response:
            assert response.status == 200
    assert installed_mib(environment) <= WITH_EMBEDDED_MIB
