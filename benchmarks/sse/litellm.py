"""LiteLLM's proxy, in an environment of its own: our own packages never change for it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from gateway.config.settings import Settings
from tests.support.servers import free_port

VERSION = "1.109.1"
MASTER_KEY = "sk-benchmark"
START_SECONDS = 120.0
_UNPINNED = ("certifi", "litellm-proxy-extras", "litellm-enterprise")
"""Their pins may name versions that a registry does not have yet; any version serves here."""
_DEPENDENCIES = f"""
from importlib.metadata import requires
from packaging.requirements import Requirement
for each in map(Requirement, requires("litellm")):
    if each.marker is None or each.marker.evaluate({{"extra": "proxy"}}):
        each.marker = None
        print(each.name if each.name in {_UNPINNED!r} else each)
"""


def environment() -> Path:
    """The folder of its virtual environment, which is made the first time: that takes some minutes."""
    folder = Settings().models_dir.parent / "benchmarks" / f"litellm-{VERSION}"
    ready = folder / "ready"
    if not ready.exists():
        print(f"installing litellm {VERSION} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _pip(folder, "--no-deps", f"litellm=={VERSION}")
        _pip(folder, "packaging")
        listing = subprocess.run([_python(folder), "-c", _DEPENDENCIES], check=True, capture_output=True, text=True)
        _pip(folder, *listing.stdout.split("\n")[:-1])
        ready.touch()
    return folder


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def _pip(folder: Path, *arguments: str) -> None:
    command = [_python(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


@contextmanager
def proxy(folder: Path, model: str, upstream_port: int) -> Iterator[int]:
    """One worker before an upstream, with its master key and nothing else switched on: the port that it answers on."""
    config = {
        "model_list": [
            {
                "model_name": model,
                "litellm_params": {
                    "model": f"openai/{model}",
                    "api_base": f"http://127.0.0.1:{upstream_port}/v1",
                    "api_key": "none",
                },
            }
        ],
        "general_settings": {"master_key": MASTER_KEY},
    }
    path, port = folder / "litellm.yaml", free_port()
    path.write_text(json.dumps(config), encoding="utf-8")
    command = [environment() / "bin" / "litellm", "--config", path, "--host", "127.0.0.1", "--port", str(port)]
    surroundings = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            [*map(str, command), "--num_workers", "1"], stdout=log, stderr=subprocess.STDOUT, env=surroundings
        )
    try:
        _await_ready(process, port, folder / "litellm.log")
        yield port
    finally:
        process.terminate()
        process.wait()


def _await_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/liveliness").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
